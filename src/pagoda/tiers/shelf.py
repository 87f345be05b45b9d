"""A tier as the engine uses it: what goes wrong there is counted, and is a miss.

find    how many leading rows are there               a tier that fails has none
holds   which names are there, all of them asked for  a tier that fails does not tell
load    rows, each once its frames are opened         ends at the first that is missing or bad
store   blocks that are not there                     a tier that fails keeps none
remove  blocks that are to be others under the name   a tier that fails keeps them
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from pagoda.tiers.breaker import Breaker
from pagoda.tiers.frame import FrameError
from pagoda.tiers.frame_formats import FrameFormats
from pagoda.tiers.known_blocks import KnownBlocks
from pagoda.tiers.names import BlockName
from pagoda.tiers.rates import Rates
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf_stats import ShelfStats, Tally
from pagoda.tiers.tier import FrameBytes, Tier, TierError, TierUsage

logger = logging.getLogger("pagoda")

Payloads = tuple[FrameBytes, ...]
"""Of a row: those of all groups."""

MISSING = "missing"
_SAMPLED = 16
"""Rows of a long prefix that a shared tier is asked for at once."""
_USAGE_EVERY_S = 2.0
"""A tier whose frames come and go is asked what it holds."""
_USAGE_AT_LEAST_EVERY_S = 15.0
"""One that others may have changed."""
_GRACE = 3.0
"""How many times its timeout a call may take until its tier is said to hang."""
_LABEL_EVERY_S = 60.0
"""A tier that is given blocks is asked whether the label still lies beside them."""
FRAMES, QUESTIONS = "frames", "questions"
"""Kinds of calls, to breakers."""


class Shelf:
    """Any thread may call it. No method raises; those that ask the tier may take its timeout."""

    def __init__(
        self,
        tier: Tier,
        formats: FrameFormats,
        *,
        timeout_s: float,
        stores_all: bool,
        told: str | None = None,
        label: tuple[str, bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`formats`: what its frames look like. `stores_all`: blocks are stored when they are
        computed, not only once they were found a second time. `told`: what the log calls it.
        `label`: of the namespace, which is kept beside its frames, and under which name."""
        self.tier = tier
        self.name = tier.kind
        """As metrics call it."""
        self.told = told or tier.kind
        self.timeout_s = timeout_s
        self.stores_all = stores_all
        self.rates = Rates()
        self.known = KnownBlocks()
        """Some of the blocks that are there."""
        self.reading = Breaker(clock)
        self.writing = Breaker(clock)
        self.used_at = -float("inf")
        """When it was measured last what its tier takes to load something."""
        self.formats = formats
        self.clock = clock
        """Seconds that its calls are timed by."""
        self.seen: str | None = None
        """The name of some frame that was there a while ago, as its tier calls it."""
        self._label = label
        self._label_at = -float("inf")
        """When it was there last, as far as is known."""
        self._tally = Tally()
        self._usage: TierUsage | None = None
        self._usage_at = -float("inf")
        """When it was asked for last."""
        self._has_changed = False
        """What it holds has changed since."""

    # ---- what returns at once ----------------------------------------------------------------

    def wants(self, name: BlockName, *, reused: bool) -> bool:
        """It would store this block, and is not known to have it. One that cannot be read is not
        given any either."""
        return self.takes_stores and (self.stores_all or reused) and name not in self.known

    @property
    def takes_stores(self) -> bool:
        """It is given blocks."""
        return self.writing.is_closed and self.reading.is_closed

    @property
    def hangs_after_s(self) -> float:
        """Seconds that a call may take until its tier is said to hang."""
        return _GRACE * self.timeout_s

    def drop(self) -> None:
        """A block that it wanted is not given to it."""
        self._tally.add(frames_dropped=1)

    def hang(self, breaker: Breaker) -> None:
        """A call of this breaker's has taken longer than any may."""
        self.fail(breaker, "hang")

    def stats(self) -> ShelfStats:
        """As of now."""
        return ShelfStats(
            name=self.name,
            is_open=self.reading.is_closed,
            takes_stores=self.writing.is_closed,
            round_trip_s=self.rates.round_trip_s,
            bytes_per_s=self.rates.bytes_per_s,
            usage=self._usage,
            counts=self._tally.counts(),
        )

    # ---- what asks the tier ------------------------------------------------------------------

    def find(self, tenant: str, rows: Sequence[Row]) -> int:
        """Leading rows that are there in all groups. A shared tier is asked for some of many, so
        others may turn out to be missing."""
        found, beyond = 0, len(rows)  # rows before `found` are there, row `beyond` is not
        while found < beyond:
            asked = self._sample(found, beyond)
            held = self._hold(tenant, [rows[number] for number in asked])
            num_held = next((at for at, is_held in enumerate(held) if not is_held), len(held))
            if num_held < len(asked):
                beyond = asked[num_held]
            if num_held:
                found = asked[num_held - 1] + 1
        self._tally.add(rows_asked=len(rows), rows_found=found)
        self.known.drop(name for row in rows[found:] for name in row)
        return found

    def holds(self, tenant: str, names: Sequence[BlockName]) -> list[bool] | None:
        """Of each name whether a frame lies under it, every one asked for. None: the tier does not
        tell."""
        began = self.clock()
        try:
            frame_format = self.formats.of(tenant)
            held = self.tier.holds([frame_format.name(name) for name in names], self.timeout_s)
            assert len(held) == len(names)
        except Exception as error:
            self.fail(self.reading, error, QUESTIONS)
            return None
        self.rates.note_round_trip(self.clock() - began)
        self._succeed(self.reading, QUESTIONS)
        return held

    def load(
        self, tenant: str, rows: Sequence[Row], arrive: Callable[[Payloads], bool]
    ) -> str | None:
        """Hand rows to `arrive`, in order, until it is false. Returns why others are missing."""
        names = [name for row in rows for name in row]
        num_groups, row = len(rows[0]), list[FrameBytes]()
        began, num_frames, size = self.clock(), 0, 0
        try:
            frame_format = self.formats.of(tenant)
            own = [frame_format.name(name) for name in names]
            frames: Iterable[FrameBytes | None] = self.tier.load(own, self.timeout_s)
            if frame_format.packing is not None:  # what unpacking takes is not the tier's time
                frames = list(frames)
            for name, frame in zip(names, frames, strict=True):
                if frame is None:
                    self.known.drop([name])
                    self._tally.reject(MISSING)
                    return MISSING
                row.append(frame_format.decode(name, frame))
                num_frames, size = num_frames + 1, size + len(row[-1])
                if len(row) == num_groups:
                    if not arrive(tuple(row)):
                        break
                    row = []
        except FrameError as error:
            self._discard(tenant, name)
            if self._tally.reject(str(error.reason)) == 1:
                logger.warning("the tier %s has frames that are bad: %s", self.told, error.reason)
            return str(error.reason)
        except Exception as error:
            return self.fail(self.reading, error)
        finally:
            if size:
                self.note_load(size, began)
                self._tally.add(frames_loaded=num_frames, bytes_loaded=size)
        self._succeed(self.reading)
        self.known.add(names[:num_frames])
        self.seen = own[0]
        return None

    def store(self, tenant: str, blocks: Sequence[tuple[BlockName, FrameBytes]]) -> None:
        """Keep those of a tenant's blocks that are not there."""
        try:
            frame_format = self.formats.of(tenant)
            own = [frame_format.name(name) for name, _ in blocks]
            asked = self._labels_due()
            names = [*own, *(name for name, _ in asked)]
            held = self.tier.holds(names, self.timeout_s)
            assert len(held) == len(names)
            frames = [
                (own_name, frame_format.encode(name, payload))
                for own_name, (name, payload), is_held in zip(own, blocks, held, strict=False)
                if not is_held
            ]
            labels = [] if all(held[len(own) :]) else asked
            if frames or labels:
                self.tier.store([*labels, *frames], self.timeout_s)
            if asked:
                self._label_at = self.clock()
        except Exception as error:
            self.fail(self.writing, error)
            return
        if frames:
            self.seen = frames[-1][0]
            self._has_changed = True
            self._succeed(self.writing)
        size = sum(len(frame) for _, frame in frames)
        self._tally.add(frames_stored=len(frames), bytes_stored=size)
        self.known.add([name for name, _ in blocks])

    def remove(self, tenant: str, names: Sequence[BlockName]) -> None:
        """Forget what lies under names that are to stand for something else."""
        self.known.drop(names)
        self._has_changed = True
        self.attempt(
            self.writing, lambda: self.tier.remove(self._own(tenant, names), self.timeout_s)
        )

    def look(self) -> None:
        """See what the tier holds, soon after that has changed, and every now and then."""
        wait_s = _USAGE_EVERY_S if self._has_changed else _USAGE_AT_LEAST_EVERY_S
        if self.clock() - self._usage_at > wait_s and self.reading.is_closed:
            self.ask_usage()

    def ask_usage(self) -> None:
        """See what the tier holds; one that does not tell holds what it told last."""
        self._usage_at, self._has_changed = self.clock(), False
        with suppress(Exception):
            self._usage = self.tier.usage()

    def close(self) -> None:
        """Give the tier up."""
        try:
            self.tier.close()
        except Exception:
            logger.exception("the tier %s could not be closed", self.told)

    # ---- what a call tells of the tier -------------------------------------------------------

    def attempt(self, breaker: Breaker, call: Callable[[], object]) -> bool:
        """Make a call of the tier that moves a frame, from which the breaker learns. False: it
        failed."""
        try:
            call()
        except Exception as error:
            self.fail(breaker, error)
            return False
        self._succeed(breaker)
        return True

    def fail(self, breaker: Breaker, error: Exception | str, kind: str = FRAMES) -> str:
        """A call of this breaker's has failed; returns the reason."""
        reason, detail = "error", "it failed"  # of one's own, which says nothing better
        if isinstance(error, TierError):
            reason, detail = str(error.reason), error.detail
        elif isinstance(error, str):
            reason, detail = error, "it does not answer"
        else:
            logger.exception("the tier %s failed", self.told)
        self._tally.fail(reason)
        was_closed = breaker.is_closed
        breaker.failed(kind)
        if was_closed and not breaker.is_closed:
            what = "asked for blocks" if breaker is self.reading else "given blocks"
            logger.warning("the tier %s is not %s until it is well: %s", self.told, what, detail)
        return reason

    def note_load(self, num_bytes: int, began: float) -> None:
        """Loading so many bytes has taken since then."""
        self.used_at = self.clock()
        self.rates.note_load(num_bytes, self.used_at - began)

    # ---- inside ------------------------------------------------------------------------------

    def _own(self, tenant: str, names: Sequence[BlockName]) -> list[str]:
        """As its tier calls them. Raises whatever the tenant's format does."""
        frame_format = self.formats.of(tenant)
        return [frame_format.name(name) for name in names]

    def _labels_due(self) -> Sequence[tuple[str, FrameBytes]]:
        """The namespace's label, at first and every now and then: others may have removed it."""
        is_due = self.clock() - self._label_at > _LABEL_EVERY_S
        return [self._label] if is_due and self._label is not None else []

    def _sample(self, first: int, beyond: int) -> Sequence[int]:
        """Numbers of the rows to ask for, of those from `first` to `beyond` - 1."""
        num = beyond - first
        if not self.tier.is_shared or num <= 2 * _SAMPLED:
            return range(first, beyond)
        return [first + (number * (num - 1)) // (_SAMPLED - 1) for number in range(_SAMPLED)]

    def _hold(self, tenant: str, rows: Sequence[Row]) -> Sequence[bool]:
        """Of each row whether all of its frames are there; of none, where the tier fails."""
        width = len(rows[0])
        held = self.holds(tenant, [name for row in rows for name in row])
        if held is None:
            return [False] * len(rows)
        return [all(held[start : start + width]) for start in range(0, len(held), width)]

    def _discard(self, tenant: str, name: BlockName) -> None:
        """What is under a name is no frame of that block."""
        self.known.drop([name])
        with suppress(Exception):
            self.tier.quarantine([self.formats.of(tenant).name(name)], self.timeout_s)

    def _succeed(self, breaker: Breaker, kind: str = FRAMES) -> None:
        if not breaker.is_closed:
            logger.info("the tier %s is well again", self.told)
        breaker.succeeded(kind)
