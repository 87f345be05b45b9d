"""Where a tier stops paying: what loading a prefix takes, against computing it.

    load      round trips × latency + bytes ÷ bandwidth        grows with the prefix, from a start
    compute   the floor of prefill, or tokens ÷ a rate         grows as much or more, from nothing

So from some length on loading is quicker, or it never is. Which, the engine's own gate says
(`pagoda.tiers.gate`). A floor is the least time: an engine computes slower, and shorter prefixes
pay; what it really does, `prefill_rate` says.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from pagoda.errors import InvalidOptionError
from pagoda.planning.speed import prefill_seconds
from pagoda.planning.subject import Subject
from pagoda.planning.tier_link import FIELD, HOST, TierLink, parse_tier_link
from pagoda.tiers.gate import leading_worth_loading

_NO_RATE = "is compared with computing: name --gpu, or say --prefill-rate"


@dataclass(frozen=True, slots=True)
class TierWorth:
    """What one tier is worth to a model on a machine."""

    name: str
    kind: str
    bandwidth: float
    """Bytes a second."""
    latency_s: float
    requests_at_once: int | None
    source: str
    """Of these figures."""
    token_bytes: float
    """Moved for a token of the context, to all devices."""
    context: int
    load_s: float
    """What loading a prefix of `context` tokens takes."""
    compute_s: float
    """What computing it takes, at least or by the rate that was given."""
    is_floor: bool
    """At least; an engine takes longer."""
    is_worth: bool
    """Loading all of it is quicker."""
    shortest_tokens: int | None
    """The shortest prefix, of whole blocks, whose loading is quicker; None: none is."""
    longest_tokens: int
    """As long as requests may be: longer prefixes are not looked at."""
    least_bandwidth: float
    """Bytes a second, of all devices, as quickly as a prefix of `context` tokens is computed: a
    tier has to have more."""
    buys_nothing: bool
    """It is in the memory that is computed in, so that a copy there is one more of the same."""


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What the gate is offered."""

    num_rows: int
    seconds: float | None


def tier_worths(subject: Subject) -> tuple[TierWorth, ...]:
    """Of each tier that the request names. Raises `InvalidOptionError` for one that cannot be, and
    where nothing tells how long computing takes."""
    links = [parse_tier_link(text) for text in subject.request.tier or ()]
    if links and subject.device is None and subject.request.prefill_rate is None:
        raise InvalidOptionError(FIELD, links[0].name, _NO_RATE)
    return tuple(_Comparison(subject, link).worth() for link in links)


class _Comparison:
    """One tier and one subject, by the number of tokens."""

    def __init__(self, subject: Subject, link: TierLink) -> None:
        self._subject = subject
        self._link = link
        self._block_size = subject.pool.block_size

    def worth(self) -> TierWorth:
        context, link = self._subject.context, self._link
        num_bytes = self._num_frames(context) * self._frame_bytes
        compute_s = self._compute_s(context)
        buys_nothing = link.kind == HOST and self._has_one_memory
        return TierWorth(
            name=link.name,
            kind=link.kind,
            bandwidth=link.bandwidth,
            latency_s=link.latency_s,
            requests_at_once=link.requests_at_once,
            source=link.source,
            token_bytes=num_bytes / context,
            context=context,
            load_s=self._load_s(context),
            compute_s=compute_s,
            is_floor=self._subject.request.prefill_rate is None,
            is_worth=not buys_nothing and self._takes(-(-context // self._block_size)),
            shortest_tokens=None if buys_nothing else self._shortest(),
            longest_tokens=self._subject.max_model_len,
            least_bandwidth=num_bytes / compute_s,
            buys_nothing=buys_nothing,
        )

    @property
    def _has_one_memory(self) -> bool:
        device = self._subject.device
        return self._subject.on_cpu or (device is not None and device.shares_memory)

    def _shortest(self) -> int | None:
        """Found by halving: where loading is quicker, it is so for whatever is longer."""
        most = max(1, self._subject.max_model_len // self._block_size)
        num_rows = 1 + bisect_left(range(1, most + 1), True, key=self._takes)
        return None if num_rows > most else num_rows * self._block_size

    def _takes(self, num_rows: int) -> bool:
        """The gate lets a prefix of so many blocks through."""
        num_tokens = num_rows * self._block_size
        offer = _Prefix(num_rows, self._load_s(num_tokens))
        return leading_worth_loading([offer], self._compute_s(num_tokens) / num_rows).num_rows > 0

    def _load_s(self, num_tokens: int) -> float:
        num_frames = self._num_frames(num_tokens)
        num_devices = self._subject.request.num_devices
        return self._link.seconds(num_frames, num_frames * self._frame_bytes, num_devices)

    def _compute_s(self, num_tokens: int) -> float:
        subject, rate = self._subject, self._subject.request.prefill_rate
        if rate is not None:
            return num_tokens / rate
        assert subject.device is not None
        return prefill_seconds(
            subject.weights,
            subject.kept_layers,
            subject.options,
            subject.device,
            model=subject.model,
            num_tokens=num_tokens,
            quantization=subject.quantization,
        )

    def _num_frames(self, num_tokens: int) -> int:
        """Blocks that are moved: Pagoda's tiers keep and load those of all groups; of vLLM those
        that a request holds are counted."""
        pool = self._subject.pool
        if self._subject.engine.is_pagoda:
            return len(pool.groups) * -(-num_tokens // self._block_size)
        return pool.num_blocks(num_tokens)

    @property
    def _frame_bytes(self) -> int:
        """Of a block, over all devices."""
        return sum(self._subject.pool.stage_block_bytes) * (
            self._subject.options.tensor_parallel_size
        )
