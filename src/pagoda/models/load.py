"""The way in: what a model is, and its weights, from whichever kind of files it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pagoda.models.checkpoint import SafetensorsCheckpoint
from pagoda.models.config import ModelConfig, read_directory_config
from pagoda.models.decoder import DecoderSpec
from pagoda.models.directory_config import completed_by_weights
from pagoda.models.gguf_checkpoint import GGUFCheckpoint
from pagoda.models.gguf_config import read_gguf_config
from pagoda.models.locate import ModelFiles
from pagoda.models.quantised_checkpoint import QuantisedCheckpoint
from pagoda.models.quantization import read_quantization
from pagoda.models.registry import (
    decoder_spec,
    find_family,
    language_tensors,
    weight_names,
)
from pagoda.models.schemes.quantised_tensors import quantised_types
from pagoda.models.schemes.scheme import Scheme
from pagoda.models.weights import (
    DecoderWeights,
    Keeps,
    OnProgress,
    TensorSource,
    keeps_none,
    load_decoder,
)


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of model files is read."""

    config: Callable[[ModelFiles], ModelConfig]
    source: Callable[[ModelFiles], TensorSource]
    types: Callable[[ModelFiles], Mapping[str, str]]
    """The type of each tensor that is quantised, by its name, as `StoredRows` has it."""
    scheme: Callable[[ModelFiles], Scheme | None]
    """What quantised weights of safetensors are stored by, with all that the config says of it."""


def _directory_config(files: ModelFiles) -> ModelConfig:
    """Asks for weights only where the architecture is covered."""
    config = read_directory_config(files.path)
    find_family(config)
    return completed_by_weights(config, files)


def _directory_source(files: ModelFiles) -> TensorSource:
    config = read_directory_config(files.path)
    scheme, tensors = read_quantization(config), language_tensors(config, files.tensors)
    if scheme is None:
        return SafetensorsCheckpoint(tensors)
    return QuantisedCheckpoint(scheme, tensors)


def _directory_types(files: ModelFiles) -> Mapping[str, str]:
    config = read_directory_config(files.path)
    scheme = read_quantization(config)
    if scheme is None:
        return {}
    return quantised_types(scheme, language_tensors(config, files.tensors))


def _directory_scheme(files: ModelFiles) -> Scheme | None:
    return read_quantization(read_directory_config(files.path))


FORMATS = {
    "directory": Format(
        config=_directory_config,
        source=_directory_source,
        types=_directory_types,
        scheme=_directory_scheme,
    ),
    "gguf": Format(
        config=lambda files: read_gguf_config(files.gguf),
        source=lambda files: GGUFCheckpoint(files.gguf),
        types=lambda files: files.gguf.types,
        scheme=lambda _: None,
    ),
}
"""One row for each kind of `ModelFiles`."""


def load_spec(files: ModelFiles, max_model_len: int | None = None) -> DecoderSpec:
    """The decoder that the model's files describe.

    `max_model_len` is the longest sequence the engine will run, in tokens; only models with
    dynamic RoPE scaling depend on it. Raises `ModelError`, or `UnsupportedModelError` for an
    architecture or feature that is not covered.
    """
    return decoder_spec(FORMATS[files.kind].config(files), max_model_len)


def load_weights(
    files: ModelFiles,
    spec: DecoderSpec,
    dtype: str,
    on_progress: OnProgress | None = None,
    device: torch.device | None = None,
    keeps: Keeps = keeps_none,
) -> DecoderWeights[Any]:
    """The weights as `dtype` (float32, bfloat16 or float16), merged as `LayerWeights` says.

    They are moved to `device` one by one, or stay in main memory without one; matrices that
    the caller `keeps` stay in their file (`StoredMatrix`). `on_progress` is
    called with the bytes that are done and the bytes in all. Raises `ModelError` where a tensor is
    missing, misshaped or too many, or a file is truncated.
    """
    source = FORMATS[files.kind].source(files)
    names = weight_names(spec.architecture, files.kind, source.shapes)
    return load_decoder(spec, source, names, dtype, on_progress, device, keeps)
