"""How near decoding comes to what memory can deliver.

Every step reads the weights once, and the K and V of all sequences in it:

    bytes a second  ≥  steps × (weights + K and V of the blocks held) / working time

Blocks that several sequences share are read by each and held once, hence "at least".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda.doctor.diagnosis import Answer, Evidence
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.window import Window
from pagoda.doctor.wording import gigabytes, percent
from pagoda.errors import InvalidOptionError

_NEAR, _FAR = 0.6, 0.35
"""Shares of the bandwidth from which on software has little left to win, and below which it has."""
_IMPOSSIBLE = 1.1
_MEANINGS = {
    "near": "little is left for software; fewer bytes or faster memory help",
    "between": "some is left for software",
    "far": "much of the time goes into something other than reading",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of the model and the memory it is read from; None for what is not.

    Raises `InvalidOptionError` for a figure that is not above 0.
    """

    weight_bytes: int | None = None
    """One replica's weights, which each step reads."""
    kv_token_bytes: float | None = None
    """K and V that a step reads for each token that a held block has room for, over all
    accelerators of a replica: where layers take blocks of their own, less than a token's in all."""
    bandwidth: float | None = None
    """Bytes a second of the memory of one accelerator, or of the processor."""
    num_accelerators: int = 1
    """Accelerators that a replica is spread over."""
    intensity: float | None = None
    """Operations that it multiplies for each byte that it reads, at its best."""

    def __post_init__(self) -> None:
        if self.num_accelerators < 1:
            limit = "must be at least 1"
            raise InvalidOptionError("tensor_parallel_size", self.num_accelerators, limit)
        for name in ("weight_bytes", "kv_token_bytes", "bandwidth", "intensity"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidOptionError(name, value, "must be above 0")


@dataclass(frozen=True, slots=True)
class Reading:
    """What the steps read."""

    bytes_per_s: float
    weight_bytes: float
    """A step,"""
    kv_bytes: float
    """… and K and V a step."""

    @property
    def kv_share(self) -> float:
        return self.kv_bytes / (self.kv_bytes + self.weight_bytes)


def reading_of(traffic: Traffic, cache: Cache, machine: Machine, replicas: int) -> Reading | None:
    """What one replica's steps read at least; None where something for it is not known."""
    if machine.weight_bytes is None or traffic.steps is None or traffic.busy_s <= 0:
        return None
    kv_bytes = 0.0
    sizes = (machine.kv_token_bytes, cache.num_blocks, cache.block_size)
    if None not in sizes and cache.usage is not None:
        kv_bytes = cache.usage.mean * math.prod(size or 0 for size in sizes) / replicas
    step_bytes = machine.weight_bytes + kv_bytes
    rate = traffic.steps.count / replicas * step_bytes / traffic.busy_s
    return Reading(rate, machine.weight_bytes, kv_bytes)


def bandwidth(
    window: Window, traffic: Traffic, cache: Cache, machine: Machine, is_decode: bool
) -> Answer:
    """The share of the memory's bandwidth that decoding uses."""
    if not is_decode:
        summary = "Decoding does not bound the engine, so this is not the question."
        return Answer("bandwidth", "not_asked", summary, "high")
    if traffic.steps is None:
        summary = f"Not known: the engine has no {window.engine}:iteration_tokens_total."
        return Answer("bandwidth", "unknown", summary, "high")
    rate, evidence = _rate(window, traffic, cache, machine)
    if not rate or machine.bandwidth is None:
        return _unknown(rate, machine, evidence)
    deliverable = machine.bandwidth * machine.num_accelerators
    share = rate / deliverable
    meaning = "that the memory can deliver"
    evidence = (*evidence, Evidence("--bandwidth", deliverable, "bytes/s", meaning))
    if share > _IMPOSSIBLE:
        summary = (
            f"The steps would read {gigabytes(rate)} a second, more than the memory's "
            f"{gigabytes(deliverable)}: the model or the bandwidth is not what was named."
        )
        return Answer("bandwidth", "contradiction", summary, "high", evidence)
    verdict = "near" if share >= _NEAR else "far" if share < _FAR else "between"
    summary = (
        f"Decoding reads at least {gigabytes(rate)} a second, {percent(share)} of the memory's "
        f"{gigabytes(deliverable)}: {_MEANINGS[verdict]}."
    )
    return Answer("bandwidth", verdict, summary, "medium", evidence)


def _rate(
    window: Window, traffic: Traffic, cache: Cache, machine: Machine
) -> tuple[float, tuple[Evidence, ...]]:
    """Bytes a second that a replica reads, and where that is from; 0 where it cannot be told."""
    replicas = max(len(window.engines), 1)
    told = window.increase("estimated_read_bytes_per_gpu_total") or 0.0
    if told > 0 and traffic.busy_s > 0:
        rate = told * machine.num_accelerators / replicas / traffic.busy_s
        name = f"{window.engine}:estimated_read_bytes_per_gpu_total"
        return rate, (_read(name, rate, "by a replica, as the engine estimates"),)
    reading = reading_of(traffic, cache, machine, replicas)
    if reading is None:
        return 0.0, ()
    name = f"{window.engine}:iteration_tokens_total_count"
    held = f"{window.engine}:kv_cache_usage_perc"
    return reading.bytes_per_s, (
        _read(name, reading.bytes_per_s, "by the steps, at least"),
        Evidence("--model", reading.weight_bytes, "bytes", "of weights a step"),
        Evidence(held, reading.kv_bytes, "bytes", "of K and V a step, in the mean"),
    )


def _read(metric: str, rate: float, by_whom: str) -> Evidence:
    return Evidence(metric, rate, "bytes/s", f"read {by_whom}")


def _unknown(rate: float, machine: Machine, evidence: tuple[Evidence, ...]) -> Answer:
    wanted = []
    if machine.weight_bytes is None:
        wanted.append("the model (--model, or --weight-bytes)")
    if machine.bandwidth is None:
        wanted.append("the memory's speed (--bandwidth or --gpu)")
    so_far = f"Decoding reads at least {gigabytes(rate)} a second. " if rate else ""
    summary = f"{so_far}Not known how near that is: name {' and '.join(wanted)}."
    return Answer("bandwidth", "unknown", summary, "high", evidence)
