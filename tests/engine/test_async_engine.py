"""Many callers at once, over a tiny random model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pagoda.engine import streams
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.engine_thread import Order
from pagoda.engine.grammar import Matcher, MatchError
from pagoda.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    RequestTimeoutError,
    ShutDownError,
)
from pagoda.request import RequestOptions, SamplingParams
from pagoda.structured import StructuredOutputs

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def engine(make_llm) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(make_llm().engine)
    engine.start()
    yield engine
    await engine.shutdown()


async def answer(engine: AsyncEngine, prompt: str, request_id: str) -> list[int]:
    async for output in engine.generate(prompt, GREEDY, request_id=request_id):
        last = output
    assert last.finished
    return list(last.outputs[0].token_ids)


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_callers_get_what_they_would_get_alone(engine: AsyncEngine, make_llm) -> None:
    prompts = [f"caller {number}" for number in range(8)]
    found = await asyncio.gather(
        *(answer(engine, prompt, str(number)) for number, prompt in enumerate(prompts))
    )
    llm = make_llm()
    for prompt, tokens in zip(prompts, found, strict=True):
        (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
        assert list(output.outputs[0].token_ids) == tokens


@pytest.mark.parametrize("given", [None, {"temperature": 0}, "hot"])
async def test_sampling_params_of_another_kind_are_refused_by_name(
    given: Any, engine: AsyncEngine
) -> None:
    outputs = engine.generate("hi", given, request_id="a")
    with pytest.raises(InvalidRequestError, match="must be a SamplingParams") as refused:
        await anext(outputs)
    assert refused.value.field == "sampling_params"


async def test_closing_the_iterator_aborts_the_request(engine: AsyncEngine) -> None:
    outputs = engine.generate("gone soon", GREEDY, request_id="a")
    await anext(outputs)
    await outputs.aclose()
    await until(lambda: engine.stats().num_finished.get("abort") == 1)
    assert engine.stats().kv_cache_usage == 0
    assert len(await answer(engine, "still there", "a")) == 30


async def test_a_cancelled_caller_aborts_its_request(engine: AsyncEngine) -> None:
    tasks = [asyncio.create_task(answer(engine, "x", str(number))) for number in range(5)]
    await until(lambda: engine.stats().num_requests_running > 0)
    for task in tasks[:4]:
        task.cancel()
    assert len(await tasks[4]) == 30
    await until(lambda: engine.stats().kv_cache_usage == 0)


async def test_bad_input_is_refused_before_the_first_output(engine: AsyncEngine) -> None:
    running = asyncio.create_task(answer(engine, "running", "running"))
    for prompt in ("", [288], [1] * 128):
        with pytest.raises(InvalidRequestError) as caught:
            await anext(engine.generate(prompt, GREEDY, request_id="bad"))
        assert caught.value.field == "prompt"
    assert len(await running) == 30


async def test_a_request_id_in_use_is_refused_and_its_owner_unharmed(engine: AsyncEngine) -> None:
    long = SamplingParams(temperature=0, max_tokens=110, ignore_eos=True)
    owner = engine.generate("owner", long, request_id="same")
    await anext(owner)
    with pytest.raises(InvalidRequestError, match="request_id"):
        await answer(engine, "intruder", "same")
    last = [output async for output in owner][-1]
    assert len(last.outputs[0].token_ids) == 110


async def test_a_failing_step_fails_its_requests_and_no_others(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = engine.engine._runner.execute
    steps = 0

    def fail_once(plan, drawn_last):
        nonlocal steps
        steps += 1
        if steps == 3:
            raise RuntimeError("secret detail")
        return execute(plan, drawn_last)

    monkeypatch.setattr(engine.engine._runner, "execute", fail_once)
    with pytest.raises(EngineError) as caught:
        await answer(engine, "unlucky", "a")
    assert "secret" not in str(caught.value)
    assert len(await answer(engine, "lucky", "b")) == 30
    engine.engine.scheduler.cache.check_integrity()


async def test_a_device_that_is_lost_ends_the_engine(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(engine.engine._runner, "execute", fail)
    monkeypatch.setattr(engine.engine._runner, "require_device", fail)
    with pytest.raises(EngineError):
        await answer(engine, "unlucky", "a")
    await asyncio.to_thread(engine._thread.join)
    assert not engine.is_alive
    with pytest.raises(EngineError):
        await answer(engine, "late", "b")


async def test_a_failure_between_steps_ends_what_runs_and_nothing_after(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = engine.engine.scheduler.cache
    commit = cache.commit
    broken = True

    def fail(*args):
        nonlocal broken
        if broken:
            broken = False
            raise RuntimeError("a bug")
        return commit(*args)

    monkeypatch.setattr(cache, "commit", fail)
    with pytest.raises(EngineError):
        await answer(engine, "unlucky", "a")
    assert len(await answer(engine, "lucky", "b")) == 30


async def test_shutdown_ends_what_is_left(make_llm, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine(make_llm().engine)
    step = engine.engine.step

    def slow_step():
        time.sleep(0.02)  # or the answer might be whole by then
        return step()

    monkeypatch.setattr(engine.engine, "step", slow_step)
    engine.start()
    outputs = engine.generate("unfinished", GREEDY, request_id="a")
    await anext(outputs)
    await engine.shutdown()
    with pytest.raises(EngineError):
        async for _ in outputs:
            pass


async def test_who_waits_for_a_step_that_hangs_is_told_of_the_end(
    make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, free = AsyncEngine(make_llm().engine), threading.Event()
    closed: list[bool] = []
    monkeypatch.setattr(engine.engine, "advance", free.wait)
    monkeypatch.setattr(engine.engine, "close", lambda: closed.append(engine.is_alive))
    engine.start()
    asked = [asyncio.create_task(answer(engine, "x", request_id)) for request_id in "ab"]
    try:
        await until(lambda: engine.engine.has_unfinished)
        await engine.shutdown(0.05)
        told = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
        assert [type(each) for each in told] == [ShutDownError] * 2
        await asyncio.wait_for(engine.shutdown(300), 20)  # it has been waited for already
        assert closed == []
    finally:
        free.set()
    await engine.shutdown()
    assert len(closed) == 1


async def test_an_order_that_hangs_is_told_of_the_end(make_llm) -> None:
    engine, free = AsyncEngine(make_llm().engine), threading.Event()
    engine.start()
    try:
        ordered = asyncio.create_task(asyncio.to_thread(engine.use_cache, free.wait))
        await until(lambda: engine._thread._in_hand is not None)
        await engine.shutdown(0.05)
        with pytest.raises(ShutDownError):
            await asyncio.wait_for(ordered, 20)
    finally:
        free.set()
    await engine.shutdown()
    assert not engine.is_alive


async def test_an_idle_engine_looks_again_whether_tiers_have_room(
    make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, looks = AsyncEngine(make_llm().engine), list[bool]()
    monkeypatch.setattr(engine.engine, "tidy", lambda: bool(looks.append(True)))
    monkeypatch.setattr(type(engine.engine.transfers), "awaits_room", True)
    engine.start()
    await until(lambda: len(looks) > 3)
    assert engine.is_alive
    await engine.shutdown()
    assert len(looks) > 3


async def test_after_shutdown_requests_are_refused(make_llm) -> None:
    engine = AsyncEngine(make_llm().engine)
    engine.start()
    assert engine.is_alive
    await engine.shutdown()
    assert not engine.is_alive
    with pytest.raises(EngineError, match="shut down"):
        await answer(engine, "too late", "a")


async def test_an_order_that_fails_does_not_end_the_engine(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = engine.engine.add

    def fail_once(request, prompt=None, **options):
        monkeypatch.setattr(engine.engine, "add", add)
        raise RuntimeError("a bug")

    monkeypatch.setattr(engine.engine, "add", fail_once)
    with pytest.raises(EngineError):
        await answer(engine, "unlucky", "a")
    assert len(await answer(engine, "lucky", "b")) == 30


async def test_a_slow_reader_gets_fewer_outputs_and_misses_nothing(engine: AsyncEngine) -> None:
    outputs = engine.generate("slow", GREEDY, request_id="slow")
    first = await anext(outputs)
    await until(lambda: engine.stats().num_finished.get("length") == 1)
    await asyncio.sleep(0.05)
    rest = [output async for output in outputs]
    assert len(rest) == 1
    text = first.outputs[0].delta + rest[0].outputs[0].delta
    assert text == rest[0].outputs[0].text
    assert len(rest[0].outputs[0].token_ids) == 30


async def test_who_does_not_stream_gets_the_last_output_alone(engine: AsyncEngine) -> None:
    stop = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=("zz",), n=2)
    for params in (GREEDY, stop):
        streamed = [o async for o in engine.generate("hush", params, request_id="a")]
        outputs = [o async for o in engine.generate("hush", params, request_id="b", streams=False)]
        (only,) = outputs
        assert only.finished
        for one, other in zip(only.outputs, streamed[-1].outputs, strict=True):
            assert (one.text, one.token_ids) == (other.text, other.token_ids)
            assert one.delta == one.text


async def test_a_conversation_too_long_is_refused_by_its_name(engine: AsyncEngine) -> None:
    for content in ("word " * 40, "x" * 10**6):
        with pytest.raises(InvalidRequestError) as caught:
            await engine.tokenizer.chat([{"role": "user", "content": content}], tenant="")
        assert caught.value.field == "messages"


async def test_seeds_are_drawn_in_the_order_of_the_callers(make_llm) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)

    async def texts() -> list[str]:
        engine = AsyncEngine(make_llm(seed=5).engine)
        engine.start()

        async def ask(number: int) -> str:
            # Prompts of very different lengths: the shorter ones are tokenised sooner.
            prompt = "word " * (20 - 4 * number)
            request_id = str(number)
            *_, last = [o async for o in engine.generate(prompt, params, request_id=request_id)]
            return last.outputs[0].text

        found = await asyncio.gather(*(ask(number) for number in range(4)))
        await engine.shutdown()
        return found

    assert await texts() == await texts()


async def test_a_request_has_its_time_from_its_arrival(engine: AsyncEngine) -> None:
    before = asyncio.get_running_loop().time() - 1000
    long_ago = engine.generate(
        "late", GREEDY, request_id="late", timeout_s=999.0, arrived_at=before
    )
    with pytest.raises(RequestTimeoutError, match="999 seconds"):
        async for _ in long_ago:
            pass
    await until(lambda: engine.stats().num_requests_running == 0)
    just_now = engine.generate("x", GREEDY, request_id="x", timeout_s=2000.0, arrived_at=before)
    assert [output.finished async for output in just_now][-1]


async def test_a_grammar_that_breaks_is_its_requests_own_fault(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = StructuredOutputs(regex="[a-z]{40}")
    bound = SamplingParams(max_tokens=40, structured_outputs=wanted)
    follow = Matcher.follow

    def break_late(self: Matcher, output_token_ids):
        if len(output_token_ids) == 5:
            raise MatchError("too complex")
        return follow(self, output_token_ids)

    monkeypatch.setattr(Matcher, "follow", break_late)
    beside = asyncio.create_task(answer(engine, "beside", "beside"))
    num_told = 0

    async def ask() -> None:
        nonlocal num_told
        async for output in engine.generate("x", bound, request_id="x"):
            num_told = len(output.outputs[0].token_ids)

    with pytest.raises(InvalidRequestError, match="too complex") as refused:
        await ask()
    assert refused.value.field == "structured_outputs"
    assert 0 < num_told <= 5
    assert len(await beside) == 30


async def test_everybody_is_told_by_an_engine_that_cannot_even_end_a_request(
    make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = make_llm().engine

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(inner, "advance", fail)
    monkeypatch.setattr(inner, "abort", fail)
    engine = AsyncEngine(inner)
    engine.start()
    asked = (answer(engine, request_id, request_id) for request_id in "abc")
    told = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert [type(each) for each in told] == [EngineError] * 3


async def test_an_answer_ends_with_the_window_and_none_is_longer(engine: AsyncEngine) -> None:
    prompt, most = [5] * 10, engine.max_model_len - 10
    fits = SamplingParams(temperature=0, max_tokens=engine.max_model_len, ignore_eos=True)
    long = SamplingParams(temperature=0, max_tokens=engine.max_model_len + 1, ignore_eos=True)

    async def ask(params: SamplingParams, field: str | None) -> int:
        options = RequestOptions(max_tokens_field=field)
        outputs = engine.generate(prompt, params, request_id="a", options=options)
        return [len(output.outputs[0].token_ids) async for output in outputs][-1]

    with pytest.raises(ContextLengthError, match=f"at most {engine.max_model_len}") as refused:
        await ask(long, "max_completion_tokens")
    assert (refused.value.field, refused.value.value) == ("max_completion_tokens", long.max_tokens)
    assert await ask(fits, "max_tokens") == await ask(long, None) == most


async def test_the_options_of_a_request_reach_the_engine_whole(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RequestOptions(priority=3, tenant="t", cache_salt="s", max_tokens_field="max_tokens")
    add, added = engine.engine.add, []

    def noting(request, *args, **kwargs) -> None:
        added.append(request)
        add(request, *args, **kwargs)

    monkeypatch.setattr(engine.engine, "add", noting)
    async for _ in engine.generate("x", GREEDY, request_id="a", options=options):
        pass
    assert [request.options for request in added] == [options]


async def test_chores_are_done_while_nothing_runs_and_requests_go_before(make_llm) -> None:
    running: list[bool] = []
    inner = make_llm().engine

    def chores() -> Iterator[None]:
        for _ in range(50):
            running.append(inner.has_unfinished)
            time.sleep(0.002)
            yield

    engine = AsyncEngine(inner, chores=chores())
    engine.start()
    await answer(engine, "in between", "a")
    assert len(running) < 50
    await until(lambda: len(running) == 50)
    await answer(engine, "afterwards", "b")
    await engine.shutdown()
    assert not any(running)


@pytest.mark.parametrize("takes_turns", [True, False])
async def test_callers_have_their_turn_before_the_next_step_where_cores_are_shared(
    takes_turns: bool, make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_TURN_S", 20)
    inner = make_llm().engine
    num_told, num_made, missed, advance = 0, 0, [], inner.advance

    def counted() -> None:
        nonlocal num_made
        missed.append(num_made - num_told)
        advance()
        num_made += len(inner.news.outputs)

    monkeypatch.setattr(inner, "advance", counted)
    engine = AsyncEngine(inner, takes_all_cores=takes_turns)
    engine.start()

    async def listen(request_id: str) -> None:
        nonlocal num_told
        async for _ in engine.generate("side by side", GREEDY, request_id=request_id):
            if not num_told:
                time.sleep(0.3)  # the event loop has something else to do
            num_told += 1

    await asyncio.gather(*(listen(request_id) for request_id in "abc"))
    await engine.shutdown()
    assert any(missed) is not takes_turns


async def test_a_request_whose_time_is_over_does_not_reach_the_engine(engine: AsyncEngine) -> None:
    arrived_at = asyncio.get_running_loop().time() - 2
    outputs = engine.generate(
        "too late", GREEDY, request_id="a", timeout_s=1, arrived_at=arrived_at
    )
    with pytest.raises(RequestTimeoutError):
        await anext(outputs)
    assert engine.engine.stats().prompt_tokens == 0


async def test_the_first_constraint_waits_for_no_vocabulary(
    make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[str] = []
    engine = AsyncEngine(make_llm().engine, warm_up_draws=lambda: warmed.append("draws"))
    engine.warm_up()
    assert warmed == ["draws"]
    monkeypatch.delattr("llguidance.LLTokenizer")  # it is not made again
    sampling = SamplingParams(structured_outputs=StructuredOutputs(choice=["yes", "no"]))
    assert engine.engine.intake.request("1", "x", sampling).grammar is not None


@pytest.mark.parametrize("given", [[1], {}, None, 5, ""])
async def test_an_id_that_no_request_can_have_is_refused_and_others_go_on(
    given: Any, engine: AsyncEngine
) -> None:
    running = asyncio.create_task(answer(engine, "running", "running"))
    await until(lambda: engine.stats().num_requests_running > 0)
    with pytest.raises(InvalidRequestError, match="must be a string, not empty") as refused:
        await asyncio.wait_for(answer(engine, "bad", given), 20)
    assert refused.value.field == "request_id"
    assert len(await running) == 30
    assert engine.is_alive


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *(("options", each) for each in (None, {"priority": 1}, "pin")),
        *(("timeout_s", each) for each in ("5", True, -1.0, float("nan"), [2])),
    ],
)
async def test_what_else_is_of_another_kind_is_refused_by_name(
    field: str, given: Any, engine: AsyncEngine
) -> None:
    outputs = engine.generate("hi", GREEDY, request_id="a", **{field: given})
    with pytest.raises(InvalidRequestError) as refused:
        await anext(outputs)
    assert refused.value.field == field


async def test_an_order_that_cannot_even_be_refused_does_not_end_the_engine(
    engine: AsyncEngine,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    engine._thread.submit(Order(fail, fail))
    assert len(await asyncio.wait_for(answer(engine, "next", "a"), 20)) == 30
    assert engine.is_alive


async def test_who_is_refused_is_told_before_the_request_is_ended(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(engine.engine, "add", fail)
        patch.setattr(engine.engine, "abort", fail)
        with pytest.raises(EngineError, match="the engine failed"):
            await asyncio.wait_for(answer(engine, "unlucky", "a"), 20)
    assert len(await answer(engine, "lucky", "b")) == 30


async def test_an_engine_that_was_not_started_says_so(make_llm) -> None:
    engine = AsyncEngine(make_llm().engine)
    for asked in (answer(engine, "early", "a"), engine.cache_snapshot()):
        with pytest.raises(EngineError, match="the engine was not started"):
            await asyncio.wait_for(asked, 20)
    engine.start()
    with pytest.raises(EngineError, match="was started before"):
        engine.start()
    assert len(await answer(engine, "in time", "a")) == 30
    await engine.shutdown()
