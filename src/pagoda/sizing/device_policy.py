"""What Pagoda takes of a device, and how it runs there where options leave it open.

The engine and the planner ask the same policies, so that a plan tells what the engine will do:

    CPU    cache = a share of the memory that is free once the weights are loaded
    GPU    cache = share of the device − weights − what else the engine takes, see `gpu_memory`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

from pagoda.cache.formats import CODED_FORMATS, INT8_LATENTS, UNCALIBRATED_FORMATS
from pagoda.cache.layer import CachedLayer
from pagoda.cache.window import AttentionWindow
from pagoda.errors import InvalidOptionError
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.capacity import share_of_free
from pagoda.sizing.gpu_memory import MemoryProfile
from pagoda.sizing.quantised_weights import RECIPES
from pagoda.sizing.step_limits import CPU_LIMITS, StepLimits, gpu_limits

DEFAULT_BLOCK_SIZE = 16
"""Tokens per block."""
DEFAULT_UTILIZATION = 0.92
"""The share of a GPU that the engine takes in all."""
QUANTISED_DTYPE = "bfloat16"
"""The dtype that quantised weights are decoded to."""

_LEAST_CAPABILITY = (8, 0)
"""NVIDIA's first generation that the kernels fit: before it programs have 64 KiB of shared memory,
and its matrix units no bfloat16."""


class DevicePolicy(Protocol):
    """What holds for one kind of device, or for one device."""

    @property
    def kind(self) -> str:
        """As the lines of the log call it: CPU or GPU."""
        ...

    @property
    def default_limits(self) -> StepLimits:
        """The largest step where options do not say so."""
        ...

    @property
    def streams_step_aside(self) -> bool:
        """A step of streams and a prompt takes about as long as one of each
        (`scheduling.precedence`)."""
        ...

    @property
    def lets_latents_go(self) -> bool:
        """Of latents a window may stay."""
        ...

    @property
    def reads_anywhere(self) -> bool:
        """A number may lie at any address, not at multiples of its size alone."""
        ...

    @property
    def group_bytes(self) -> int:
        """Of plain numbers of a cache that lie together, those of neighbouring tokens among them;
        0: each lies by itself."""
        ...

    @property
    def packs_blocks(self) -> bool:
        """Blocks may lie in a lossy form on tiers."""
        ...

    def cache_formats(self, dtype: str) -> tuple[str, ...]:
        """What the cache can be stored in there, beside weights and activations of a dtype."""
        ...

    def under_way_tokens(self, max_num_batched_tokens: int, block_size: int) -> int:
        """Tokens of a sequence that steps compute while their blocks cannot be let go."""
        ...

    def require_dtype(self, asked: str) -> None:
        """Raises `InvalidOptionError` for one that the device does not compute in; auto is none."""
        ...

    def require_quantization(self, asked: str | None, dtype: str) -> None:
        """Raises `InvalidOptionError` where weights are not quantised so beside that dtype."""
        ...

    def dtype(self, asked: str, own: str, quantization: str | None = None) -> str:
        """The dtype of weights and cache, `own` being the checkpoint's. Raises likewise."""
        ...

    def keeps_stored(self, dtype: str, quantization: str | None) -> bool:
        """Whether matrices keep quantised types (`kept_weights`), `dtype` being that of all else;
        `quantization` none undoes it."""
        ...


@dataclass(frozen=True, slots=True)
class CPUPolicy:
    """For a machine's CPUs; see `DevicePolicy`."""

    kind: ClassVar[str] = "CPU"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    """CPUs multiply float16 matrices an order of magnitude slower than bfloat16 ones."""
    streams_step_aside: ClassVar[bool] = True
    lets_latents_go: ClassVar[bool] = True
    reads_anywhere: ClassVar[bool] = True
    group_bytes: ClassVar[int] = 4
    """See `storage.cpu_storage`."""
    packs_blocks: ClassVar[bool] = True
    in_place_of: ClassVar[Mapping[str, str]] = MappingProxyType({"float16": "bfloat16"})

    @property
    def default_limits(self) -> StepLimits:
        """Small steps."""
        return CPU_LIMITS

    def cache_formats(self, dtype: str) -> tuple[str, ...]:
        """Any dtype of CPUs, and codes; fp8 is of keys and values or of latents."""
        return (*self.dtypes, *CODED_FORMATS, INT8_LATENTS)

    def under_way_tokens(self, max_num_batched_tokens: int, block_size: int) -> int:
        """Those of a step; a block that is copied is held twice for a moment."""
        return max(max_num_batched_tokens, block_size)

    def require_dtype(self, asked: str) -> None:
        """Refuses float16."""
        _require_one_of(asked, self.dtypes, self.kind)

    def require_quantization(self, asked: str | None, dtype: str) -> None:
        """Refuses another dtype beside a quantised type."""
        if asked in RECIPES and dtype not in ("auto", QUANTISED_DTYPE):
            limit = f"takes {QUANTISED_DTYPE} for all else: leave --dtype {dtype} out, or this"
            raise InvalidOptionError("quantization", asked, limit)

    def dtype(self, asked: str, own: str, quantization: str | None = None) -> str:
        """The checkpoint's, but bfloat16 in place of float16 and beside quantised types."""
        self.require_dtype(asked)
        self.require_quantization(quantization, asked)
        if asked != "auto":
            return asked
        return QUANTISED_DTYPE if quantization in RECIPES else self.in_place_of.get(own, own)

    def keeps_stored(self, dtype: str, quantization: str | None) -> bool:
        """In bfloat16: kernels decode them to no other."""
        return dtype == QUANTISED_DTYPE and quantization != "none"

    def available_bytes(
        self, asked: CacheSize, free_bytes: int, block_bytes: int, blocks_of_longest: int
    ) -> int:
        """Memory for a cache of such blocks, of what is free now that the weights are loaded.

        `blocks_of_longest` are those of one request of the longest length.
        """
        stated = asked.stated_bytes(block_bytes)
        if stated is not None:
            return stated
        longest = blocks_of_longest * block_bytes
        return share_of_free(free_bytes, asked.gpu_memory_utilization, longest)


@dataclass(frozen=True, slots=True)
class GPUPolicy:
    """For one GPU; see `DevicePolicy`."""

    kind: ClassVar[str] = "GPU"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    streams_step_aside: ClassVar[bool] = False
    lets_latents_go: ClassVar[bool] = False
    """Kernels that meet latents have no windows."""
    reads_anywhere: ClassVar[bool] = False
    group_bytes: ClassVar[int] = 0
    packs_blocks: ClassVar[bool] = False
    """Forms know blocks as a CPU's cache lays them out."""

    name: str
    memory_bytes: int
    """All of it, as its driver tells."""
    capability: tuple[int, int] | None
    """NVIDIA's compute capability; None on AMD's."""

    def under_way_tokens(self, max_num_batched_tokens: int, block_size: int) -> int:
        """Those of two steps, since one is decided while another runs."""
        return 2 * max(max_num_batched_tokens, block_size)

    @property
    def default_limits(self) -> StepLimits:
        """vLLM's for a device of this size."""
        return gpu_limits(self.memory_bytes, self.name)

    def cache_formats(self, dtype: str) -> tuple[str, ...]:
        """The same dtype, and codes; codecs are calibrated on CPUs alone."""
        return (dtype, *UNCALIBRATED_FORMATS, INT8_LATENTS)

    @property
    def obstacle(self) -> str | None:
        """Why the kernels do not fit the device; None if they do."""
        if self.capability is None or self.capability >= _LEAST_CAPABILITY:
            return None
        major, minor = self.capability
        return (
            f"the {self.name} has compute capability {major}.{minor}, and the kernels take 8.0 or "
            "newer"
        )

    def require_dtype(self, asked: str) -> None:
        """Refuses none that an engine knows."""
        _require_one_of(asked, self.dtypes, self.kind)

    def require_quantization(self, asked: str | None, dtype: str) -> None:
        """Refuses all: weights are de-quantised here."""
        if asked in RECIPES:
            limit = "weights are quantised on CPUs alone: --device cpu, or leave it out on a GPU"
            raise InvalidOptionError("quantization", asked, limit)

    def dtype(self, asked: str, own: str, quantization: str | None = None) -> str:
        """The checkpoint's where nothing is said."""
        self.require_dtype(asked)
        self.require_quantization(quantization, asked)
        return own if asked == "auto" else asked

    def keeps_stored(self, dtype: str, quantization: str | None) -> bool:
        """Never: they are de-quantised when they are loaded."""
        return False

    def utilization(self, asked: CacheSize) -> float:
        """The share of the device that the engine takes in all."""
        return asked.gpu_memory_utilization or DEFAULT_UTILIZATION

    def available_bytes(self, asked: CacheSize, profile: MemoryProfile) -> int:
        """Memory for a cache whose size is not stated: what is left of the engine's share."""
        return profile.available_bytes(self.utilization(asked))


def under_way_tokens(
    policy: DevicePolicy, max_num_batched_tokens: int, block_size: int, *, requests_choose: bool
) -> int:
    """The policy's tokens under way; a block more where requests choose what of them stays.

    As few tokens as a layer's own window, of which some are sinks, may be one block more.
    """
    own = policy.under_way_tokens(max_num_batched_tokens, block_size)
    return own + block_size if requests_choose else own


def require_kept_latents(
    policy: DevicePolicy,
    layers: Iterable[CachedLayer],
    retention: AttentionWindow,
    *,
    requests_choose: bool,
) -> None:
    """Raises `InvalidOptionError` where not all latents of `layers` would stay and the device's
    kernels take no fewer."""
    if policy.lets_latents_go or all(layer.latents is None for layer in layers):
        return
    limit = f"on a {policy.kind} a model of latent attention keeps every token"
    if not retention.is_full:
        raise InvalidOptionError("kv_retention", str(retention), f"full: {limit}")
    if requests_choose:
        raise InvalidOptionError("request_kv_retention", True, f"false: {limit}")


def _require_one_of(asked: str, dtypes: tuple[str, ...], kind: str) -> None:
    if asked not in ("auto", *dtypes):
        raise InvalidOptionError("dtype", asked, f"one of auto, {', '.join(dtypes)} on a {kind}")
