"""What an engine on a GPU refuses at once, and what of an engine before it is in its way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch
from fake_gpu import CARD, GIB, Card

from checkpoints import Case, write_checkpoint
from pagoda.engine import build
from pagoda.engine.build import load_model
from pagoda.engine.devices.gpu_backend import GPUBackend
from pagoda.engine.devices.gpu_meter import GPUMeter
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.registry import decoder_spec
from pagoda.models.weights import DecoderWeights

HEADS = {
    "many a group": ({"num_attention_heads": 32, "num_key_value_heads": 1, "head_dim": 16},
                     "num_key_value_heads=1: at least a sixteenth of the 32 heads on a GPU"),
    "long": ({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 320},
             "head_dim=320: 16 to 256 on a GPU"),
    "short": ({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
              "head_dim=8: 16 to 256 on a GPU"),
}  # fmt: skip
CACHE_BYTES = 12 * GIB
SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
}  # fmt: skip


@dataclass
class Allocator:
    """PyTorch's, on `CARD`: what is freed it keeps until it is told to give it back."""

    allocated: int = 0
    reserved: int = 0

    def take(self, size_bytes: int) -> None:
        self.allocated += size_bytes
        self.reserved = max(self.reserved, self.allocated)

    def free(self, size_bytes: int) -> None:
        self.allocated -= size_bytes

    def give_back(self) -> None:
        self.reserved = self.allocated


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    own, total = Allocator(), CARD.memory_bytes
    for name, answer in {
        "mem_get_info": lambda device: (total - own.reserved, total),
        "memory_reserved": lambda device: own.reserved,
        "memory_allocated": lambda device: own.allocated,
        "empty_cache": own.give_back,
        "synchronize": lambda device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return own


def opened() -> GPUBackend:
    """As a process's next engine begins."""
    device = torch.device("cuda", 0)
    return GPUBackend(device, CARD, GPUMeter(device), lambda: lambda launches: launches)


@pytest.mark.parametrize("name", HEADS)
def test_heads_without_a_kernel_are_refused_before_weights_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, refusal = HEADS[name]
    directory = write_checkpoint(tmp_path, Case("llama", config))

    def read(*args: object, **options: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr("pagoda.engine.devices.gpu_backend.load_weights", read)
    monkeypatch.setattr(build, "find_backend", lambda options: Card().backend())
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(EngineOptions(model=str(directory)))
    assert str(refused.value) == refusal


def test_what_an_engine_has_freed_is_free_for_the_next(allocator: Allocator) -> None:
    opened().prepare(EngineOptions())
    allocator.take(CARD.memory_bytes * 9 // 10)
    allocator.free(allocator.allocated)
    assert allocator.reserved > CARD.memory_bytes // 2  # PyTorch keeps it
    opened().prepare(EngineOptions())
    assert allocator.reserved == 0


def test_what_an_engine_still_has_is_not(allocator: Allocator) -> None:
    allocator.take(CARD.memory_bytes * 9 // 10)
    with pytest.raises(CapacityError) as refusal:
        opened().prepare(EngineOptions())
    assert refusal.value.field == "gpu_memory_utilization"
    assert "16.0 GiB only 1.6 GiB are free" in refusal.value.limit


def test_a_stated_cache_takes_what_was_freed_but_no_more(allocator: Allocator) -> None:
    options = EngineOptions(kv_cache_memory_bytes=CACHE_BYTES, max_model_len=64)
    spec = decoder_spec(ModelConfig(SMALL), 64)
    model = opened().hold(spec, cast("DecoderWeights", None), "float16")
    allocator.take(CACHE_BYTES)
    with pytest.raises(CapacityError) as refusal:
        model.size(options, 64)
    assert refusal.value.field == "kv_cache_memory_bytes"
    allocator.free(CACHE_BYTES)
    assert model.size(options, 64).capacity.available_bytes == CACHE_BYTES
