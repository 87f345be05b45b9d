"""Whatever fails, wherever it does, fails for those whom it was done for and for nobody else.

A crowd of all kinds of requests is answered again and again by one engine, each time with an error
at another place of engine, scheduler and cache. `--hypothesis-profile=long` takes every place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from ahead import let_run_ahead
from hypothesis import settings
from planted_errors import Code, Place, Places, Planted, of_transfers, require_nothing_left
from tiered import tiered_engine

from pagoda.engine.build import Model, connect
from pagoda.engine.core import Engine
from pagoda.engine.engine_thread import EngineThread
from pagoda.engine.launched_step import LaunchedStep
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.errors import EngineError, PagodaError
from pagoda.request import Request, SamplingParams
from pagoda.structured import StructuredOutputs
from tiers.fake_tier import FakeTier

pytestmark = pytest.mark.anyio  # whoever is woken asks for the running loop

NUM_PLACES = 60
"""Of each engine, in step and ahead, in a quick run."""
NUM_PLACES_OF_TRANSFERS = 12
"""Of an engine with a tier, whose other places are those of engines without."""
NUM_BLOCKS = 18
OWN_LOOP = ("_take_orders", "_carry_out", "_step", "_tell")
CALLERS_PART = ("submit", "ask", "abandon")
OF_THE_THREAD = [
    *(f"EngineThread.{name}" for name in OWN_LOOP + CALLERS_PART),
    *("_tell_refused", "OwnProcess.require"),
]
CODE = Code(
    *("engine", "scheduling", "cache"),
    skipped=frozenset(
        ("_put_all", "News.clear", "Engine.has_unfinished", "Scheduler.has_unfinished")
    ).union(OF_THE_THREAD),
)
"""Where errors are planted: not in what callers run, nor in the thread's own loop and what it goes
by, which ends with the first error in it."""

SHARED = "The pagoda has five "
CROWD: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (SHARED + "floors", {"temperature": 0}),
    "choices": (SHARED + "roofs", {"temperature": 1.0, "seed": 7, "n": 3}),
    "stop": ("one two three", {"temperature": 1.0, "seed": 9, "stop": ["e", "a", "t"]}),
    "logprobs": (SHARED, {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1}),
    "penalties": ("x", {"temperature": 0, "presence_penalty": 1.5}),
    "grammar": ("a", {"temperature": 1.0, "seed": 2,
                      "structured_outputs": StructuredOutputs(regex="[a-f]+")}),
    "aborted": (SHARED + "and", {"temperature": 0, "max_tokens": 40, "ignore_eos": True}),
    "late": (SHARED + "floors", {"temperature": 0.7, "seed": 3, "top_p": 0.9}),
}  # fmt: skip
ARRIVES = {"late": 3, "grammar": 2}
"""After how many steps; the others at once."""
ABORTED_AFTER = 10


class Mailbox:
    """What waits to be done in a caller's event loop."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def is_closed(self) -> bool:
        return False

    def empty(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Caller:
    """Stands where a stream does, and keeps all that comes."""

    def __init__(self, loop: Mailbox) -> None:
        self.loop = loop
        self.outputs: list[RequestOutput] = []
        self.errors: list[PagodaError] = []

    def put(self, arrived: RequestOutput | PagodaError) -> None:
        if isinstance(arrived, PagodaError):
            self.errors.append(arrived)
        elif not self.errors:
            self.outputs.append(arrived)

    @property
    def deltas(self) -> list[str]:
        """The text of each choice as it came, piece by piece."""
        choices = zip(*(output.outputs for output in self.outputs), strict=True)
        return ["".join(choice.delta for choice in pieces) for pieces in choices]


class SteppedThread(EngineThread):
    """Takes orders, and leaves it to a test when."""

    _has_started = True


class Served:
    """An engine, stepped as its thread does, and the crowd's requests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.thread = SteppedThread(engine, chores=iter(()), gives_turns=False)
        self.requests = {name: request_of(engine, name) for name in CROWD}
        self.names: dict[int, str] = {}
        """The requests of all sequences there were, by their ids."""

    def run(self, watch: Places | Planted | None = None) -> dict[str, Caller]:
        """Answer everybody; `watch` is told of every step."""
        loop, step = Mailbox(), 0
        callers = {name: Caller(loop) for name in CROWD}
        while step <= ABORTED_AFTER or self.engine.has_unfinished:
            if watch is not None:
                watch.begin_round(step)
            for name, request in self.requests.items():
                if ARRIVES.get(name, 0) == step:
                    self.thread.ask(request, None, callers[name], streams=True)  # type: ignore[arg-type]
            if step == ABORTED_AFTER:
                self.thread.abandon("aborted", callers["aborted"])  # type: ignore[arg-type]
            self.thread._take_orders(wait=False)
            for sequence_id, choice in self.engine._roster.choices.items():
                self.names[sequence_id] = choice.sequence.request.request_id
            if self.engine.has_unfinished:
                self.thread._step()
            loop.empty()
            step += 1
            assert step < 400, "somebody is never answered"
        return callers

    def require_baseline(self) -> None:
        """Nothing is left of any request."""
        require_nothing_left(self.engine, NUM_BLOCKS)
        assert not self.thread._streams.request_ids


def request_of(engine: Engine, name: str) -> Request:
    prompt, sampling = CROWD[name]
    return engine.intake.request(name, prompt, SamplingParams(**{"max_tokens": 12, **sampling}))


def engine_of(model: Model, **options: Any) -> Engine:
    return connect(model, EngineOptions(block_size=4, **options))


def said(output: RequestOutput) -> list[tuple[object, ...]]:
    return [
        (choice.token_ids, choice.text, choice.finish_reason, choice.stop_reason, choice.logprobs)
        for choice in output.outputs
    ] + [(output.prompt_logprobs,)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def alone(tiny_model: Model) -> dict[str, list[tuple[object, ...]]]:
    """What each request is answered that has an engine to itself."""
    answers = {}
    for name in CROWD:
        engine = engine_of(tiny_model, num_gpu_blocks_override=256)
        engine.add(request_of(engine, name))
        while engine.has_unfinished:
            outputs = engine.step()
        answers[name] = said(outputs[-1])
    return answers


@pytest.fixture(scope="module", params=["in step", "ahead", "tiers"])
def served(tiny_model: Model, request: pytest.FixtureRequest) -> Iterator[Served]:
    model = replace(tiny_model, max_model_len=4 * NUM_BLOCKS)
    options = {
        "num_gpu_blocks_override": NUM_BLOCKS, "max_num_batched_tokens": 24, "max_num_seqs": 8,
    }  # fmt: skip
    logging.getLogger("pagoda").setLevel(logging.CRITICAL + 1)  # hundreds of tracebacks are meant
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiers":
            engine = tiered_engine(model, FakeTier(), patch=patch, block_size=4, **options)
        else:
            engine = engine_of(model, **options)
        yield Served(let_run_ahead(engine) if request.param == "ahead" else engine)
    logging.getLogger("pagoda").setLevel(logging.NOTSET)


def concerned_in(planted: Planted, served: Served) -> set[str] | None:
    """Whom an error is for that comes up where it did; None if it is for one request at most."""
    for name, held in planted.held:
        if name == "deliver":
            return {output.request_id for output in held["outputs"]}
        if name == "_launch" and "plan" in held:
            return {served.names[each.sequence_id] for each in held["plan"].sequences}
        if name == "wait" and isinstance(held["self"], LaunchedStep):
            return {served.names[each.sequence_id] for each in held["self"].plan.sequences}
    return None


async def test_a_crowd_without_an_error(served: Served, alone: dict[str, Any]) -> None:
    before = served.engine.stats().num_preemptions
    callers = served.run()
    for name, caller in callers.items():
        assert not caller.errors
        if name != "aborted":
            assert said(caller.outputs[-1]) == alone[name]
    served.require_baseline()
    assert served.engine.stats().num_preemptions > before, "the crowd is to be too large"


async def test_an_error_anywhere_is_nobody_elses(served: Served, alone: dict[str, Any]) -> None:
    served.run()  # so that tiers have what comes again
    served.engine.reset_prefix_cache()
    lines = Places(CODE)
    with lines.taken_down():
        served.run(lines)
    places, num_places = lines.all(), NUM_PLACES
    has_tiers = bool(served.engine.transfers.stats().shelves)
    if has_tiers:
        places, num_places = of_transfers(places), NUM_PLACES_OF_TRANSFERS
    if settings.get_current_profile_name() != "long":
        places = Random(0).sample(places, num_places)
    num_reached = 0
    for number, place in enumerate(places):
        served.engine.reset_prefix_cache()
        error = (MemoryError, RuntimeError)[number % 2](f"planted at {place}")
        planted = Planted(CODE, place, error)
        with planted.armed():
            callers = served.run(planted)
        if has_tiers:  # an error among stores is the last: no more is stored
            served.engine.transfers._has_failed = False  # type: ignore[attr-defined]
        num_reached += bool(planted.frames)
        check(callers, alone, planted, place, served)
        served.require_baseline()
    assert num_reached > 0.9 * len(places)


def check(
    callers: dict[str, Caller],
    alone: dict[str, Any],
    planted: Planted,
    place: Place,
    served: Served,
) -> None:
    failed = {name for name, caller in callers.items() if caller.errors}
    for name, caller in callers.items():
        if name in failed:
            assert all(type(error) is EngineError for error in caller.errors), place
        elif name != "aborted":
            assert caller.outputs[-1].finished, place
            assert said(caller.outputs[-1]) == alone[name], (place, name)
            assert caller.deltas == [text for _, text, *_ in alone[name][:-1]], (place, name)
    concerned = concerned_in(planted, served)
    if concerned is None:
        assert len(failed) <= 1, (place, failed)
    else:
        assert failed <= concerned, (place, failed, concerned)
