"""A trace through scheduler and cache, by a model of time.

    arrivals that are due ── schedule ── the cost model says how long ── update, judge, finish

Scheduler, cache and judge are those that serve; a step's computing alone is left out. Requests
arrive by their times. Where the trace tells how many steps its server had taken, they arrive by
steps instead: with that server's settings the same is decided in every step, whatever the clock
says. They are timed from where in a step they came, as the trace tells.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pagoda.cache import CacheManager
from pagoda.cache.accounts import Holding
from pagoda.cache_hint import CacheHint
from pagoda.errors import IntegrityError
from pagoda.replay.clock import Clock
from pagoda.replay.course import Course, Percentiles, Records
from pagoda.replay.found import Found
from pagoda.replay.step_cost import StepCost, StepWork
from pagoda.replay.trace import TracedRequest
from pagoda.replay.turn_times import TurnTimes
from pagoda.request import Request, RequestOptions, SamplingParams
from pagoda.scheduling import RunAhead, ScheduledSequence, Scheduler, Sequence, StepPlan, judge
from pagoda.scheduling.ending import END_OF_SEQUENCE

_ANY_TOKEN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOutcome(Found):
    """What scheduler and cache did, and when; times are the model's."""

    num_output_tokens: int
    num_computed_tokens: int
    """Those computed again after preemption included."""
    num_steps: int
    num_preemptions: int
    span_s: float
    """From the first arrival to the last end."""
    time_to_first_token: Percentiles
    end_to_end: Percentiles
    holdings: Mapping[str, Holding]
    """Blocks and block-seconds by tenant; a block that several share counts once."""

    @property
    def block_seconds(self) -> Mapping[str, float]:
        """Blocks that sequences held times the seconds they did, by tenant."""
        return {tenant: each.held_block_seconds for tenant, each in self.holdings.items()}

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers in a second."""
        return self.num_output_tokens / self.span_s if self.span_s else 0.0


class _LaunchedStep:
    """A step that the device, were there one, has been given."""

    awaited: frozenset[int] = frozenset()

    def __init__(self, plan: StepPlan, end_s: float) -> None:
        self.plan = plan
        self.end_s = end_s

    @property
    def drawing(self) -> tuple[int, ...]:
        return tuple(one.sequence_id for one in self.plan.sequences if one.samples)


class ScheduleReplay:
    """Serves a trace once."""

    def __init__(
        self,
        scheduler: Scheduler,
        cost: StepCost,
        *,
        max_model_len: int,
        steps_ahead: int = 0,
        by_steps: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """max_model_len: longer requests are refused. steps_ahead: as `RunAhead`. by_steps:
        requests arrive after so many turns as the trace tells, where it does."""
        self.scheduler = scheduler
        self.clock = clock or Clock()
        self._cost = cost
        self._cache: CacheManager = scheduler.cache
        most = self._cache.stats().num_blocks * self._cache.block_size
        self._longest = min(max_model_len, most)
        self._by_steps = by_steps
        self._ahead: RunAhead[_LaunchedStep] = RunAhead(steps_ahead)
        self._courses: dict[int, Course] = {}
        self._given_up: dict[int, list[Sequence]] = {}
        """Requests that are given up after so many turns."""
        self._records = Records()
        self._begin_s: float | None = None
        self._busy_until_s = 0.0
        """When the device will have carried out all that was launched."""
        self._num_steps = 0
        self._num_turns = 0
        self._turn_times = TurnTimes()
        self._num_requests = 0
        self._refused = array("q")
        self._num_output_tokens = 0

    def run(
        self, requests: Iterable[TracedRequest], on_request: Callable[[], None] = lambda: None
    ) -> ScheduleOutcome:
        """All requests, in order of arrival; `on_request` is called as each arrives."""
        arrivals = iter(requests)
        due = next(arrivals, None)
        while True:
            is_idle = not self.scheduler.has_unfinished and not self._ahead
            if is_idle and due is None:
                break
            if is_idle and due is not None:
                self.clock.wait_until(due.arrival_s)
                self._num_turns = max(self._num_turns, due.arrival_step or 0)  # of an older file
            while due is not None and (is_idle or self._is_due(due)):
                self._arrive(due)
                is_idle = False
                on_request()
                due = next(arrivals, None)
            self._give_up()
            if not self._step() and due is not None:
                self.clock.wait_until(due.arrival_s)
        return self._outcome()

    def _is_due(self, request: TracedRequest) -> bool:
        if self._by_steps and request.arrival_step is not None:
            return request.arrival_step <= self._num_turns
        return request.arrival_s <= self.clock.now

    def _arrive(self, request: TracedRequest) -> None:
        came_at = self._arrival_s(request)
        if self._begin_s is None:
            self._begin_s = came_at
        num_output = max(1, request.num_output_tokens)
        if request.num_prompt_tokens + num_output > self._longest:
            self._refused.append(self._num_requests + len(self._refused))
            return
        is_given_up = request.end_step is not None and self._by_steps
        if is_given_up:
            num_output = self._longest - request.num_prompt_tokens
        name = str(self._num_requests)
        self._num_requests += 1
        asked = Request(
            name,
            request.prompt(),
            _sampling(num_output + request.stopped),
            options=_options(request.tenant, request.cache_salt, request.cache_hint),
            arrival_time=request.arrival_s,
        )
        [sequence] = self.scheduler.add(asked)
        self._courses[sequence.sequence_id] = Course(came_at, num_output)
        if is_given_up and request.end_step is not None:
            self._given_up.setdefault(request.end_step, []).append(sequence)

    def _arrival_s(self, request: TracedRequest) -> float:
        """When it arrived, by the model: steps that were under way then take their time here."""
        now, place = self.clock.now, request.arrival_turn
        if not self._by_steps:
            return request.arrival_s
        if place is None:
            return now
        return self._turn_times.time_of(place, num_turns=self._num_turns, now=now)

    def _give_up(self) -> None:
        for step in [each for each in self._given_up if each <= self._num_turns]:
            for sequence in self._given_up.pop(step):
                self.scheduler.abort(sequence.request.request_id)
                self._courses.pop(sequence.sequence_id, None)

    def _step(self) -> bool:
        """Launch a step, and conclude one; False if there was neither."""
        self._turn_times.begin(self._num_turns, self.clock.now)
        plan = self.scheduler.schedule(self._ahead.held_back)
        launched = self._launch(plan) if plan.sequences else None
        concluded = self._ahead.advance(launched)
        self._num_turns += launched is not None or concluded is not None
        if concluded is not None:
            self._conclude(concluded)
        elif launched is None and self.scheduler.has_unfinished:
            raise IntegrityError("a replayed scheduler has requests and plans nothing")
        return concluded is not None or launched is not None

    def _launch(self, plan: StepPlan) -> _LaunchedStep:
        begin_s = max(self.clock.now, self._busy_until_s)
        end_s = begin_s + self._cost.seconds(StepWork.of(plan))
        self._busy_until_s = end_s
        self._num_steps += 1
        return _LaunchedStep(plan, end_s)

    def _conclude(self, step: _LaunchedStep) -> None:
        self.clock.wait_until(step.end_s)
        for one in step.plan.sequences:
            self._progress(one)

    def _progress(self, scheduled: ScheduledSequence) -> None:
        token = _ANY_TOKEN if scheduled.samples else None
        sequence = self.scheduler.update(scheduled, token)
        if sequence is None:
            return
        course = self._courses[sequence.sequence_id]
        self._num_output_tokens += 1
        if course.first_token_s is None:
            self._records.first_token(course, self.clock.now)
        ending = judge(sequence)
        if ending is None and sequence.num_output_tokens >= course.num_output_tokens:
            ending = END_OF_SEQUENCE
        if ending is not None:
            self.scheduler.finish(sequence, ending)
            self._records.ended(course, self.clock.now)
            del self._courses[sequence.sequence_id]

    def _outcome(self) -> ScheduleOutcome:
        cache, stats = self._cache.stats(), self.scheduler.stats()
        return ScheduleOutcome(
            num_requests=self._num_requests,
            refused=self._refused,
            num_prompt_tokens=cache.prefix_queries,
            num_hit_tokens=cache.prefix_hits,
            num_output_tokens=self._num_output_tokens,
            num_computed_tokens=stats.num_computed_tokens,
            num_steps=self._num_steps,
            num_evictions=cache.evictions,
            num_preemptions=stats.num_preemptions,
            span_s=self.clock.now - (self._begin_s or 0.0),
            time_to_first_token=self._records.time_to_first_token,
            end_to_end=self._records.end_to_end,
            holdings=self._cache.holdings(),
        )


@lru_cache(maxsize=4096)
def _sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


@lru_cache(maxsize=4096)
def _options(tenant: str, cache_salt: str, hint: CacheHint | None) -> RequestOptions:
    return RequestOptions(tenant=tenant, cache_salt=cache_salt, cache_hint=hint)
