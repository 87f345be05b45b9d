"""A model made of arithmetic: what comes next depends on every token before, read from the pages.

Carries out plans over `PagedTokens`, so that a wrong block table, slot, copy or eviction gives a
wrong token, or an assertion that says where.
"""

from collections.abc import Callable, Container
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from paged_tokens import PagedTokens, written_for
from pagoda.cache.retention import parse_retention
from pagoda.cache_hint import CacheHint
from pagoda.request import Request, RequestOptions, SamplingParams
from pagoda.scheduling import RunAhead, ScheduledSequence, Scheduler, Sequence, StepPlan, judge

VOCABULARY = 5


def next_token(tokens: Tokens[int]) -> int:
    """The model: deterministic, and different for nearly every context."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def expected_output(
    prompt: Tokens[int], max_tokens: int, max_model_len: int, stops: Container[int] = ()
) -> list[int]:
    """What a sequence must generate, whatever happens around it."""
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + max_tokens, max_model_len):
        tokens.append(next_token(tokens))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class FakeStep:
    """A step that the model has carried out, of which the scheduler has not heard yet."""

    plan: StepPlan
    sampled: dict[int, int]
    """Tokens by sequence id."""
    awaited: frozenset[int]

    @property
    def drawing(self) -> tuple[int, ...]:
        return tuple(self.sampled)


class FakeModel:
    """Executes plans and checks each of them against the scheduler's sequences.

    It runs `num_ahead` steps ahead: the scheduler is told what a step drew when so many others are
    launched. Then every sequence of which `awaits` is true of its id is awaited.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        num_blocks: int,
        *,
        num_ahead: int = 0,
        awaits: Callable[[int], bool] = lambda sequence_id: False,
        num_gave_way: Callable[[], int] = lambda: 0,
    ) -> None:
        self.scheduler = scheduler
        self.storage = PagedTokens(num_blocks, scheduler.cache.block_size)
        self.ahead: RunAhead[FakeStep] = RunAhead(num_ahead)
        self.awaits = awaits
        self.num_gave_way = num_gave_way
        """Loads that have ended for want of blocks."""
        self._keeps_all = num_ahead > 1
        self._drawn: dict[tuple[int, int], int] = {}
        """By sequence id and position; of the last step alone where one step may be outstanding, as
        on a device."""

    def execute(self, plan: StepPlan) -> dict[int, int]:
        """Sampled tokens by sequence id."""
        self.storage.copy(plan.copies)
        written: set[int] = set()
        contexts = [self._tokens(scheduled) for scheduled in plan.sequences]
        for scheduled, context in zip(plan.sequences, contexts, strict=True):
            sequence = self.scheduler.sequence(scheduled.sequence_id)
            assert scheduled.stay == sequence.stay
            table, num_groups = scheduled.block_ids.tolist(), len(scheduled.windows)
            size = self.storage.block_size
            first, last = scheduled.start // size, -(-scheduled.stop // size)
            blocks = table[first * num_groups : last * num_groups]
            assert written.isdisjoint(blocks), "two sequences write into one block"
            written.update(blocks)
            self.storage.write(
                table,
                context,
                scheduled.start,
                scheduled.stop,
                self._written_for(sequence),
                num_groups,
            )
        sampled = {}
        for scheduled, context in zip(plan.sequences, contexts, strict=True):
            sequence = self.scheduler.sequence(scheduled.sequence_id)
            assert self.storage.holds(
                scheduled.block_ids.tolist(),
                context,
                scheduled.stop,
                self._written_for(sequence),
                scheduled.windows,
                scheduled.start,
            ), "a sequence would attend what is not its own"
            if scheduled.samples:
                sampled[scheduled.sequence_id] = next_token(context)
        if not self._keeps_all:
            self._drawn = {}
        for scheduled in plan.sequences:
            if scheduled.samples:
                token = sampled[scheduled.sequence_id]
                self._drawn[scheduled.sequence_id, scheduled.stop] = token
        return sampled

    def _written_for(self, sequence: Sequence) -> str:
        """Whose K and V a sequence's are."""
        options = sequence.request.options
        retention = parse_retention(options.kv_retention or "full")
        return written_for(options.cache_salt, retention, options.tenant)

    def _tokens(self, scheduled: ScheduledSequence) -> list[int]:
        """The sequence up to where this step brings it."""
        sequence_id, start = scheduled.sequence_id, scheduled.start
        tokens = self.scheduler.sequence(sequence_id).token_ids[:start]
        for position in range(len(tokens), start):
            tokens.append(self._drawn[sequence_id, position])
        tokens += scheduled.token_ids
        if scheduled.takes_drawn:
            tokens.append(self._drawn[sequence_id, scheduled.stop - 1])
        assert len(tokens) == scheduled.stop
        return tokens

    def step(self) -> StepPlan:
        """One whole step: another one is launched, and one is concluded."""
        cache, num_preemptions = self.scheduler.cache, self.scheduler._num_preemptions
        num_free, num_gave_way = cache.num_free_blocks, self.num_gave_way()
        plan = self.scheduler.schedule(self.ahead.held_back)
        has_preempted = self.scheduler._num_preemptions > num_preemptions
        # Where blocks are short, those go first that a window has passed.
        lets_go = any(not window.is_full for one in plan.sequences for window in one.windows)
        frees = cache.num_free_blocks > num_free
        lets_go |= self.num_gave_way() > num_gave_way
        assert not frees or has_preempted or lets_go, "a plan frees blocks"
        launched = None
        if plan.sequences:
            sampled = self.execute(plan)
            launched = FakeStep(plan, sampled, frozenset(filter(self.awaits, sampled)))
        due = self.ahead.advance(launched)
        if due is not None:
            conclude(self.scheduler, due.plan, due.sampled)
        self.storage.check_published(cache)
        return plan


def conclude(scheduler: Scheduler, plan: StepPlan, sampled: dict[int, int]) -> list[Sequence]:
    """Tell the scheduler what a step drew, and end what it ends; returns who has a new token."""
    progressed = []
    for scheduled in plan.sequences:
        num_free = scheduler.cache.num_free_blocks
        sequence = scheduler.update(scheduled, sampled.get(scheduled.sequence_id))
        assert scheduler.cache.num_free_blocks >= num_free, "an update takes blocks"
        if sequence is not None:
            progressed.append(sequence)
            ending = judge(sequence)
            if ending is not None:
                scheduler.finish(sequence, ending)
    return progressed


def request(
    request_id: str,
    prompt: Tokens[int],
    *,
    max_tokens: int = 8,
    n: int = 1,
    priority: int = 0,
    tenant: str = "",
    cache_salt: str = "",
    arrival_time: float = 0.0,
    kv_retention: str | None = None,
    cache_hint: CacheHint | None = None,
    **sampling: object,
) -> Request:
    """A request as the engine would make it."""
    params = SamplingParams(max_tokens=max_tokens, n=n, **sampling)  # type: ignore[arg-type]
    return Request(
        request_id,
        tuple(prompt),
        params,
        options=RequestOptions(
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            kv_retention=kv_retention,
            cache_hint=cache_hint,
        ),
        arrival_time=arrival_time,
    )
