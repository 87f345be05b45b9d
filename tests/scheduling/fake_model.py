"""A model made of arithmetic: what comes next depends on every token before, read from the pages.

Carries out plans over `PagedTokens`, so that a wrong block table, slot, copy or eviction gives a
wrong token, or an assertion that says where.
"""

from collections.abc import Callable, Container
from collections.abc import Sequence as Tokens

from paged_tokens import PagedTokens
from pagoda.request import Request, RequestOptions, SamplingParams
from pagoda.scheduling import PENDING, ScheduledSequence, Scheduler, Sequence, StepPlan, judge

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


class FakeModel:
    """Executes plans and checks each of them against the scheduler's sequences.

    One that `runs_ahead` tells the scheduler what a step drew when the next one is under way. Then
    every sequence of which `awaits` is true of its id is awaited.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        num_blocks: int,
        *,
        runs_ahead: bool = False,
        awaits: Callable[[int], bool] = lambda sequence_id: False,
    ) -> None:
        self.scheduler = scheduler
        self.storage = PagedTokens(num_blocks, scheduler.cache.block_size)
        self.runs_ahead = runs_ahead
        self.awaits = awaits
        self.under_way: tuple[StepPlan, dict[int, int]] | None = None
        self._drawn: dict[int, int] = {}

    def execute(self, plan: StepPlan) -> dict[int, int]:
        """Sampled tokens by sequence id."""
        self.storage.copy(plan.copies)
        written: set[int] = set()
        for scheduled in plan.sequences:
            sequence = self.scheduler.sequence(scheduled.sequence_id)
            table = scheduled.block_ids.tolist()
            tokens = self._tokens(scheduled)
            size = self.storage.block_size
            blocks = table[scheduled.start // size : -(-scheduled.stop // size)]
            assert written.isdisjoint(blocks), "two sequences write into one block"
            written.update(blocks)
            self.storage.write(
                table, tokens, scheduled.start, scheduled.stop, sequence.request.options.cache_salt
            )
        sampled = {}
        for scheduled in plan.sequences:
            sequence = self.scheduler.sequence(scheduled.sequence_id)
            context = self._tokens(scheduled)
            assert self.storage.holds(
                scheduled.block_ids.tolist(),
                context,
                scheduled.stop,
                sequence.request.options.cache_salt,
            ), "a sequence would attend what is not its own"
            if scheduled.samples:
                sampled[scheduled.sequence_id] = next_token(context)
        self._drawn = sampled
        return sampled

    def _tokens(self, scheduled: ScheduledSequence) -> list[int]:
        """The sequence up to where this step brings it."""
        known = self.scheduler.sequence(scheduled.sequence_id).token_ids[: scheduled.start]
        assert len(known) == scheduled.start, "a token before the step's own is not known"
        for token_id in scheduled.token_ids:
            known.append(self._drawn[scheduled.sequence_id] if token_id == PENDING else token_id)
        return known

    def step(self) -> StepPlan:
        """One whole step."""
        awaited = set(filter(self.awaits, self.under_way[1])) if self.under_way else ()
        plan = self.scheduler.schedule(awaited)
        before, self.under_way = self.under_way, (plan, self.execute(plan))
        if before is not None:
            conclude(self.scheduler, *before)
        if not self.runs_ahead:
            conclude(self.scheduler, *self.under_way)
            self.under_way = None
        return plan


def conclude(scheduler: Scheduler, plan: StepPlan, sampled: dict[int, int]) -> list[Sequence]:
    """Tell the scheduler what a step drew, and end what it ends; returns who has a new token."""
    progressed = scheduler.update(plan, sampled)
    for sequence in progressed:
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
    cache_salt: str = "",
    arrival_time: float = 0.0,
    **sampling: object,
) -> Request:
    """A request as the engine would make it."""
    params = SamplingParams(max_tokens=max_tokens, n=n, **sampling)  # type: ignore[arg-type]
    return Request(
        request_id,
        tuple(prompt),
        params,
        options=RequestOptions(priority=priority, cache_salt=cache_salt),
        arrival_time=arrival_time,
    )
