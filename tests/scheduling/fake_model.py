"""A model made of arithmetic: what comes next depends on every token before, read from the pages.

Carries out plans over `PagedTokens`, so that a wrong block table, slot, copy or eviction gives a
wrong token, or an assertion that says where.
"""

from collections.abc import Sequence as Tokens

from paged_tokens import PagedTokens
from pagoda.request import Request, SamplingParams
from pagoda.scheduling import Scheduler, StepPlan

VOCABULARY = 5


def next_token(tokens: Tokens[int]) -> int:
    """The model: deterministic, and different for nearly every context."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def expected_output(prompt: Tokens[int], max_tokens: int, max_model_len: int) -> list[int]:
    """What a sequence must generate, whatever happens around it."""
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + max_tokens, max_model_len):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakeModel:
    """Executes plans and checks each of them against the scheduler's sequences."""

    def __init__(self, scheduler: Scheduler, num_blocks: int) -> None:
        self.scheduler = scheduler
        self.storage = PagedTokens(num_blocks, scheduler.cache.block_size)

    def execute(self, plan: StepPlan) -> dict[int, int]:
        """Sampled tokens by sequence id."""
        self.storage.copy(plan.copies)
        written: set[int] = set()
        for scheduled in plan.sequences:
            sequence = self.scheduler.sequence(scheduled.sequence_id)
            table = scheduled.block_ids.tolist()
            tokens = [*sequence.token_ids[: scheduled.start], *scheduled.token_ids]
            size = self.storage.block_size
            blocks = table[scheduled.start // size : -(-scheduled.stop // size)]
            assert written.isdisjoint(blocks), "two sequences write into one block"
            written.update(blocks)
            self.storage.write(
                table, tokens, scheduled.start, scheduled.stop, sequence.request.cache_salt
            )
        sampled = {}
        for scheduled in plan.sequences:
            sequence = self.scheduler.sequence(scheduled.sequence_id)
            context = sequence.token_ids[: scheduled.stop]
            assert self.storage.holds(
                scheduled.block_ids.tolist(), context, scheduled.stop, sequence.request.cache_salt
            ), "a sequence would attend what is not its own"
            if scheduled.samples:
                sampled[scheduled.sequence_id] = next_token(context)
        return sampled

    def step(self) -> StepPlan:
        """One whole step."""
        plan = self.scheduler.schedule()
        self.scheduler.update(plan, self.execute(plan))
        return plan


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
        priority=priority,
        cache_salt=cache_salt,
        arrival_time=arrival_time,
    )
