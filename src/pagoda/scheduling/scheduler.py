"""Who computes what in the next step.

There are no phases: a sequence has tokens whose K and V are computed and tokens whose K and V are
not. Each step hands out one budget of tokens:

1. Running sequences that lack a single token, so that no stream waits behind a prompt. Where
   streams step aside, one step of a tenant that has been served less may come first (`precedence`).
2. Then lane by lane, that of the tenant first which has been served least (see `queue`):
   running sequences that lack more, in order, as much of each as the budget allows;
   waiting sequences, in order, while there are seats, blocks and budget.

If a running sequence cannot get the blocks it needs, the last in order that holds some for it is
preempted: it lets go of its blocks, of which the published ones can be found again when it resumes.
So is the last of a tenant that has more than its share of the seats, where one that has less waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from functools import partial
from itertools import count

from pagoda.cache import AttentionWindow, CacheManager, PrefixMatch
from pagoda.cache.window import FULL_ATTENTION
from pagoda.errors import InvalidRequestError
from pagoda.request import Request
from pagoda.scheduling.admitter import Admitter, is_ready
from pagoda.scheduling.checks import require_options
from pagoda.scheduling.ending import ABORT, Ending
from pagoda.scheduling.in_hand import InHand
from pagoda.scheduling.precedence import Precedence
from pagoda.scheduling.prefix_loads import NoLoads, PrefixLoads
from pagoda.scheduling.queue import POLICIES, Lane, OrderedSequences, in_order
from pagoda.scheduling.register import Register
from pagoda.scheduling.seats import Seats
from pagoda.scheduling.sequence import Sequence, Status, choices_of, longest, open_table
from pagoda.scheduling.service import Service
from pagoda.scheduling.stats import SchedulerStats
from pagoda.scheduling.step import ScheduledSequence, StepPlan
from pagoda.scheduling.step_builder import StepBuilder
from pagoda.sizing.step_limits import MAX_PROMPT_LOGIT_ROWS

BURST_STEPS = 4
"""Steps' worth of tokens that a tenant may be ahead of others with when it comes."""


class Scheduler:
    """Decides each step and keeps every sequence's state. It touches no array."""

    def __init__(
        self,
        cache: CacheManager,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        policy: str = "fcfs",
        long_prefill_token_threshold: int = 0,
        max_prompt_logit_rows: int = MAX_PROMPT_LOGIT_ROWS,
        retention: AttentionWindow = FULL_ATTENTION,
        tenant_weights: Mapping[str, float] | None = None,
        streams_step_aside: bool = False,
        loads: PrefixLoads | None = None,
    ) -> None:
        """`max_num_batched_tokens` is the budget of a step, and also bounds the seats: every
        running sequence can always compute one token.

        A positive `long_prefill_token_threshold` bounds the tokens of one sequence in a step, and
        `max_prompt_logit_rows` those of all prompts whose log-probabilities are asked for.
        `retention`: what rows see of requests that do not say it. `tenant_weights`: what tenants
        are due beside others, in proportion; 1 of those that are not named. `streams_step_aside`:
        for the first token of a tenant that has been served less (see `precedence`). `loads`: who
        brings prefixes that are not in the cache; None: nobody.
        """
        require_options(
            policy=policy,
            long_prefill_token_threshold=long_prefill_token_threshold,
            tenant_weights=tenant_weights,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_prompt_logit_rows=max_prompt_logit_rows,
        )
        self.cache = cache
        self.in_hand = InHand()
        """Whom `schedule` or `update` has come to, should it break off."""
        self._budget = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._chunk = long_prefill_token_threshold or max_num_batched_tokens
        self._max_prompt_rows = max_prompt_logit_rows
        self.open_table = partial(open_table, cache, retention)
        """Makes the table of a request's sequence, which holds nothing yet."""
        # A tenant that comes may begin with a prompt of some steps before others go on.
        self._service = Service(tenant_weights, burst=BURST_STEPS * max_num_batched_tokens)
        self._waiting = OrderedSequences(POLICIES[policy], self._service)
        self._running = OrderedSequences(POLICIES[policy], self._service)
        num_seats = min(max_num_seqs, max_num_batched_tokens)
        self._seats = Seats(
            num_seats, self._service, self._running, self._waiting, partial(is_ready, cache=cache)
        )
        self.loads: PrefixLoads = loads or NoLoads()
        self._admitter = Admitter(
            cache, self.in_hand, self._seats, self._running, self._waiting, self.loads
        )
        self._precedence = Precedence(
            cache,
            self._service,
            self._running,
            self._waiting,
            budget=self._budget if streams_step_aside else 0,
            most_tokens=self._chunk,
        )
        self._register = Register()
        self._ids = count()
        self._num_preemptions = 0
        self._num_computed_tokens = 0
        self._num_finished: Counter[str] = Counter()

    # ---- requests come and go ----------------------------------------------------------------

    def add(self, request: Request) -> tuple[Sequence, ...]:
        """Let a request wait for its turn; returns its sequences, one for each of `n` choices.

        The first choice computes the prompt; the others fork from it when it has.
        Raises `InvalidRequestError` if the request id is in use.
        """
        sequences = self.open(request)
        self.enter(sequences)
        return sequences

    def open(self, request: Request) -> tuple[Sequence, ...]:
        """The sequences of a request, for `enter`; nothing is changed yet.

        Raises `InvalidRequestError` if the request id is in use.
        """
        if self._register.has_request(request.request_id):
            raise InvalidRequestError("request_id", request.request_id, "is already in use")
        most = longest(request, self._max_model_len)
        return choices_of(request, most, self._ids, self.open_table)

    def enter(self, sequences: tuple[Sequence, ...]) -> None:
        """Let all sequences of one request wait for their turn.

        All of them are here afterwards, or none, if this fails.
        """
        try:
            self._register.add(sequences)
            for sequence in sequences:
                self._waiting.add(sequence)
            self._service.come(each.tenant for each in sequences)
        except BaseException:
            self._register.discard(sequences)
            for sequence in sequences:
                self._waiting.discard(sequence)
            self._service.keep(each.tenant for each in self._register)
            raise

    def abort(self, request_id: str) -> None:
        """End a request's unfinished sequences at once; no effect if there are none."""
        for sequence in self._register.of(request_id):
            self.finish(sequence, ABORT)

    def finish(self, sequence: Sequence, ending: Ending) -> None:
        """End one sequence and free its blocks; no effect if it has ended."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._running.remove(sequence)
            self.cache.free(sequence.table, sequence.request.options.cache_hint)
            self._admitter.look_again()
        else:
            self._waiting.remove(sequence)
            if sequence.awaited_load is not None:
                sequence.awaited_load.abandon()
        sequence.status = Status.FINISHED
        sequence.ending = ending
        self._num_finished[ending.reason] += 1
        self._register.discard([sequence])
        self._service.go(sequence.tenant)

    def start_over(self, unfinished: Iterable[Sequence]) -> None:
        """Compute these sequences again from their tokens; no others are left.

        After a call that broke off in the middle of a change nothing but the sequences' tokens is
        trusted: they all wait and hold no blocks, and the cache is empty.
        """
        self.cache.reset()
        self.loads.start_over()
        self._admitter.look_again()
        before, self._register = self._register, Register(unfinished)
        self._waiting.clear()
        self._running.clear()
        self._service.keep(each.tenant for each in self._register)
        for sequence in self._register:
            sequence.start_over(self.open_table(sequence.request))
            self._waiting.add(sequence)
        self._num_finished[ABORT.reason] += len(before) - len(self._register)

    @property
    def max_num_batched_tokens(self) -> int:
        """The budget of a step."""
        return self._budget

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at once."""
        return self._seats.num_seats

    @property
    def streams_step_aside(self) -> bool:
        """They do for the first token of a tenant that has been served less."""
        return self._precedence.is_given

    @property
    def has_unfinished(self) -> bool:
        return bool(self._register.by_id)

    def sequence(self, sequence_id: int) -> Sequence:
        """An unfinished sequence. Raises KeyError if there is none of that id."""
        return self._register[sequence_id]

    def stats(self) -> SchedulerStats:
        """Counts and state as of now."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self._num_preemptions,
            num_computed_tokens=self._num_computed_tokens,
            num_finished=dict(self._num_finished),
        )

    # ---- a step ------------------------------------------------------------------------------

    def schedule(self, held_back: Container[int] = ()) -> StepPlan:
        """Decide the next step and reserve the blocks it writes to.

        The plan counts as carried out from here on. More may be decided before `update` says what
        came of it, to be carried out after it (see `RunAhead`). Sequences that are `held_back`, by
        their ids, do not go on while a token of theirs is not known.
        """
        step = StepBuilder(self._budget)
        for victim in self._seats.who_makes_way():
            self._preempt(victim)
        streams = [each for each in self._running if each.num_uncomputed_tokens == 1]
        is_alone = self._serve_alone(streams, step, held_back)
        self._precedence.settle(is_given=is_alone)
        if not is_alone:
            others = (each for each in streams if each not in step.scheduled)
            self._continue(others if step.scheduled else streams, step, held_back)
            for lane in in_order(self._running.lanes | self._waiting.lanes, self._service):
                self._serve(lane, step, held_back)
        for sequence, scheduled in step.scheduled.items():
            sequence.num_computed_tokens = scheduled.stop
            sequence.num_pending_tokens += scheduled.samples
            self._service.serve(sequence.tenant, scheduled.stop - scheduled.start)
        self._service.settle()
        return step.plan(self.cache.block_size)

    def update(self, scheduled: ScheduledSequence, token_id: int | None) -> Sequence | None:
        """Take note of what one sequence did in a step that was carried out.

        Steps come in the order of their plans, and all sequences of each. `token_id` is the new
        token of a sequence that samples. Appends it, publishes full blocks and forks choices.
        Returns the sequence if it got a token, for the caller to `judge` and, where it ends, to
        `finish` before the next call of `schedule`; None if not, or if it has ended meanwhile. It
        leaves the sequence's request in hand, for the caller to do what follows.
        """
        sequence = self._register.get(scheduled.sequence_id)
        if sequence is None:
            return None
        self.in_hand.request_id = sequence.request.request_id
        self._num_computed_tokens += scheduled.stop - scheduled.start
        if sequence.stay == scheduled.stay:  # not preempted meanwhile
            self.cache.commit(sequence.table, sequence.token_ids, scheduled.stop)
        if token_id is None:
            return None
        if sequence.num_output_tokens == 0:
            self._fork_choices(sequence, may_share=sequence.stay == scheduled.stay)
        sequence.num_pending_tokens -= 1
        sequence.append(token_id)
        return sequence

    # ---- inside: running ---------------------------------------------------------------------

    def _serve_alone(
        self, streams: list[Sequence], step: StepBuilder, held_back: Container[int]
    ) -> bool:
        """Let a tenant begin whose own streams alone go on; False: none has."""
        lane = self._precedence.lane(streams)
        if lane is None:
            return False
        own = [each for each in streams if each.tenant == lane.tenant]
        self._continue(own, step, held_back)
        num_streams = len(step.scheduled)
        self._serve(lane, step, held_back)
        return len(step.scheduled) > num_streams

    def _serve(self, lane: Lane, step: StepBuilder, held_back: Container[int]) -> None:
        """Let the prompts of a lane go on, then those begin that wait in it."""
        prompts = [each for each in self._running.of(lane) if each.num_uncomputed_tokens > 1]
        self._continue(prompts, step, held_back)
        for sequence, match in self._admitter.admitted(lane, step):
            self._begin(sequence, match, step)

    def _continue(
        self, sequences: Iterable[Sequence], step: StepBuilder, held_back: Container[int]
    ) -> None:
        for sequence in sequences:
            if step.budget == 0:
                break
            self.in_hand.request_id = sequence.request.request_id
            is_held = sequence.num_pending_tokens and (
                sequence.sequence_id in held_back or sequence.num_tokens >= sequence.max_num_tokens
            )
            if sequence.status is Status.RUNNING and not is_held:
                self._compute(sequence, step)
        self.in_hand.request_id = None

    def _compute(self, sequence: Sequence, step: StepBuilder) -> None:
        start = sequence.num_computed_tokens
        num_new = min(sequence.num_uncomputed_tokens, step.budget, self._chunk)
        if sequence.wants_prompt_rows(start):
            num_new = min(num_new, self._max_prompt_rows - step.num_prompt_rows)
        if num_new == 0:
            return
        stop = start + num_new
        while (copies := self.cache.reserve(sequence.table, start, stop)) is None:
            if self.loads.make_room(sequence.table):
                continue
            step.awaits_pool |= not self.cache.allowance(sequence.table).is_capped
            victim = self._running.last(partial(self.cache.helps, sequence.table))
            self.in_hand.request_id = victim.request.request_id
            step.take_back(victim)
            self._preempt(victim)
            if victim is sequence:
                return
            self.in_hand.request_id = sequence.request.request_id
        step.give(sequence, start, stop, copies)

    def _preempt(self, sequence: Sequence) -> None:
        self.in_hand.request_id = sequence.request.request_id
        self._running.remove(sequence)
        self.cache.free(sequence.table)
        sequence.num_computed_tokens = 0
        sequence.stay += 1
        sequence.awaited_load = None
        sequence.status = Status.WAITING
        self._num_preemptions += 1
        self._waiting.add(sequence)

    # ---- inside: waiting ---------------------------------------------------------------------

    def _begin(self, sequence: Sequence, match: PrefixMatch, step: StepBuilder) -> None:
        is_first = sequence.stay == 0
        lookup = self.cache.acquire(sequence.table, sequence.token_ids, match, counted=is_first)
        sequence.num_computed_tokens = match.num_tokens
        if is_first:
            sequence.found(lookup, match.num_tokens)
        self._run(sequence)
        self._compute(sequence, step)

    def _run(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        self._running.add(sequence)
        sequence.status = Status.RUNNING

    # ---- inside: after a step ----------------------------------------------------------------

    def _fork_choices(self, parent: Sequence, *, may_share: bool) -> None:
        """Let the other choices of the request share the prompt that has just been computed.

        A fork computes the prompt's last token once more, into a block of its own, and draws its
        first token from that. Where seats are short, or the parent has been preempted meanwhile and
        what it had is not to be shared, a choice waits and begins like any other sequence.
        """
        choices = self._register.of(parent.request.request_id)
        for sequence in [choice for choice in choices if choice.fork_parent is parent]:
            sequence.fork_parent = None
            if may_share and self._seats.has_one_for(self._waiting.lane_of(sequence)):
                sequence.table = self.cache.fork(parent.table, parent.num_prompt_tokens)
                sequence.num_computed_tokens = parent.num_prompt_tokens - 1
                sequence.num_cached_tokens = sequence.num_computed_tokens
                self._run(sequence)
