"""What an engine needs of the device that it runs on; `build.py` wires the same rooms to any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.options import EngineOptions
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.sampler import Sampler
from pagoda.models.decoder import DecoderSpec
from pagoda.models.locate import ModelFiles
from pagoda.models.weights import DecoderWeights, OnProgress
from pagoda.roofline import MachineLimits
from pagoda.sizing.capacity import Capacity


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step, where options say so, and else what suits the device."""

    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A decoder whose weights are where a backend computes."""

    spec: DecoderSpec
    weights: DecoderWeights
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Machinery:
    """What runs the steps of one engine, ready for the first."""

    runner: Runner
    sampler: Sampler
    """For logits where the runner leaves them."""
    warm_up_draws: Callable[[], None]
    """Prepares what the first token that is drawn would wait for."""
    chores: Iterator[None]
    """Makes later steps faster; each turn takes a few milliseconds."""
    takes_all_cores: bool
    """Its steps compute on all the cores that this process may use."""


class Backend(Protocol):
    """One kind of device. Refusals are `InvalidOptionError` unless another is named."""

    kind: str
    """As the lines of the log call it: CPU or GPU."""

    def check(self, options: EngineOptions) -> None:
        """Refuse options that this device cannot follow."""
        ...

    def require_free_memory(self, options: EngineOptions) -> None:
        """Raises `CapacityError` where the memory that options ask for is not free at the start."""
        ...

    def dtype(self, options: EngineOptions, spec: DecoderSpec) -> str:
        """Of weights and cache; refuses one that the device does not compute in."""
        ...

    def load_weights(
        self, files: ModelFiles, spec: DecoderSpec, dtype: str, on_load: OnProgress | None
    ) -> DecoderWeights:
        """The model's weights, where this device computes. Raises `ModelError`, `CapacityError`."""
        ...

    def step_limits(self, options: EngineOptions) -> StepLimits:
        """What one step may take."""
        ...

    def available_bytes(self, model: PlacedModel, cache: CacheSpec, options: EngineOptions) -> int:
        """Memory for a KV cache of such blocks, now that the weights are loaded."""
        ...

    def require_memory(self, capacity: Capacity[CacheSpec], options: EngineOptions) -> None:
        """Raises `CapacityError` if the device does not have the memory that the cache takes.

        It names the option that decided the size.
        """
        ...

    def machinery(
        self, model: PlacedModel, capacity: Capacity[CacheSpec], options: EngineOptions
    ) -> Machinery:
        """Allocate the cache and make what runs steps, its kernels compiled."""
        ...

    def measure_limits(self, dtype: torch.dtype) -> MachineLimits:
        """What the device does at its best; to be asked first before its memory is taken.

        Raises `CapacityError` where the memory that measuring takes is not free.
        """
        ...
