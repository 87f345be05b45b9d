"""Times by a clock that stands still unless it is moved."""

from __future__ import annotations

import pytest

from pagoda.cache import CacheManager
from pagoda.engine.histogram import Histogram
from pagoda.engine.llm import LLM
from pagoda.engine.timeline import Timeline
from pagoda.request import SamplingParams
from pagoda.scheduling import Scheduler
from scheduling.fake_model import FakeModel, conclude, request

STEP_S = 0.5
WHOLE_REQUESTS = (
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_generation_tokens",
)


class Run:
    """A scheduler whose steps take `STEP_S` each, and its timeline."""

    def __init__(self, **limits: int) -> None:
        options = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 64, **limits}
        self.scheduler = Scheduler(CacheManager(64, 4), **options)
        self.model = FakeModel(self.scheduler, 64)
        self.now = 0.0
        self.timeline = Timeline(lambda: self.now)

    def add(self, name: str, num_prompt: int, max_tokens: int, **sampling: object) -> None:
        prompt = range(num_prompt)
        made = request(name, prompt, max_tokens=max_tokens, arrival_time=self.now, **sampling)  # type: ignore[arg-type]
        self.timeline.arrived(self.scheduler.add(made))

    def step(self) -> None:
        plan = self.scheduler.schedule()
        self.timeline.scheduled(plan)
        sampled = self.model.execute(plan)
        self.now += STEP_S
        self.timeline.concluded()
        for sequence in conclude(self.scheduler, plan, sampled):
            self.timeline.progressed(sequence)

    def finish(self) -> None:
        while self.scheduler.has_unfinished:
            self.step()


def told(timeline: Timeline, name: str) -> tuple[int, float]:
    histogram: Histogram = getattr(timeline, name)
    return histogram.num_values, histogram.total


def test_one_request_after_another() -> None:
    run = Run(max_num_seqs=1)
    run.add("first", 10, 4)
    run.add("second", 7, 1)
    run.finish()
    # The second waits for the four steps of the first, then takes one.
    assert told(run.timeline, "request_queue_time_seconds") == (2, 4 * STEP_S)
    assert told(run.timeline, "request_prefill_time_seconds") == (2, 2 * STEP_S)
    assert told(run.timeline, "time_to_first_token_seconds") == (2, (1 + 5) * STEP_S)
    assert told(run.timeline, "e2e_request_latency_seconds") == (2, (4 + 5) * STEP_S)
    assert told(run.timeline, "inter_token_latency_seconds") == (3, 3 * STEP_S)
    assert told(run.timeline, "request_decode_time_seconds") == (2, 3 * STEP_S)
    assert told(run.timeline, "request_time_per_output_token_seconds") == (1, STEP_S)
    assert told(run.timeline, "request_prompt_tokens") == (2, 17)
    assert told(run.timeline, "request_generation_tokens") == (2, 5)
    num_cached = run.timeline.num_prompt_tokens_cached
    assert num_cached == 4  # one whole block of the second's prompt, which begins like the first
    assert run.timeline.num_prompt_tokens_computed == 17 - num_cached
    # Each step computes the tokens it must: prompts less what was cached, then one at a time.
    assert told(run.timeline, "iteration_tokens_total") == (5, 10 + 3 + 3)


def test_a_prompt_in_chunks_takes_as_many_steps() -> None:
    run = Run(max_num_batched_tokens=4)
    run.add("long", 10, 2)
    run.finish()
    assert told(run.timeline, "request_prefill_time_seconds") == (1, 3 * STEP_S)
    assert told(run.timeline, "time_to_first_token_seconds") == (1, 3 * STEP_S)
    assert told(run.timeline, "iteration_tokens_total") == (4, 11)


def test_choices_share_a_prompt_and_have_times_of_their_own() -> None:
    run = Run()
    run.add("three", 9, 2, n=3)
    run.finish()
    assert told(run.timeline, "request_prompt_tokens") == (1, 9)
    assert told(run.timeline, "request_generation_tokens") == (3, 6)
    assert run.timeline.num_prompt_tokens_computed == 9
    # Those that fork begin a step later.
    assert told(run.timeline, "request_queue_time_seconds") == (3, 2 * STEP_S)
    assert run.timeline.num_generation_tokens == 6


def test_a_prompt_alone_generates_nothing() -> None:
    run = Run()
    run.add("scored", 9, 1, prompt_alone=True)
    run.add("answered", 7, 3)
    run.finish()
    assert run.timeline.num_generation_tokens == 3
    assert told(run.timeline, "request_generation_tokens") == (2, 3)
    assert told(run.timeline, "time_to_first_token_seconds") == (1, 2 * STEP_S)
    assert told(run.timeline, "request_prompt_tokens") == (2, 16)
    # The second waits for the blocks that the first is just computing.
    assert told(run.timeline, "e2e_request_latency_seconds") == (2, (1 + 4) * STEP_S)


@pytest.mark.parametrize("num_steps", [0, 2])
def test_an_abort_leaves_no_time_of_a_whole_request(num_steps: int) -> None:
    run = Run()
    run.add("gone", 5, 30)
    for _ in range(num_steps):
        run.step()
    run.scheduler.abort("gone")
    run.timeline.forget(0)
    for name in WHOLE_REQUESTS:
        assert told(run.timeline, name) == (0, 0)
    assert run.timeline.time_to_first_token_seconds.num_values == min(num_steps, 1)
    run.add("next", 5, 1)
    run.finish()
    for name in WHOLE_REQUESTS:
        assert told(run.timeline, name)[0] == 1


def test_an_engine_tells_its_timeline(make_llm) -> None:
    llm: LLM = make_llm(max_num_seqs=1)
    lengths = (3, 5, 8)
    for length in lengths:
        sampling = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        llm.engine.add(llm.engine.intake.request(str(length), [1] * length, sampling))
    while llm.engine.has_unfinished:
        llm.engine.step()
    timeline, stats = llm.engine.timeline, llm.engine.stats()
    for name in WHOLE_REQUESTS:
        assert told(timeline, name)[0] == len(lengths)
    assert timeline.request_generation_tokens.total == stats.generation_tokens == sum(lengths)
    assert timeline.num_generation_tokens == sum(lengths)
    assert timeline.inter_token_latency_seconds.num_values == sum(lengths) - len(lengths)
    assert stats.prompt_tokens_cached + stats.prompt_tokens_computed == stats.prompt_tokens
    assert timeline.request_prompt_tokens.total == stats.prompt_tokens
    assert timeline.iteration_tokens_total.total == stats.num_computed_tokens
    parts = (
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
    )
    whole = timeline.e2e_request_latency_seconds.total
    assert sum(told(timeline, part)[1] for part in parts) == pytest.approx(whole)
    assert timeline.request_queue_time_seconds.total > 0


def test_an_engine_forgets_what_is_aborted(make_llm) -> None:
    engine = make_llm().engine
    for name in ("waits", "runs"):
        sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, n=2)
        engine.add(engine.intake.request(name, "some prompt", sampling))
        if name == "waits":
            engine.abort("waits")
    engine.step()
    engine.step()
    engine.abort("runs")
    assert engine.stats().num_finished == {"abort": 4}
    assert told(engine.timeline, "e2e_request_latency_seconds") == (0, 0)
    assert not engine.timeline._waiting
    assert not engine.timeline._running
