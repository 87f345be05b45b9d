"""From a device to an engine that runs on it, stage by stage; `build.py` wires any to the rooms.

    Backend  --prepare-->  Prepared  --load-->  Loaded  --size-->  Sized  --start-->  Running
    a device               options checked,     weights            cache's size       kernels and
                           memory free          in place           decided            sampler ready

Each stage exists once the one before it is done, so nothing can be asked for out of order. A stage
changes nothing in the one before: several engines may share what was loaded. Refusals are
`InvalidOptionError` unless another is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.options import EngineOptions
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.sampler import Sampler
from pagoda.models.decoder import DecoderSpec
from pagoda.models.locate import ModelFiles
from pagoda.models.weights import DecoderWeights, OnProgress
from pagoda.sizing.capacity import Capacity
from pagoda.sizing.device_policy import DevicePolicy
from pagoda.sizing.step_limits import StepLimits
from pagoda.storage.block_storage import BlockStorage
from pagoda.tiers.packing import Packing

if TYPE_CHECKING:  # an engine that nobody measures does without
    from pagoda.roofline import MachineLimits


class Backend(Protocol):
    """One device, open."""

    @property
    def policy(self) -> DevicePolicy:
        """What holds for it, as the planner says it too."""
        ...

    def prepare(self, options: EngineOptions) -> Prepared:
        """Refuse what this device cannot follow, before anything is loaded.

        Raises `CapacityError` where the memory that options ask for is not free.
        """
        ...

    def hold(self, spec: DecoderSpec, weights: DecoderWeights[Any], dtype: str) -> Loaded:
        """A model whose weights are on the device already, as `dtype`. Takes them over."""
        ...


class Prepared(Protocol):
    """A device that can do what the options ask for."""

    def load(self, files: ModelFiles, spec: DecoderSpec, on_load: OnProgress | None) -> Loaded:
        """The model's weights, where this device computes. Raises `ModelError`, `CapacityError`."""
        ...


class Weights(Protocol):
    """A decoder's weights where a device computes, as it wants them."""

    @property
    def dtype(self) -> torch.dtype:
        """Of all that does not stay as its file stores it."""
        ...

    @property
    def size_bytes(self) -> int: ...


class FormPacking(Packing, Protocol):
    """A lossy form of one cache's blocks."""

    @property
    def digest(self) -> str:
        """Of what was calibrated: what went through another is other numbers."""
        ...


class Loaded(Protocol):
    """A model whose weights are where a device computes; several engines may share it."""

    @property
    def backend(self) -> Backend:
        """The device."""
        ...

    @property
    def spec(self) -> DecoderSpec: ...

    @property
    def weights(self) -> Weights: ...

    @property
    def dtype(self) -> str:
        """The dtype of weights and cache."""
        ...

    def measure_limits(self, options: EngineOptions) -> MachineLimits:
        """What the device does at its best for such products; to be asked first before its memory
        is taken.

        Raises `CapacityError` where the memory that measuring takes is not free.
        """
        ...

    def packings(
        self, of_field: str, forms: Sequence[str], cache: CacheSpec, options: EngineOptions
    ) -> Sequence[FormPacking]:
        """What makes each of the lossy forms of this cache's blocks, calibrated for the model once
        for all of them. `require_lossy_form` and `require_runs` were asked about the cache before.

        Refuses a model that cannot be calibrated, in the name of the field.
        """
        ...

    def size(self, options: EngineOptions, max_model_len: int) -> Sized:
        """Decide how large the cache is, for requests of up to `max_model_len` tokens.

        Raises `CapacityError` if one of them does not fit, or if the device does not have the
        memory that the cache takes; that names the option that decided.
        """
        ...


class Sized(Protocol):
    """A model, and a cache of which nothing is allocated yet."""

    @property
    def capacity(self) -> Capacity[CacheSpec]: ...

    @property
    def limits(self) -> StepLimits:
        """What one step may take."""
        ...

    def start(self) -> Running:
        """Allocate the cache and make what runs steps, its kernels compiled.

        Raises `CapacityError` for memory that has gone since.
        """
        ...


@dataclass(frozen=True, slots=True)
class Running:
    """What runs the steps of one engine, ready for the first."""

    runner: Runner
    sampler: Sampler
    """For logits where the runner leaves them."""
    storage: BlockStorage
    """What the runner writes keys and values to and reads them from."""
    warm_up_draws: Callable[[], None]
    """Prepares what the first token that is drawn would wait for."""
    chores: Iterator[None]
    """Makes later steps faster; each turn takes a few milliseconds."""
    takes_all_cores: bool
    """Its steps compute on all the cores that this process may use."""
    numerics: Callable[[], str]
    """Tells all that what it computes depends on, to the last bit, beside the model."""
