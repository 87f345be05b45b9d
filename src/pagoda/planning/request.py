"""What a plan is asked for, checked at the door."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.cache.retention import parse_retention
from pagoda.cache.window import AttentionWindow
from pagoda.errors import InvalidOptionError, ModelError
from pagoda.models.config import ModelConfig
from pagoda.planning.planned_engine import PlannedEngine, planned_engine
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.held_weights import ACTIVATION_DTYPES
from pagoda.sizing.quantised_weights import QUANTIZATIONS

_OWN_RETENTION = "is Pagoda's own: --engine pagoda; vLLM keeps every token that a layer sees"
_LEAST_MEMORY = 2**20
"""Bytes; a number below it was meant in another unit."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as the planner gets to see it."""

    name: str
    source: str
    """Where its shape was read."""
    config: ModelConfig
    parameters: int | None = None
    """All of them where that is known; None: counted from the config."""
    files_bytes: int | None = None
    """Size of the checkpoint, where it is known and does not follow from the dtype."""
    stored_as: str | None = None
    """What the file calls its numbers, where the config does not say: Q4_K_M."""
    refused_by_pagoda: ModelError | None = None
    """What Pagoda's engine says of a file that it does not run, where the config cannot tell."""
    tensor_types: Mapping[str, str] | None = None
    """The type of each tensor that is quantised; None: there are no files to tell."""
    kind: str = "directory"
    """Of its files: directory or gguf."""

    @classmethod
    def of_row(cls, hub_id: str, row: Mapping[str, Any]) -> ModelFacts:
        """The facts of a row of the built-in table."""
        return cls(
            hub_id, row["source"], ModelConfig(row["config"]), row["parameters"],
            row.get("weights_bytes"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Options of a plan; None means that nothing was said."""

    engine: str = "vllm"
    """vllm, vllm@0.19.1 or pagoda."""
    gpu: str | None = None
    memory: int | None = None
    """Bytes of one device, in place of a GPU's."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    dtype: str = "auto"
    quantization: str | None = None
    activation_dtype: str = "auto"
    """int8: Pagoda on CPUs rounds what stored weights are multiplied with."""
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: Sequence[int | str] | None = None
    """Layers whose cache keeps the dtype of the weights: numbers, ranges, sliding_window."""
    kv_retention: str = "full"
    """What stays of every request in Pagoda's cache."""
    request_kv_retention: bool = False
    """Requests may ask Pagoda for a retention of their own."""
    mamba_ssm_cache_dtype: str | None = None
    mamba_cache_mode: str | None = None
    """none, align or all: how states serve prefix sharing; None: as the release does it."""
    mamba_block_size: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enforce_eager: bool = False
    """Without CUDA graphs."""
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    context: int | None = None
    """Tokens that a user's request really has; None: max_model_len."""
    users: int | None = None
    """Requests at once that are to fit."""
    shared_prefix: int = 0
    """Tokens at the beginning of every request that are the same."""
    price: float | None = None
    """What one device costs for an hour, in whatever currency."""
    tier: Sequence[str] | None = None
    """Where blocks may lie beside the pool: nvme, s3, disk:bandwidth=3GB/s,latency=0.1ms …"""
    prefill_rate: float | None = None
    """Tokens of a prompt that are computed in a second; None: as many as the device can at best."""

    def __post_init__(self) -> None:
        for name in (
            "memory", "tensor_parallel_size", "pipeline_parallel_size", "max_model_len",
            "block_size", "mamba_block_size", "kv_cache_memory_bytes", "num_gpu_blocks_override",
            "max_num_batched_tokens", "max_num_seqs", "context", "users",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidOptionError(name, value, "must be at least 1")
        if self.memory is not None and self.memory < _LEAST_MEMORY:
            limit = f"is less than any device has: with a unit it would be {self.memory}GiB"
            raise InvalidOptionError("memory", self.memory, limit)
        if self.shared_prefix < 0:
            raise InvalidOptionError("shared_prefix", self.shared_prefix, "must be at least 0")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            limit = "must be a number above 0 and at most 1"
            raise InvalidOptionError("gpu_memory_utilization", share, limit)
        if self.price is not None and not (math.isfinite(self.price) and self.price >= 0):
            raise InvalidOptionError("price", self.price, "must be a number of at least 0")
        rate = self.prefill_rate
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise InvalidOptionError("prefill_rate", rate, "must be tokens a second, above 0")
        parse_retention(self.kv_retention)
        self._refuse_contradictions()

    @property
    def planned_engine(self) -> PlannedEngine:
        """Which engine it asks about."""
        return planned_engine(self.engine)

    @property
    def num_devices(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def cache_size(self) -> CacheSize:
        """What it says of the size of the cache."""
        return CacheSize(
            self.num_gpu_blocks_override, self.kv_cache_memory_bytes, self.gpu_memory_utilization
        )

    @property
    def retention(self) -> AttentionWindow:
        """What stays of every request."""
        return parse_retention(self.kv_retention)

    @property
    def states_cache(self) -> bool:
        """Whether it says how large the cache is, and leaves nothing to what memory is free."""
        return self.cache_size.is_stated

    def _refuse_contradictions(self) -> None:
        is_pagoda = self.planned_engine.is_pagoda
        pairs: tuple[tuple[bool, str, object, str], ...] = (
            (
                self.gpu is not None and self.memory is not None,
                "memory", self.memory, f"the GPU {self.gpu} is named as well: give one of the two",
            ),
            (
                is_pagoda and self.tensor_parallel_size > 1,
                "tensor_parallel_size", self.tensor_parallel_size, "Pagoda runs on one device",
            ),
            (
                is_pagoda and self.pipeline_parallel_size > 1,
                "pipeline_parallel_size", self.pipeline_parallel_size, "Pagoda runs on one device",
            ),
            (
                is_pagoda and self.quantization not in (None, *QUANTIZATIONS),
                "quantization", self.quantization,
                f"one of {', '.join(QUANTIZATIONS)} for Pagoda",
            ),
            (
                self.activation_dtype not in ACTIVATION_DTYPES,
                "activation_dtype", self.activation_dtype,
                f"one of {', '.join(ACTIVATION_DTYPES)}",
            ),
            (
                not is_pagoda and self.activation_dtype != "auto",
                "activation_dtype", self.activation_dtype, "is for Pagoda: --engine pagoda",
            ),
            (
                not is_pagoda and not self.retention.is_full,
                "kv_retention", self.kv_retention, _OWN_RETENTION,
            ),
            (
                not is_pagoda and self.request_kv_retention,
                "request_kv_retention", self.request_kv_retention, _OWN_RETENTION,
            ),
        )  # fmt: skip
        for contradicts, name, value, limit in pairs:
            if contradicts:
                raise InvalidOptionError(name, value, limit)
