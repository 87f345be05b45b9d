"""What a plan answers: plain figures that text, JSON and HTML are made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pagoda.planning.memory import MemoryPart
from pagoda.planning.speed import SpeedBound
from pagoda.planning.tier_worth import TierWorth


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group of layers."""

    kind: str
    window: int | None
    """Tokens that it keeps of a request's last ones; None: every token, or something else."""
    sinks: int
    """Tokens that it keeps of the first ones beside a window."""
    num_layers: int
    block_size: int
    page_bytes: int
    """A layer's part of a block."""
    blocks_per_request: int
    """Blocks that a request of max_model_len takes."""


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """What a pool holds, for one amount of memory."""

    available_bytes: int
    num_blocks: int
    size_bytes: int
    num_tokens: int
    """As the engine prints it."""
    concurrency: float
    users: int
    """Requests of `context` tokens at once: what memory holds, up to max_num_seqs."""
    longest_context: int | None
    """Tokens of each of `users_wanted` requests, if so many are to fit; else of one; up to
    max_model_len. None: any length, where only states of fixed size are kept."""
    lines: tuple[str, ...]
    """What the engine prints for this amount of memory, word for word; nothing where it cannot hold
    one request of max_model_len: there the engine refuses to start."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What one change would give that the engine starts with."""

    name: str
    flags: str
    users_low: int
    users_high: int
    tokens_low: int
    tokens_high: int
    gain: float | None
    """Users at the upper end, over those of the plan; None where it has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answers."""

    model: str
    source: str
    model_type: str
    engine: str
    release: str
    """Whose rules were used."""
    gpu: str | None
    num_devices: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    kv_retention: str
    """What stays of every request at most."""
    block_size: int
    max_model_len: int
    context: int
    users_wanted: int | None
    shared_prefix: int
    parameters: int
    active_parameters: int
    """Without the experts not chosen, and tables that are looked up for every layer."""
    weights_bytes: int
    """The whole model, as stored."""
    layer_kinds: dict[str, int]
    """How many layers there are of each kind, over the whole model."""
    groups: tuple[GroupFigures, ...]
    block_bytes: int
    """Bytes of a block in the pool of the rank that holds fewest."""
    token_bytes: float
    """Added by a token to a long sequence, on one rank."""
    sequence_bytes: int
    """Blocks of one request of max_model_len, on one rank."""
    memory: tuple[MemoryPart, ...]
    """Uses of one device's memory, of the stage that holds fewest blocks: the cache last but for
    what utilization leaves alone, which there is only where the cache's memory is not stated."""
    device_bytes: int | None
    low: PoolFigures | None
    """Where everything else takes most; None: no memory was named."""
    high: PoolFigures | None
    is_exact: bool
    """Low and high are the same, and the lines are what will be printed."""
    speed: SpeedBound | None
    """None where no device is named, or a draft, with which a step may give several tokens."""
    cost_per_user: tuple[float, float] | None
    """An hour, at most and at least: for the users wanted, or as many of them as `low` and `high`
    hold."""
    cost_per_million_tokens: float | None
    """Price of a million tokens of output at the roofline: no engine is cheaper on this machine."""
    warnings: tuple[str, ...]
    refusals: tuple[str, ...]
    """Those of `warnings` that keep the engine from starting for certain."""
    tiers: tuple[TierWorth, ...] = ()
    """What each tier that was named is worth."""
    alternatives: tuple[Alternative, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, texts and lists; sizes in bytes, times in seconds."""
        return asdict(self)
