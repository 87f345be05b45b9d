"""How long requests take that are submitted at once, taken from the engine's steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pagoda.engine.core import Engine
from pagoda.engine.outputs import RequestOutput
from pagoda.request import Request, SamplingParams
from pagoda.roofline import Work


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request's course, in seconds after all of them were submitted."""

    first_token_s: float
    last_token_s: float
    num_output_tokens: int

    @property
    def seconds_per_token(self) -> float | None:
        """After the first token; None where that is the only one."""
        if self.num_output_tokens == 1:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One run of a workload."""

    duration_s: float
    requests: tuple[RequestTimes, ...]
    num_cached_tokens: int
    """Prompt tokens of all requests that came from the cache."""

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)

    @property
    def time_to_first_token_s(self) -> float:
        """The mean over all requests."""
        return fmean(request.first_token_s for request in self.requests)

    @property
    def time_per_output_token_s(self) -> float | None:
        """The mean over all requests of more than one token; None if there are none."""
        times = [request.seconds_per_token for request in self.requests]
        known = [seconds for seconds in times if seconds is not None]
        return fmean(known) if known else None


def time_run(engine: Engine, work: Work) -> RunTimes:
    """Answer all of `work` greedily, each to its full length, and take the times.

    The engine must be idle. Raises `InvalidRequestError` if it refuses a request.
    """
    started = time.perf_counter()
    asked = requests_for(engine, work)
    first_s: dict[str, float] = {}
    last_s: dict[str, float] = {}
    finished: dict[str, RequestOutput] = {}
    try:
        for request in asked:
            engine.add(request)
        while len(finished) < len(asked):
            outputs = engine.step()
            now_s = time.perf_counter() - started
            for output in outputs:
                first_s.setdefault(output.request_id, now_s)
                last_s[output.request_id] = now_s
                if output.finished:
                    finished[output.request_id] = output
        duration_s = time.perf_counter() - started
    finally:
        for request in asked:
            engine.abort(request.request_id)
    return RunTimes(
        duration_s,
        tuple(
            RequestTimes(first_s[name], last_s[name], len(finished[name].outputs[0].token_ids))
            for name in first_s
        ),
        sum(output.num_cached_tokens for output in finished.values()),
    )


def requests_for(engine: Engine, work: Work) -> Sequence[Request]:
    """The requests of `work`; raises `InvalidRequestError` for one that the engine refuses."""
    return [
        engine.intake.request(
            f"timed-{number}",
            item.prompt_token_ids,
            SamplingParams(temperature=0, max_tokens=item.num_output_tokens, ignore_eos=True),
        )
        for number, item in enumerate(work)
    ]
