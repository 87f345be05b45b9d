"""An engine that is one step ahead of what it knows says what one says that is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ahead import KeepingExecutor, let_run_ahead, with_runner
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.engine.build import Model, connect
from pagoda.engine.core import Engine
from pagoda.engine.failures import StepFailedError
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.runner import AheadRunner, Runner
from pagoda.execution.batch import Batch
from pagoda.request import SamplingParams
from pagoda.structured import StructuredOutputs

PROMPTS = ["The pagoda has five floors", "The pagoda has", "one two three four", "x"]
WORD = StructuredOutputs(regex="[a-f]+")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.0, "seed": 5},
    "nucleus": {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 6},
    "choices": {"temperature": 1.0, "seed": 7, "n": 3},
    "stop": {"temperature": 1.0, "seed": 8, "stop_token_ids": list(range(0, 288, 9))},
    "stop string": {"temperature": 1.0, "seed": 9, "stop": ["e", "a", "t"]},
    "logprobs": {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1},
    "penalties": {"temperature": 0, "presence_penalty": 1.5, "repetition_penalty": 1.3},
    "bias": {"temperature": 1.0, "seed": 4, "logit_bias": {5: 3.0, 70: -2.0}},
    "allowed": {"temperature": 1.0, "seed": 4, "allowed_token_ids": list(range(60, 90))},
    "min_tokens": {"temperature": 1.0, "seed": 3, "min_tokens": 4, "stop_token_ids": [*range(64)]},
    "grammar": {"temperature": 1.0, "seed": 2, "structured_outputs": WORD},
}  # fmt: skip


@dataclass(frozen=True)
class Ask:
    prompt: str
    kind: str
    max_tokens: int
    after_step: int
    aborted_after: int | None


ASKS = st.lists(
    st.builds(
        Ask,
        prompt=st.sampled_from(PROMPTS),
        kind=st.sampled_from(sorted(KINDS)),
        max_tokens=st.integers(4, 12),
        after_step=st.integers(0, 8),
        aborted_after=st.none() | st.integers(1, 20),
    ),
    min_size=1,
    max_size=6,
)


def engine_of(model: Model, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"num_gpu_blocks_override": 64, "block_size": 4}
    return connect(model, EngineOptions(**(defaults | options)))


def request_of(engine: Engine, request_id: str, ask: Ask):
    sampling = SamplingParams(max_tokens=ask.max_tokens, **KINDS[ask.kind])
    return engine.intake.request(request_id, ask.prompt, sampling)


def answers(engine: Engine, asks: list[Ask]) -> dict[str, RequestOutput]:
    """The finished answers of requests that come and go between the steps."""
    found = {}
    step = 0
    while engine.has_unfinished or any(ask.after_step >= step for ask in asks):
        for number, ask in enumerate(asks):
            if ask.after_step == step:
                engine.add(request_of(engine, str(number), ask), ask.prompt)
            if ask.aborted_after is not None and ask.after_step + ask.aborted_after == step:
                engine.abort(str(number))
        for output in engine.step() if engine.has_unfinished else ():
            if output.finished:
                found[output.request_id] = output
        engine.scheduler.cache.check_integrity()
        step += 1
    return found


def said(output: RequestOutput) -> list[tuple[object, ...]]:
    return [
        (choice.token_ids, choice.text, choice.finish_reason, choice.stop_reason, choice.logprobs)
        for choice in output.outputs
    ]


@settings(max_examples=25, deadline=None)
@given(asks=ASKS, num_blocks=st.sampled_from([32, 64]), budget=st.sampled_from([5, 512]))
def test_answers_are_those_of_an_engine_that_waits(
    tiny_model: Model, asks: list[Ask], num_blocks: int, budget: int
) -> None:
    ahead = let_run_ahead(
        engine_of(tiny_model, num_gpu_blocks_override=num_blocks, max_num_batched_tokens=budget)
    )
    found = answers(ahead, asks)
    for number, ask in enumerate(asks):
        output = found.get(str(number))
        if output is None:
            assert ask.aborted_after is not None, "an answer is missing"
            continue
        alone = engine_of(tiny_model)
        alone.add(request_of(alone, str(number), ask), ask.prompt)
        outputs = [output for _ in range(20) if alone.has_unfinished for output in alone.step()]
        assert said(output) == said(outputs[-1])
    assert ahead.scheduler.cache.num_free_blocks == num_blocks


class Recorder(KeepingExecutor):
    """Notes what is launched; fails, or gives a first row of NaN, where it is told to."""

    def __init__(self, executor) -> None:
        super().__init__(executor)
        self.batches: list[Batch] = []
        self.fails_at: int | None = None
        self.is_sick_at: int | None = None

    def forward(self, batch: Batch) -> torch.Tensor:
        self.batches.append(batch)
        if len(self.batches) == self.fails_at:
            raise RuntimeError("the device is lost")
        logits = super().forward(batch)
        if len(self.batches) == self.is_sick_at:
            logits[0] = torch.nan
        return logits


def recorded(model: Model, kind: type[Runner] = AheadRunner) -> tuple[Engine, Recorder]:
    engine = engine_of(model)
    recorder = Recorder(engine._runner._executor)
    return with_runner(engine, kind(recorder)), recorder


def ask_for(engine: Engine, request_id: str, kind: str, max_tokens: int = 6) -> None:
    engine.add(request_of(engine, request_id, Ask("x", kind, max_tokens, 0, None)))


def test_a_step_is_launched_before_the_last_ones_tokens_are_read(tiny_model: Model) -> None:
    engine, recorder = recorded(tiny_model)
    ask_for(engine, "a", "greedy")
    assert engine.step() == []
    assert len(recorder.batches) == 1
    [output] = engine.step()
    assert len(output.outputs[0].token_ids) == 1
    assert len(recorder.batches) == 2
    drawn = recorder.batches[1].drawn
    assert (drawn.rows.tolist(), drawn.places.tolist()) == ([0], [0])


def test_no_step_is_launched_for_tokens_that_cannot_be_wanted(tiny_model: Model) -> None:
    engine, recorder = recorded(tiny_model)
    ask_for(engine, "a", "greedy", max_tokens=4)
    while engine.has_unfinished:
        engine.step()
    assert len(recorder.batches) == 4


@pytest.mark.parametrize("kind", ["penalties", "min_tokens", "grammar"])
def test_who_needs_the_last_token_waits_for_it_and_nobody_else_does(
    tiny_model: Model, kind: str
) -> None:
    engine, recorder = recorded(tiny_model)
    ask_for(engine, "a", kind, max_tokens=4)
    ask_for(engine, "b", "greedy", max_tokens=4)
    for _ in range(4):
        engine.step()
    assert [batch.num_tokens for batch in recorder.batches] == [2, 1, 2, 1]
    taken = [(b.drawn.rows.tolist(), b.drawn.places.tolist()) for b in recorder.batches[:3]]
    assert taken == [
        ([], []),
        ([0], [1]),  # the other one goes on alone, with the second token that was drawn
        ([1], [0]),  # the first one's token is known by now
    ]


@pytest.mark.parametrize("kind", ["bias", "allowed"])
def test_what_changes_all_steps_alike_waits_for_no_token(tiny_model: Model, kind: str) -> None:
    engine, recorder = recorded(tiny_model)
    ask_for(engine, "a", kind, max_tokens=4)
    ask_for(engine, "b", "greedy", max_tokens=4)
    while engine.has_unfinished:
        engine.step()
    assert [batch.num_tokens for batch in recorder.batches] == [2, 2, 2, 2]


@pytest.mark.parametrize("kind", [Runner, AheadRunner])
def test_logits_that_are_not_finite_end_their_own_request_alone(
    tiny_model: Model, kind: type[Runner]
) -> None:
    engine, recorder = recorded(tiny_model, kind)
    recorder.is_sick_at = 1
    ask_for(engine, "sick", "greedy")
    ask_for(engine, "beside", "greedy")
    told: list[str] = []
    outputs: list[RequestOutput] = []
    for number in range(20):
        if number == 1:
            ask_for(engine, "later", "greedy")
        try:
            outputs += engine.step() if engine.has_unfinished else []
        except StepFailedError as failed:
            told += failed.errors
            outputs += failed.outputs
        engine.scheduler.cache.check_integrity()
    assert told == ["sick"]
    finished = {output.request_id: output for output in outputs if output.finished}
    assert finished.keys() == {"beside", "later"}
    assert said(finished["beside"]) == said(finished["later"])
    assert [len(o.outputs[0].token_ids) for o in outputs if o.request_id == "beside"] == [
        *range(1, 7)
    ], "an output went missing"


def test_a_launch_that_fails_ends_its_own_requests_and_no_others(tiny_model: Model) -> None:
    engine, recorder = recorded(tiny_model)
    ask_for(engine, "a", "greedy")
    engine.step()
    recorder.fails_at = 2
    with pytest.raises(StepFailedError) as failed:
        engine.step()
    assert list(failed.value.errors) == ["a"]
    ask_for(engine, "b", "greedy")
    outputs = [output for _ in range(10) if engine.has_unfinished for output in engine.step()]
    assert {output.request_id for output in outputs} == {"b"}
    waiting = engine_of(tiny_model)
    ask_for(waiting, "b", "greedy")
    expected = [output for _ in range(10) if waiting.has_unfinished for output in waiting.step()]
    assert said(outputs[-1]) == said(expected[-1])
    engine.scheduler.cache.check_integrity()
