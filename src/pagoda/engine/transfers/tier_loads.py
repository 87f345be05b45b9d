"""All prefixes that are on their way from the tiers; the scheduler asks for them.

    begin                 look_up ──────> … answered ──> gate ──> load ──────> … come ──> put
    in schedule           take_in, at the begin of a turn                       take_in

A load ends where a frame is missing or bad, where the pool is short, where a running sequence needs
the blocks, where its own sequence ends, and at its deadline: that of its look-up and of itself
together is what computing would take, so the first token comes at worst after twice that.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pagoda.cache import BlockTable, CacheManager, PrefixMatch
from pagoda.cache.miss import Gated
from pagoda.engine.prefill_rate import PrefillRate
from pagoda.engine.transfers.incoming import ImportBlocks, IncomingPrefix
from pagoda.engine.transfers.prefix_from_tiers import PrefixFromTiers
from pagoda.engine.transfers.turn import TURN_BYTES
from pagoda.request import Request
from pagoda.scheduling import Sequence as RunningSequence
from pagoda.scheduling.prefix_load import NOTHING_TO_LOAD, PrefixLoad
from pagoda.tiers.gate import leading_worth_loading, longest_answer_s
from pagoda.tiers.mover import Asked, TierMover
from pagoda.tiers.segment import Segment, behind, leading

logger = logging.getLogger("pagoda")

_LEAST_DEADLINE_S = 0.02
_LATE, _NO_ROOM, _GATED, _NOT_FOUND = "late", "no_room", "gated", "not_found"
_WHOLE, _ABANDONED, _FAILED = "whole", "abandoned", "failed"
_ROUND_TRIPS = 8
"""That an answer may take."""

OpenTable = Callable[[Request], BlockTable]
Gate = Callable[[Sequence[Segment], float | None], int]
"""How many leading rows of segments are worth loading, where computing one takes so many seconds;
None: nobody knows."""


def worth_loading(segments: Sequence[Segment], row_s: float | None) -> int:
    """See `Gate`."""
    return leading_worth_loading(segments, row_s).num_rows


class TierLoads:
    """See `pagoda.scheduling.prefix_loads.PrefixLoads`. The engine's thread alone calls it."""

    def __init__(
        self,
        cache: CacheManager,
        import_blocks: ImportBlocks,
        open_table: OpenTable,
        mover: TierMover,
        gate: Gate,
        prefill_rate: PrefillRate,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_table`: a table for a sequence of a request, as the scheduler's are."""
        self._cache = cache
        self._import_blocks = import_blocks
        self._open_table = open_table
        self._mover = mover
        self._gate = gate
        self._prefill_rate = prefill_rate
        self._clock = clock
        self._loads: dict[PrefixFromTiers, Request] = {}
        """Those under way, the oldest first, and for whom."""
        self._has_failed = False
        """Blocks could not be brought in: none are tried any more."""
        self.endings: Counter[str] = Counter()
        """How look-ups and loads ended."""
        self.num_tokens_asked = 0
        """Tokens that the cache did not have and tiers were asked for."""
        self.num_tokens_loaded = 0

    # ---- what the scheduler asks -------------------------------------------------------------

    def begin(self, sequence: RunningSequence, match: PrefixMatch) -> PrefixLoad:
        size = self._cache.block_size
        num_blocks = len(sequence.token_ids) // size
        num_missing = num_blocks - len(match.block_ids) // sequence.table.num_groups
        is_asked = match.is_read and self._cache.enable_prefix_caching and not self._has_failed
        if num_missing <= 0 or not is_asked:
            return NOTHING_TO_LOAD
        compute_s = self._prefill_rate.seconds(num_missing * size)
        asked = self._mover.whom_to_ask(num_missing, compute_s)
        if not asked.shelves:
            return NOTHING_TO_LOAD
        prefix = self._prefix(sequence.request, sequence.token_ids, sequence.table)
        if not prefix.claim():
            return NOTHING_TO_LOAD
        self.num_tokens_asked += num_missing * size
        look_up = self._mover.look_up(prefix.tenant, prefix.rows(), asked)
        load = PrefixFromTiers(
            prefix,
            look_up,
            self._clock(),
            answer_s=self._answer_s(asked, compute_s),
            allowance_s=self._allowance_s(compute_s),
        )
        self._loads[load] = sequence.request
        return load

    def make_room(self, table: BlockTable) -> bool:
        for load in reversed(self._loads):
            if load.prefix is not None and load.prefix.helps(table):
                self._end(load, _NO_ROOM)
                return True
        return False

    def give_way(self, table: BlockTable) -> bool:
        return False  # a sequence waits for each

    def start_over(self) -> None:
        for load in self._loads:
            load.forget()
        self._loads = {}

    # ---- what the engine asks ----------------------------------------------------------------

    def abandon(self) -> None:
        """End all that are under way."""
        for load in list(self._loads):
            self._end(load, _ABANDONED)

    @property
    def num_under_way(self) -> int:
        """Sequences that wait for their prefix."""
        return sum(not load.is_done for load in self._loads)

    def take_in(self) -> None:
        """Publish what has come, begin what has been found, end what is done or late."""
        left = max(1, TURN_BYTES // self._mover.row_bytes)
        for load in list(self._loads):
            if load.is_done:
                self._drop(load, _ABANDONED)
            elif load.source is None:
                self._hear(load)
            else:
                left -= self._take(load, left)

    # ---- inside ------------------------------------------------------------------------------

    def _prefix(self, request: Request, tokens: Sequence[int], known: BlockTable) -> IncomingPrefix:
        table = self._open_table(request)
        return IncomingPrefix(self._cache, self._import_blocks, table, tokens, known)

    def _allowance_s(self, compute_s: float | None) -> float:
        if compute_s is None:
            return self._mover.timeout_s
        return min(max(compute_s, _LEAST_DEADLINE_S), self._mover.timeout_s)

    def _answer_s(self, asked: Asked, compute_s: float | None) -> float:
        """What a look-up may take, during which others wait for blocks that may be nowhere."""
        if compute_s is not None and not asked.may_pay:
            return longest_answer_s(compute_s, pays=False)
        if asked.round_trip_s is None:
            return self._mover.timeout_s
        return max(_LEAST_DEADLINE_S, _ROUND_TRIPS * asked.round_trip_s)

    def _hear(self, load: PrefixFromTiers) -> None:
        """Load what was found, if the tiers have answered."""
        if load.look_up.is_done:
            self._choose(load)
        elif self._clock() > load.deadline:
            self._end(load, _LATE)

    def _choose(self, load: PrefixFromTiers) -> None:
        prefix, segments = load.prefix, load.look_up.segments
        assert prefix is not None
        if not segments:
            self._end(load, _NOT_FOUND)
            return
        num_found = sum(each.num_rows for each in segments)
        num_worth = min(self._gate(segments, self._row_seconds()), num_found)
        if num_worth < num_found:
            load.gated = self._gated(segments, num_worth)
        if num_worth == 0:
            self._end(load, _GATED)
            return
        segments = leading(segments, num_worth)
        if num_worth < prefix.num_missing:  # what is not loaded is nobody's to wait for
            whole, num_cached = prefix, prefix.num_blocks
            whole.free()
            tokens = whole.tokens[: (num_cached + num_worth) * self._cache.block_size]
            prefix = load.prefix = self._prefix(self._loads[load], tokens, whole.table)
            if not prefix.claim():  # another brings it meanwhile
                self._drop(load, _WHOLE)
                load.forget()
                return
            segments = behind(segments, prefix.num_blocks - num_cached)
        began, rows = self._clock(), prefix.rows()
        load.begin(self._mover.load(prefix.tenant, rows, segments), began)

    def _take(self, load: PrefixFromTiers, most: int) -> int:
        """Publish up to `most` rows that have come; returns how many."""
        prefix, source = load.prefix, load.source
        assert prefix is not None
        assert source is not None
        rows = source.take(most)
        try:
            num_put = prefix.put(rows)
        except Exception:  # nothing of it is published
            logger.exception("blocks could not be brought in from the tiers; no more are loaded")
            self._has_failed = True
            self._end(load, _FAILED)
            return len(rows)
        self.num_tokens_loaded += num_put * self._cache.block_size
        if num_put < len(rows):
            self._end(load, _NO_ROOM)
            return len(rows)
        if source.is_done:
            self._end(load, source.ending or _WHOLE)
        elif len(rows) < most and self._clock() > load.deadline:
            self._end(load, _LATE)
        return len(rows)

    def _end(self, load: PrefixFromTiers, ending: str) -> None:
        self._drop(load, ending)
        load.abandon()

    def _drop(self, load: PrefixFromTiers, ending: str) -> None:
        del self._loads[load]
        self.endings[ending] += 1

    def _row_seconds(self) -> float | None:
        return self._prefill_rate.seconds(self._cache.block_size)

    def _gated(self, segments: Sequence[Segment], num_worth: int) -> Gated:
        """Of the first segment that is not loaded whole."""
        left_out = behind(segments, num_worth)[0]
        num_tokens = left_out.num_rows * self._cache.block_size
        compute_s = self._prefill_rate.seconds(num_tokens) or 0.0
        kind = self._mover.name_of(left_out.shelf)
        return Gated(kind, num_tokens, left_out.seconds or 0.0, compute_s)
