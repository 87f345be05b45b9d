"""An interrupt, wherever it comes, ends one request at most, and everybody is told once.

A crowd is answered again and again through `SharedSteps`, each time interrupted at another line of
engine and scheduler. `--hypothesis-profile=long` takes every place.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from random import Random
from types import FrameType
from typing import Any, NoReturn

import pytest
from ahead import let_run_ahead
from hypothesis import settings
from planted_errors import Code, Place, Places, Planted, of_transfers, require_nothing_left
from tiered import tiered_engine

from pagoda.cache import CacheManager
from pagoda.engine.build import Model, connect
from pagoda.engine.core import Engine
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.engine.shared_steps import Inbox, SharedSteps
from pagoda.errors import PagodaError
from pagoda.request import SamplingParams
from pagoda.scheduling import Scheduler
from scheduling.fake_model import request
from tiers.fake_tier import FakeTier

NUM_PLACES = 30
"""Of each engine and kind in a quick run."""
NUM_BLOCKS = 9
CODE = Code("engine", "scheduling", skipped=frozenset())
FILES = (
    {
        f"engine/{name}.py"
        for name in ("core", "recovery", "roster", "news", "failures", "timeline", "shared_steps")
    }
    | {"scheduling/scheduler.py", "scheduling/sequence.py"}
    | {
        f"engine/transfers/{name}.py"
        for name in ("loads", "load", "incoming", "stores", "transfers")
    }
)
CROWD: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("one two", {"temperature": 0}),
    "choices": ("three", {"temperature": 1.0, "seed": 7, "n": 2}),
    "stop": ("four five", {"temperature": 1.0, "seed": 9, "stop": ["e", "a"]}),
    "penalties": ("x", {"temperature": 0, "presence_penalty": 1.5}),
}


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


class Twice(Planted):
    """A second interrupt, some calls after the first.

    Python ends its tracing with the first error that a trace function raises; it goes on to
    profile.
    """

    def __init__(self, place: Place, num_calls: int) -> None:
        super().__init__(CODE, place, KeyboardInterrupt())
        self.num_calls = num_calls
        """Until the second; 0 behind it, or where there is none."""

    def _raise(self) -> NoReturn:
        if self.num_calls:
            sys.setprofile(self._later)
        super()._raise()

    def _later(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and CODE.has(frame.f_code):
            self.num_calls -= 1
            if not self.num_calls:
                sys.setprofile(None)
                raise KeyboardInterrupt

    @contextmanager
    def armed(self) -> Iterator[None]:
        with super().armed():
            try:
                yield
            finally:
                sys.setprofile(None)


class Crowd:
    """Everybody's inbox, filled by steps that go on after an interrupt."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.steps = engine, SharedSteps(engine)
        self.inboxes: dict[str, Inbox] = {name: deque() for name in CROWD}

    def run(self, planted: Planted | None = None) -> None:
        with ExitStack() as running:
            for name, (prompt, sampling) in CROWD.items():
                params = SamplingParams(**{"max_tokens": 5, **sampling})
                asked = self.engine.intake.request(name, prompt, params)
                running.enter_context(
                    self.steps.running(asked, None, self.inboxes[name], streams=True)
                )
            with ExitStack() as armed:
                if planted is not None:
                    armed.enter_context(planted.armed())
                self._step_to_the_end()
            assert not self.engine._roster.assemblers, "told, but not forgotten"

    def _step_to_the_end(self) -> None:
        for _ in range(200):
            with suppress(KeyboardInterrupt):
                if not self.engine.has_unfinished:
                    return
                self.steps.between(self.steps._step)
        raise AssertionError("somebody is never answered")

    def require_told_once(self, alone: dict[str, Any], place: Place) -> None:
        ended = set()
        for name, inbox in self.inboxes.items():
            errors = [told for told in inbox if isinstance(told, PagodaError)]
            outputs = [told for told in inbox if not isinstance(told, PagodaError)]
            num_finished = sum(output.finished for output in outputs)
            assert len(errors) + num_finished == 1, (place, name, errors, num_finished)
            if errors:
                assert "interrupted" in str(errors[0]), (place, name)
                ended.add(name)
            else:
                assert said(inbox) == alone[name], (place, name)
        assert len(ended) <= 1, (place, ended)

    def require_baseline(self) -> None:
        require_nothing_left(self.engine, NUM_BLOCKS)
        assert not self.steps._inboxes


def said(inbox: Inbox) -> list[tuple[object, ...]]:
    """Tokens and text of each choice, as a whole and as they came."""
    outputs: Any = list(inbox)
    pieces = zip(*(output.outputs for output in outputs), strict=True)
    return [
        (choices[-1].token_ids, choices[-1].text, "".join(choice.delta for choice in choices))
        for choices in pieces
    ]


@pytest.fixture(scope="module", params=["in step", "ahead", "tiers"])
def engine(tiny_model: Model, request: pytest.FixtureRequest) -> Iterator[Engine]:
    model = replace(tiny_model, max_model_len=4 * NUM_BLOCKS)
    options = {
        "block_size": 4, "num_gpu_blocks_override": NUM_BLOCKS, "max_num_batched_tokens": 24,
    }  # fmt: skip
    logging.getLogger("pagoda").setLevel(logging.CRITICAL + 1)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiers":
            made = tiered_engine(model, FakeTier(), patch=patch, **options)
            Crowd(made).run()  # so that the tier has what comes again
        else:
            made = connect(model, EngineOptions(**options))  # type: ignore[arg-type]
        yield let_run_ahead(made) if request.param == "ahead" else made
    logging.getLogger("pagoda").setLevel(logging.NOTSET)


@pytest.mark.parametrize("twice", [False, True])
def test_wherever_an_interrupt_comes_everybody_is_told_once(engine: Engine, twice: bool) -> None:
    engine.reset_prefix_cache()
    lines, crowd = Places(CODE), Crowd(engine)
    with lines.taken_down():
        crowd.run()
    alone = {name: said(inbox) for name, inbox in crowd.inboxes.items()}
    random = Random(0)
    places, num_places = [place for place in lines.all() if place.file in FILES], NUM_PLACES
    if engine.transfers.stats().shelves:  # other places are those of engines without tiers
        places, num_places = of_transfers(lines.all()), NUM_PLACES // 4
    if settings.get_current_profile_name() != "long":
        places = random.sample(places, num_places)
    num_twice = 0
    for place in places:
        engine.reset_prefix_cache()
        crowd = Crowd(engine)
        num_calls = random.choice([1, 2, 3, 5, 8, 13, 20, 30]) if twice else 0
        planted = Twice(place, num_calls)
        crowd.run(planted)
        num_twice += planted.num_calls < num_calls
        crowd.require_told_once(alone, place)
        crowd.require_baseline()
    assert not twice or num_twice > len(places) // 2, "hardly a second interrupt came"


def test_a_finished_answer_is_no_error(engine: Engine) -> None:
    """At every line between the last output and the end of its request."""
    engine.reset_prefix_cache()
    lines, crowd = Places(Code("engine", skipped=frozenset())), Crowd(engine)
    with lines.taken_down():
        crowd.run()
    alone = {name: said(inbox) for name, inbox in crowd.inboxes.items()}
    first, last = lines_of(Engine._forget)
    in_forget = [
        place
        for place in lines.all()
        if place.file == "engine/core.py" and first <= place.line <= last
    ]
    assert in_forget
    for place in in_forget:
        crowd = Crowd(engine)
        crowd.run(Twice(place, 0))
        assert all(inbox[-1].finished for inbox in crowd.inboxes.values()), place  # type: ignore[union-attr]
        crowd.require_told_once(alone, place)


def lines_of(function: Callable[..., Any]) -> tuple[int, int]:
    lines = [line for _, _, line in function.__code__.co_lines() if line is not None]
    return min(lines) + 1, max(lines)


def test_between_two_sequences_nobody_is_in_hand(engine: Engine, monkeypatch) -> None:
    """An interrupt when all of a step's tokens are settled ends nobody."""

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    crowd = Crowd(engine)
    for name, (prompt, sampling) in CROWD.items():
        params = SamplingParams(**{"max_tokens": 5, **sampling})
        engine.add(engine.intake.request(name, prompt, params))
    for _ in range(2):
        engine.step()
    monkeypatch.setattr(engine, "_tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.advance()
    assert not engine.news.errors
    assert engine._roster.assemblers.keys() == CROWD.keys()
    for name in CROWD:
        engine.abort(name)
    crowd.require_baseline()


@pytest.mark.parametrize("where", ["victim", "spoken for", "after"])
def test_a_scheduler_that_breaks_off_names_whom_it_has_come_to(monkeypatch, where: str) -> None:
    num_blocks = 5 if where == "victim" else 16
    scheduler = Scheduler(
        CacheManager(num_blocks, 2), max_num_batched_tokens=8, max_num_seqs=4, max_model_len=8
    )
    scheduler.add(request("a", [7, 1, 2, 3], max_tokens=5))
    scheduler.add(request("b", [8, 1], max_tokens=5))
    named: list[str | None] = []

    def fail(*_: object) -> None:
        named.append(scheduler.in_hand.request_id)
        raise MemoryError

    def step() -> None:
        for scheduled in scheduler.schedule().sequences:
            scheduler.update(scheduled, 1)
        scheduler.in_hand.request_id = None

    step()
    if where == "victim":
        monkeypatch.setattr(scheduler.cache, "free", fail)
    elif where == "spoken for":
        scheduler.add(request("c", [9, 9], max_tokens=5))
        asked = scheduler.cache.num_blocks_to_go_on
        monkeypatch.setattr(
            scheduler.cache,
            "num_blocks_to_go_on",
            lambda table, num: fail() if scheduler.in_hand.request_id == "a" else asked(table, num),
        )
    else:
        monkeypatch.setattr("pagoda.scheduling.step_builder.StepBuilder.plan", fail)
    with pytest.raises(MemoryError):
        deque((step() for _ in range(4)), maxlen=0)
    assert named == [{"victim": "b", "spoken for": "a", "after": None}[where]]


def test_a_stream_that_the_collector_ends_in_a_step_disturbs_nobody(make_llm) -> None:
    llm: LLM = make_llm()
    expected = llm.generate("one two", greedy(4), use_tqdm=False)[0].outputs[0].token_ids
    execute = llm.engine._runner.execute

    def collecting(*given: Any) -> Any:
        gc.collect()
        assert len(llm.engine._roster.assemblers) == 2, "ended in the middle of the step"
        llm.engine._runner.execute = execute  # type: ignore[method-assign]
        return execute(*given)

    def drop_a_stream() -> None:
        stream = llm.stream("abc", greedy(30))
        next(stream)
        cycle: list[Any] = [stream]
        cycle.append(cycle)

    gc.disable()
    try:
        drop_a_stream()
        llm.engine._runner.execute = collecting  # type: ignore[method-assign]
        answer = llm.generate("one two", greedy(4), use_tqdm=False)[0]
    finally:
        gc.enable()
    assert answer.outputs[0].token_ids == expected
    require_idle(llm)


def test_whoever_leaves_during_anothers_step_waits_for_nothing(make_llm) -> None:
    """A second Ctrl-C finds no lock to be waited for, and nothing is left behind."""
    llm: LLM = make_llm()
    execute, begun, left = llm.engine._runner.execute, threading.Event(), threading.Event()

    def slow(*given: Any) -> Any:
        begun.set()
        assert left.wait(60)
        return execute(*given)

    stream = llm.stream("abc", greedy(100))
    next(stream)
    llm.engine._runner.execute = slow  # type: ignore[method-assign]
    answers: list[Any] = []
    other = threading.Thread(
        target=lambda: answers.extend(llm.generate("one two", greedy(4), use_tqdm=False))
    )
    other.start()
    assert begun.wait(60)
    stream.close()  # type: ignore[attr-defined]
    left.set()
    other.join()
    assert answers[0].finished
    require_idle(llm)
    assert llm.stats().num_finished["abort"] == 1


@pytest.mark.parametrize("where", ["_end_abandoned", "_abort_abandoned"])
def test_an_interrupt_while_leaving_leaves_no_request_to_compute(
    make_llm, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    llm: LLM = make_llm()
    stream = llm.stream("abc", greedy(100))
    next(stream)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm._steps, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.close()  # type: ignore[attr-defined]
    llm.generate("one two", greedy(4), use_tqdm=False)
    require_idle(llm)
    assert llm.stats().num_finished["abort"] == 1


def require_idle(llm: LLM) -> None:
    assert not llm.engine._roster.assemblers
    assert not llm.engine.has_unfinished
    assert not llm._steps._inboxes
    llm.engine.scheduler.cache.check_integrity()
