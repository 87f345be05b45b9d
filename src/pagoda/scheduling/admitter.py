"""Who of the waiting begins in a step.

Only whoever fits as a whole beside what is already running. Blocks that running sequences will
certainly need for the tokens they have are spoken for, and one more for each, so that admission
does not lead straight to preemption.

    waits for a block that another computes    passed over, unless that one's turn comes later: then
                                               it computes the block too
    waits for what lies outside the cache      passed over, with a seat and blocks as if it ran
    does not fit into the pool                 keeps all behind it waiting, in later lanes too; they
                                               get what their floors give them alone, as do all once
                                               the pool was short
    is at its tenant's cap                     keeps nobody of other tenants waiting
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pagoda.cache import CacheManager, PrefixMatch
from pagoda.cache.match import UNREAD
from pagoda.cache.prefix import BlockHash
from pagoda.scheduling.in_hand import InHand
from pagoda.scheduling.prefix_loads import PrefixLoads
from pagoda.scheduling.queue import Lane, OrderedSequences
from pagoda.scheduling.seats import Seats
from pagoda.scheduling.sequence import Sequence
from pagoda.scheduling.step_builder import StepBuilder


class Admitter:
    """Looks for whoever may begin; the scheduler lets it begin."""

    def __init__(
        self,
        cache: CacheManager,
        in_hand: InHand,
        seats: Seats,
        running: OrderedSequences,
        waiting: OrderedSequences,
        loads: PrefixLoads,
    ) -> None:
        """`in_hand` is told whom this looks at, should that break off. `loads`: who is asked for
        what the cache does not have."""
        self._cache = cache
        self._loads = loads
        self._in_hand = in_hand
        self._seats = seats
        self._running = running
        self._waiting = waiting
        self._loading: list[Sequence] = []
        """Those whose prefix was on its way when they were looked at last."""
        self._lacking: set[Sequence] = set()
        """Those that lacked room when they were looked at last."""

    def admitted(self, lane: Lane, step: StepBuilder) -> Iterator[tuple[Sequence, PrefixMatch]]:
        """Those of a lane that may begin, in order, with what the cache has of them.

        Each has to run, with its blocks, before the next is asked for. Notes in the step that the
        pool is short, in a sequence that it lacks room or which block it waits for.
        """
        self._loading = [each for each in self._loading if is_loading(each)]
        if not self._waiting.of(lane) or not self._has_room(lane, step):
            return
        spoken_for = self._spoken_for()
        for sequence in self._waiting.of(lane)[:]:
            if not self._has_room(lane, step):
                break
            self._in_hand.request_id = sequence.request.request_id
            if not self._comes_in_time(sequence.awaited_block, lane):
                sequence.awaited_block = None
            if is_held_up(sequence, self._cache):
                continue
            match = self._match(sequence)
            if match.in_flight is not None and self._comes_in_time(match.in_flight, lane):
                sequence.awaited_block = match.in_flight
                continue
            if not self._fits(sequence, match, spoken_for, step):
                break
            if sequence.awaited_load is None:
                sequence.awaited_load = self._loads.begin(sequence, match)
                if is_loading(sequence):
                    self._loading.append(sequence)
                    spoken_for[lane.tenant] += self._num_to_load(sequence)
                    continue
            yield sequence, match
            num_more = self._cache.num_blocks_to_go_on(sequence.table, sequence.num_tokens)
            spoken_for[lane.tenant] += num_more
        self._in_hand.request_id = None

    def look_again(self) -> None:
        """A sequence has ended: whoever lacked room may have it now."""
        for sequence in self._lacking:
            sequence.lacks_room = False
        self._lacking.clear()

    def _comes_in_time(self, block: BlockHash | None, lane: Lane) -> bool:
        """Whoever computes it, if anybody, is as urgent as the lane: others may have no turn."""
        later = [each for each in self._running.lanes if each.level > lane.level]
        if block is None or not later:
            return True
        owner = self._cache.announced_by(block)
        return all(each.table is not owner for other in later for each in self._running.of(other))

    def _has_room(self, lane: Lane, step: StepBuilder) -> bool:
        """There are a token and a seat, and blocks for anybody or for whoever has a floor."""
        has_blocks = not step.awaits_pool or self._cache.quota_of(lane.tenant).floor > 0
        has_seat = self._seats.num_free > len(self._loading) and self._seats.has_one_for(lane)
        return has_blocks and step.budget > 0 and has_seat

    def _spoken_for(self) -> Counter[str]:
        """Blocks that sequences will certainly need which run, or whose prefix is on its way."""
        spoken_for = Counter[str]()
        for each in self._running:
            self._in_hand.request_id = each.request.request_id
            spoken_for[each.tenant] += self._cache.num_blocks_to_go_on(each.table, each.num_tokens)
        for each in self._loading:
            spoken_for[each.tenant] += self._num_to_load(each)
        return spoken_for

    def _num_to_load(self, sequence: Sequence) -> int:
        """Blocks that a sequence lacks beside what is held for it."""
        load = sequence.awaited_load
        table = None if load is None else load.table
        return 0 if table is None else self._cache.num_blocks_to_go_on(table, sequence.num_tokens)

    def _match(self, sequence: Sequence) -> PrefixMatch:
        if sequence.wants_prompt_logprobs:  # every prompt row's logits must be computed
            return UNREAD
        return self._cache.match(sequence.table, sequence.token_ids)

    def _fits(
        self, sequence: Sequence, match: PrefixMatch, spoken_for: Counter[str], step: StepBuilder
    ) -> bool:
        windows = sequence.table.windows
        num_needed = self._cache.num_blocks_to_admit(sequence.num_tokens, match, windows)
        allowance = self._cache.allowance(sequence.table, spoken_for)
        while num_needed > allowance.num_blocks and self._loads.give_way(sequence.table):
            num_needed = self._cache.num_blocks_to_admit(sequence.num_tokens, match, windows)
            allowance = self._cache.allowance(sequence.table, spoken_for)
        if step.awaits_pool:
            allowance = allowance.due_alone()
        sequence.lacks_room = num_needed > allowance.num_blocks
        if sequence.lacks_room:
            self._lacking.add(sequence)
            step.awaits_pool |= allowance.awaits_pool(num_needed)
        return not sequence.lacks_room


def is_ready(sequence: Sequence, cache: CacheManager) -> bool:
    """It could run at once, for all that is known without looking for its blocks."""
    is_at_cap = cache.allowance(sequence.table).is_at_cap
    return not (sequence.lacks_room or is_at_cap or is_held_up(sequence, cache))


def is_held_up(sequence: Sequence, cache: CacheManager) -> bool:
    """Its newest token is still outstanding, from before it was preempted; or another sequence is
    about to compute, or a load to bring, what this one would otherwise compute again."""
    if sequence.fork_parent is not None or sequence.num_pending_tokens:
        return True
    if is_loading(sequence):
        return True
    block = sequence.awaited_block
    if block is not None and cache.is_in_flight(block):
        return True
    sequence.awaited_block = None
    return False


def is_loading(sequence: Sequence) -> bool:
    """More of its prefix is looked for outside the cache, or on its way."""
    return sequence.awaited_load is not None and not sequence.awaited_load.is_done
