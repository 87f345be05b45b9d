"""Executors for CPUs of small random decoders, and how one is run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import decoders
import torch
from decoders import Pager, random_weights, tokens

from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.models.decoder import DecoderSpec
from pagoda.storage.cpu_storage import CPUStorage

BLOCK_SIZE = 16
NUM_TOKENS = 300
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@cache
def panel_weights(spec: DecoderSpec, dtype: torch.dtype = torch.float32) -> PanelWeights:
    """Random ones, packed once: executors only read them."""
    return PanelWeights.take_over(random_weights(spec, dtype))


def make(
    spec: DecoderSpec,
    dtype: str = "float32",
    cache_dtype: str | Sequence[str] | None = None,
    num_blocks: int = 120,
    num_threads: int = 1,
) -> tuple[CPUExecutor, Pager]:
    """One with so many blocks for each group of layers, and who hands them out."""
    cache_spec = spec.cache_spec(BLOCK_SIZE, cache_dtype or dtype)
    num_blocks *= len(cache_spec.groups)
    storage = CPUStorage(cache_spec, num_blocks)
    weights = panel_weights(spec, DTYPES[dtype])
    executor = CPUExecutor(spec, weights, storage, 512, num_threads)
    return executor, Pager(BLOCK_SIZE, num_blocks, cache_spec.windows)


def run(
    spec: DecoderSpec,
    dtype: str,
    chunks: list[int],
    companions: int = 0,
    cache_dtype: str | Sequence[str] | None = None,
    num_threads: int = 1,
) -> torch.Tensor:
    """Logits of one sequence given in chunks, perhaps among others in chunks of their own."""
    executor, pager = make(spec, dtype, cache_dtype, num_threads=num_threads)
    others = [tokens(NUM_TOKENS, seed) for seed in range(1, companions + 1)]
    return decoders.run(executor, pager, tokens(NUM_TOKENS), chunks, others, pace=5)
