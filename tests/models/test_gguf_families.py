"""GGUF files of every covered architecture, against the models they were made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from gguf_cases import EVERY_CASE, STORED, stored_model
from gguf_files import ARCHITECTURES, write_gguf
from pagoda.execution.reference import reference_logits
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.gguf_architectures import GGUF_ARCHITECTURES
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.registry import decoder_spec

NUM_TOKENS = 96  # past every window, and past the length before an extension


def reference_spec(model: transformers.PreTrainedModel) -> DecoderSpec:
    """What the model's own config says."""
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return decoder_spec(ModelConfig({**config, "dtype": "float32"}), NUM_TOKENS)


def in_float32(value: Any) -> Any:
    """A spec as plain values, numbers with as many digits as a file has of them."""
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: in_float32(getattr(value, name)) for name in names}
    if type(value) is tuple:
        return [in_float32(item) for item in value]
    return np.float32(value).item() if type(value) is float else value


@pytest.mark.parametrize("name", STORED)
def test_a_file_gives_the_spec_and_the_logits_of_its_model(name: str, tmp_path: Path) -> None:
    model = stored_model(name)
    files = locate(str(write_gguf(tmp_path / "tiny.gguf", model)))
    spec = load_spec(files, NUM_TOKENS)
    assert in_float32(spec) == in_float32(reference_spec(model))
    token_ids = np.random.default_rng(3).integers(0, spec.vocab_size, NUM_TOKENS).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0]
    logits = reference_logits(spec, load_weights(files, spec, "float32"), token_ids)
    assert (logits - expected).abs().max() < 1e-4


def test_every_architecture_is_among_them() -> None:
    stored = {ARCHITECTURES[EVERY_CASE[name].family] for name in STORED}
    assert stored == set(GGUF_ARCHITECTURES)
