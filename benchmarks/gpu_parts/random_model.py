"""Models of random weights, made where they are used, behind Pagoda's own engine."""

from __future__ import annotations

import gc
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import tokenizers
import torch
import transformers
from tokenizers.models import WordLevel

from gpu_parts.setting import Setting
from gpu_parts.shapes import Shape
from pagoda.engine.build import Model
from pagoda.engine.devices.backend import Backend
from pagoda.engine.devices.gpu_backend import GPUBackend
from pagoda.models.config import CONFIG_FILE
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import FORMATS, load_spec, load_weights
from pagoda.models.locate import ModelFiles, locate
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.part import Parts
from pagoda.models.registry import weight_names
from pagoda.models.tokenizer import Tokenizer
from pagoda.models.weight_parts import DecoderParts
from pagoda.models.weights import DTYPES, DecoderWeights, LayerWeights, load_decoder
from pagoda.sizing.device_policy import GPUPolicy
from pagoda.sizing.gpu_memory import GPUUsage
from pagoda.sizing.held_weights import hold

_HOST_BYTES = 64 * 2**20
"""Memory of the device that `--tiny` makes up."""


def open_backend(setting: Setting) -> Backend:
    """The GPU; or the same code on a CPU, with memory that is made up and without graphs."""
    if setting.is_gpu:
        return GPUBackend.open()
    policy = GPUPolicy("Triton's interpreter", _HOST_BYTES, (9, 0))
    return GPUBackend(setting.device, policy, HostMeter(), lambda: lambda launches: launches)


@dataclass(frozen=True, slots=True)
class HostMeter:
    """See `pagoda.engine.devices.gpu_meter.Meter`: nothing is ever taken."""

    def usage(self) -> GPUUsage:
        return GPUUsage(_HOST_BYTES, _HOST_BYTES, 0, 0)

    def start_peak(self) -> None:
        """Nothing to forget."""

    def peak_bytes(self) -> int:
        return 0

    def settle(self) -> None:
        gc.collect()


def random_model(setting: Setting, shape: Shape, dtype: str, max_model_len: int) -> Model:
    """A model of that shape, ready for `connect`."""
    backend = open_backend(setting)  # first of all: it sees what was there before
    weights = random_weights(shape, DTYPES[dtype], setting.generator(0))
    return Model(
        name=shape.name,
        tokenizer=stand_in_tokenizer(shape.spec.vocab_size),
        max_model_len=min(max_model_len, shape.spec.max_position_embeddings),
        loaded=backend.hold(shape.spec, weights, dtype),
        held=hold(DecoderParts.of(shape.spec, HUGGING_FACE_NAMES), dtype),
    )


def default_model(setting: Setting, dtype: str, max_model_len: int) -> Model:
    """SmolLM2 with its own weights and tokenizer; `--tiny` keeps the first layer alone."""
    backend = open_backend(setting)
    files = locate(None)
    spec = load_spec(files, max_model_len)
    if setting.tiny:
        spec = replace(spec, layers=spec.layers[:1])
        weights = _weights_of_some_layers(files, spec, dtype, setting.device)
    else:
        weights = load_weights(files, spec, dtype, None, setting.device)
    return Model(
        name=files.name,
        tokenizer=Tokenizer(files),
        max_model_len=max_model_len,
        loaded=backend.hold(spec, weights, dtype),
        held=hold(DecoderParts.of(spec, HUGGING_FACE_NAMES), dtype),
    )


def _weights_of_some_layers(
    files: ModelFiles, spec: DecoderSpec, dtype: str, device: torch.device
) -> DecoderWeights:
    """Those that `spec` has, of a file that has more: the others are not even read."""
    source = FORMATS[files.kind].source(files)
    names = weight_names(spec.architecture, files.kind, source.shapes)
    needed = {part.name for part in DecoderParts.of(spec, names).all}
    fewer = SimpleNamespace(
        shapes={name: shape for name, shape in source.shapes.items() if name in needed},
        spare=source.spare, read=source.read, stored=source.stored,
    )  # fmt: skip
    return load_decoder(spec, fewer, names, dtype, device=device)


def random_weights(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> DecoderWeights:
    """Normal numbers that keep every product's results near one.

    The embedding is small beside what the layers add: else a tied head would see little but the
    token that went in, and repeat it.
    """
    spec, device = shape.spec, generator.device

    def matrix(rows: int, columns: int) -> torch.Tensor:
        values = torch.empty(rows, columns, dtype=dtype, device=device)
        return values.normal_(std=columns**-0.5, generator=generator)

    def vector(field: str, width: int) -> torch.Tensor:
        values = torch.empty(width, dtype=dtype, device=device)
        mean = 1.0 - spec.norm.weight_offset if field.endswith("norm") else 0.0
        return values.normal_(mean=mean, std=0.1, generator=generator)

    def merged(field: str, parts: Parts) -> torch.Tensor | None:
        if not parts:
            return None
        rows = sum(part.shape[0] for part in parts)
        columns = parts[0].shape[1:]
        return matrix(rows, *columns) if columns else vector(field, rows)

    layers = [
        LayerWeights(**{field: merged(field, parts) for field, parts in layer.own.items()})
        for layer in DecoderParts.of(spec, HUGGING_FACE_NAMES).layers
    ]
    embedding = matrix(spec.vocab_size, spec.hidden_size)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=vector("final_norm", spec.hidden_size),
        lm_head=embedding
        if spec.tie_word_embeddings
        else matrix(spec.vocab_size, spec.hidden_size),
    )


def stand_in_tokenizer(vocab_size: int) -> Tokenizer:
    """A word for each number; no token ends an answer."""
    words = {f"w{number}": number for number in range(vocab_size)}
    backend = tokenizers.Tokenizer(WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    with tempfile.TemporaryDirectory() as directory:
        wrapped.save_pretrained(directory)
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        Path(directory, CONFIG_FILE).write_text(json.dumps(config))
        return Tokenizer(ModelFiles("directory", Path(directory), "stand-in"))
