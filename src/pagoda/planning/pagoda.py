"""Pagoda's own memory, by the policy that its engine goes by (`pagoda.sizing.device_policy`).

On a GPU the engine measures what a step, its CUDA graphs and the runtime take, and gives the cache
what is left of its share. The plan counts what follows from shapes, which is what the engine
allocates, and tells the rest as ranges:

    activations   the workspace and a copy of the logits to draw from          counted, the least
                  tables of angles                                             counted
                  tables of blocks, what the sampler works on                  the most
    runtime       kernels, libraries                                           a range
    CUDA graphs   what the driver takes for them                               a range
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from pagoda.cache.layer import CachedLayer
from pagoda.cache.layers import OwnLayerSpec
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import InvalidOptionError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import Architecture
from pagoda.planning.groups import GroupedPool
from pagoda.planning.memory import MemoryPart, StageMemory, part_of
from pagoda.planning.quantization import plain
from pagoda.planning.releases import Range
from pagoda.planning.tables import Accelerator
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.capacity import GIB
from pagoda.sizing.device_policy import CPUPolicy, DevicePolicy, GPUPolicy
from pagoda.sizing.gpu_memory import MemoryProfile
from pagoda.sizing.gpu_step import (
    FLOAT32_BYTES,
    LargestStep,
    ModelShape,
    WorkspaceSize,
    layer_shape,
)
from pagoda.sizing.graph_sizes import MOST_SEQUENCES
from pagoda.sizing.step_limits import MAX_PROMPT_LOGIT_ROWS, StepLimits

_MIB = 2**20
_BLOCK_ID_BYTES = 4
GRAPH_TABLES = 2 * MOST_SEQUENCES
"""Rows of block tables that CUDA graphs read: each sequence's as it came, and spread."""
SAMPLER_BYTES = GIB
"""What the sampler's tiles, cuBLAS and the inputs of a step may take at most."""

PROCESS = Range(300 * _MIB, 1500 * _MIB, "the process, the tensors of a step, tables of angles")
"""What Pagoda takes on CPUs beside weights and cache, the tables, which are counted, left out."""
RUNTIME = Range(0, 700 * _MIB, "kernels and libraries; the engine measures it")
GRAPHS = Range(0, int(2.5 * GIB), "the engine measures it; none with --enforce-eager")
NO_GRAPHS = Range(0, 0, "none with --enforce-eager")
STEP_SOURCE = (
    "the step's workspace and tables of angles, exactly; at most the sampler's tiles and tables of "
    "blocks more"
)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What the memory of a step follows from."""

    config: ModelConfig
    model: Architecture
    limits: StepLimits
    dtype: str
    max_model_len: int
    block_size: int
    enforce_eager: bool
    retention: AttentionWindow = FULL_ATTENTION
    """What stays of a request."""
    requests_choose: bool = False
    """Requests may keep less, so all layers may see sinks."""
    num_groups: int = 1
    """Of layers, each with tables of its own."""


class PagodaDevice(Protocol):
    """What Pagoda takes of a device, as its engine would."""

    @property
    def policy(self) -> DevicePolicy: ...

    def share(self, asked: CacheSize) -> float:
        """The part of the device's memory that the engine lets itself have, 0 to 1."""
        ...

    def parts(self, step: StepFacts) -> tuple[MemoryPart, ...]:
        """What it takes beside weights and cache."""
        ...

    def cache_bytes(
        self, stage: StageMemory, asked: CacheSize, pool: GroupedPool, max_model_len: int,
        *, least: bool,
    ) -> int:  # fmt: skip
        """Memory for a cache whose size is not stated, all else taking most (`least`) or least."""
        ...


@dataclass(frozen=True, slots=True)
class PagodaOnCPU:
    """See `PagodaDevice`."""

    policy: CPUPolicy

    def share(self, asked: CacheSize) -> float:
        """All of it: utilization is a share of what is free."""
        return 1.0

    def parts(self, step: StepFacts) -> tuple[MemoryPart, ...]:
        """The process and its tables."""
        angles = angle_bytes(step)
        process = Range(PROCESS.low + angles, PROCESS.high + angles, PROCESS.source)
        return (part_of("runtime", process),)

    def cache_bytes(
        self, stage: StageMemory, asked: CacheSize, pool: GroupedPool, max_model_len: int,
        *, least: bool,
    ) -> int:  # fmt: skip
        """A share of what is free beside the weights and the process."""
        free = max(0, stage.cache_low if least else stage.cache_high)
        longest = pool.num_blocks(max_model_len)
        return self.policy.available_bytes(asked, free, pool.block_bytes, longest)


@dataclass(frozen=True, slots=True)
class PagodaOnGPU:
    """See `PagodaDevice`."""

    policy: GPUPolicy
    part_names: ClassVar[tuple[str, ...]] = ("activations", "runtime", "CUDA graphs")

    def share(self, asked: CacheSize) -> float:
        """As the engine."""
        return self.policy.utilization(asked)

    def parts(self, step: StepFacts) -> tuple[MemoryPart, ...]:
        """What the engine measures at its start."""
        ranges = (step_range(step), RUNTIME, NO_GRAPHS if step.enforce_eager else GRAPHS)
        return tuple(map(part_of, self.part_names, ranges))

    def cache_bytes(
        self, stage: StageMemory, asked: CacheSize, pool: GroupedPool, max_model_len: int,
        *, least: bool,
    ) -> int:  # fmt: skip
        """By the engine's formula."""
        return self.policy.available_bytes(asked, profile_of(stage, least=least))


def pagoda_device(device: Accelerator | None) -> PagodaDevice:
    """How Pagoda runs on `device`; None: on a machine's CPUs.

    Raises `InvalidOptionError` for one that it does not run on.
    """
    if device is None or device.is_cpu:
        return PagodaOnCPU(CPUPolicy())
    if device.vendor not in ("nvidia", "amd"):
        limit = "Pagoda runs on CPUs, and on GPUs of NVIDIA and AMD"
        raise InvalidOptionError("gpu", device.name, limit)
    policy = GPUPolicy(device.name, device.memory_bytes, device.capability)
    if policy.obstacle is not None:
        raise InvalidOptionError("gpu", device.name, policy.obstacle)
    return PagodaOnGPU(policy)


def profile_of(stage: StageMemory, *, least: bool) -> MemoryProfile:
    """What an engine would measure, all beside the cache taking most (`least`) or least."""
    taken = {part.name: part.high if least else part.low for part in stage.parts}
    return MemoryProfile(
        total_bytes=stage.total_bytes,
        weights_bytes=taken["weights"],
        others_bytes=0,
        peak_bytes=taken["activations"],
        graphs_bytes=taken["CUDA graphs"],
        outside_bytes=taken["runtime"],
    )


def step_range(step: StepFacts) -> Range:
    """Bytes of the largest step and its sampling, and of what lies beside it for all steps."""
    least = step_bytes(step) + angle_bytes(step)
    most = least + table_bytes(step) + SAMPLER_BYTES
    return Range(least, most, STEP_SOURCE)


def step_bytes(step: StepFacts) -> int:
    """Bytes that the largest step certainly takes: the workspace, and the logits drawn from."""
    shape = _shape(step)
    workspace = WorkspaceSize(shape, LargestStep.of(step.limits, MAX_PROMPT_LOGIT_ROWS))
    num_drawn = min(step.limits)
    return workspace.size_bytes + num_drawn * shape.vocab_size * FLOAT32_BYTES


def table_bytes(step: StepFacts) -> int:
    """Bytes of block tables, for graphs and for all else."""
    num_blocks = -(-step.max_model_len // step.block_size)
    num_tables = (step.limits.max_num_seqs + GRAPH_TABLES) * step.num_groups
    return _BLOCK_ID_BYTES * num_tables * num_blocks


def angle_bytes(step: StepFacts) -> int:
    """Bytes of the tables of angles: of each position of the longest request."""
    assert step.model.decoder is not None  # Pagoda runs no other
    return step.model.decoder.angle_bytes(step.max_model_len)


def windowed(layer: CachedLayer) -> OwnLayerSpec:
    """The same: families that Pagoda runs have no other layers."""
    assert isinstance(layer, OwnLayerSpec)
    return layer


def _shape(step: StepFacts) -> ModelShape:
    decoder = step.model.decoder
    assert decoder is not None  # Pagoda runs no other
    cached = map(windowed, step.model.cached_layers)
    layers = dict.fromkeys(
        layer_shape(
            layer,
            sees_sinks=step.requests_choose or kept.window.narrowed(step.retention).sinks > 0,
        )
        for layer, kept in zip(decoder.layers, cached, strict=True)
    )
    number_bytes = int(plain(step.dtype).bits) // 8
    return ModelShape(decoder.hidden_size, decoder.vocab_size, tuple(layers), number_bytes)
