"""When the sequences of an engine arrive, begin, get their tokens and end.

    arrival ──────── first step ──────── first token ─── … ─── last token
       |── queue ──────>|── prefill ───────>|── decode ──────────>|
       |── time to first token ────────────>|
       |── end to end ───────────────────────────────────────────>|

A sequence that is aborted leaves no time of a whole request, only what it had reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable

from pagoda.engine.histogram import Histogram
from pagoda.scheduling import Sequence, StepPlan

_TOKEN_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60),
)
_REQUEST_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 7.5),
    *(10, 15, 30, 60, 120, 300, 600, 1800),
)
_STEP_TOKENS = tuple(2**power for power in range(15))
_REQUEST_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class _Course:
    """How far one sequence has come, in seconds of the clock."""

    __slots__ = ("began", "first_token", "last_token")

    def __init__(self) -> None:
        self.began = self.first_token = self.last_token = 0.0


class Timeline:
    """Times and sizes of everything that an engine has done; the histograms' names are vLLM's.

    One thread tells it what happens; any may read the figures.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is the one that requests' arrival times are of."""
        self._clock = clock
        self._concluded_at = 0.0
        self._waiting: dict[int, _Course] = {}
        self._running: dict[int, _Course] = {}
        self.time_to_first_token_seconds = Histogram(_REQUEST_SECONDS)
        self.inter_token_latency_seconds = Histogram(_TOKEN_SECONDS)
        self.request_time_per_output_token_seconds = Histogram(_TOKEN_SECONDS)
        self.e2e_request_latency_seconds = Histogram(_REQUEST_SECONDS)
        self.request_queue_time_seconds = Histogram(_REQUEST_SECONDS)
        self.request_prefill_time_seconds = Histogram(_REQUEST_SECONDS)
        self.request_decode_time_seconds = Histogram(_REQUEST_SECONDS)
        self.iteration_tokens_total = Histogram(_STEP_TOKENS)
        self.request_prompt_tokens = Histogram(_REQUEST_TOKENS)
        self.request_generation_tokens = Histogram(_REQUEST_TOKENS)
        self.num_prompt_tokens = 0
        """Tokens in the prompts of all requests that came."""
        self.num_prompt_tokens_cached = 0
        """Tokens of prompts that are done which came from the cache."""
        self.num_prompt_tokens_computed = 0
        """All other tokens of prompts that are done."""
        self.num_generation_tokens = 0
        """Without those that nobody wanted (see `SamplingParams.prompt_alone`)."""

    def arrived(self, sequences: Iterable[Sequence]) -> None:
        """They wait for their first step."""
        for sequence in sequences:
            self._waiting[sequence.sequence_id] = _Course()
            if sequence.index == 0:  # the choices of a request share one prompt
                self.num_prompt_tokens += sequence.num_prompt_tokens

    def scheduled(self, plan: StepPlan) -> None:
        """A step begins."""
        self.iteration_tokens_total.observe(plan.num_scheduled_tokens)
        if not self._waiting:
            return
        now = self._clock()
        for scheduled in plan.sequences:
            course = self._waiting.get(scheduled.sequence_id)
            if course is not None:
                course.began = now
                self._running[scheduled.sequence_id] = course
                del self._waiting[scheduled.sequence_id]

    def concluded(self) -> None:
        """A step's tokens are here: this is when all its sequences have `progressed`."""
        self._concluded_at = self._clock()

    def progressed(self, sequence: Sequence) -> None:
        """The sequence got a token from that step, and its ending if that was the last."""
        now = self._concluded_at
        course = self._running[sequence.sequence_id]
        is_wanted = not sequence.request.sampling.prompt_alone
        self.num_generation_tokens += is_wanted
        if sequence.num_output_tokens == 1:
            course.first_token = now
            if is_wanted:
                arrival = sequence.request.arrival_time
                self.time_to_first_token_seconds.observe(now - arrival)
            if sequence.index == 0:
                self._count_prompt(sequence)
        else:
            self.inter_token_latency_seconds.observe(now - course.last_token)
        course.last_token = now
        if sequence.ending is not None:
            self._end(sequence, course)

    def forget(self, sequence_id: int) -> None:
        """The sequence gets no more tokens; no effect if it has ended."""
        self._waiting.pop(sequence_id, None)
        self._running.pop(sequence_id, None)

    def forget_others(self, sequence_ids: Container[int]) -> None:
        """No other sequences than these get any more tokens."""
        for sequence_id in [*self._waiting, *self._running]:
            if sequence_id not in sequence_ids:
                self.forget(sequence_id)

    def _count_prompt(self, sequence: Sequence) -> None:
        self.num_prompt_tokens_cached += sequence.num_cached_tokens
        self.num_prompt_tokens_computed += sequence.num_prompt_tokens - sequence.num_cached_tokens

    def _end(self, sequence: Sequence, course: _Course) -> None:
        del self._running[sequence.sequence_id]
        arrival, num_tokens = sequence.request.arrival_time, sequence.num_output_tokens
        decode_s = course.last_token - course.first_token
        self.e2e_request_latency_seconds.observe(course.last_token - arrival)
        self.request_queue_time_seconds.observe(course.began - arrival)
        self.request_prefill_time_seconds.observe(course.first_token - course.began)
        self.request_decode_time_seconds.observe(decode_s)
        if num_tokens > 1:
            self.request_time_per_output_token_seconds.observe(decode_s / (num_tokens - 1))
        if sequence.index == 0:
            self.request_prompt_tokens.observe(sequence.num_prompt_tokens)
        is_wanted = not sequence.request.sampling.prompt_alone
        self.request_generation_tokens.observe(num_tokens if is_wanted else 0)
