"""Threads beside the event loop: short texts pass long ones, and all give way to the engine."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.intake_threads import IntakeThreads
from pagoda.errors import InvalidRequestError, RequestTimeoutError, ShutDownError
from pagoda.request import SamplingParams

pytestmark = pytest.mark.anyio
LONG, SHORT = 2**20, 10


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What is waited for in a thread, until the test ends at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[IntakeThreads]:
    monkeypatch.setattr("pagoda.engine.intake_threads.num_usable_cores", lambda: 2)
    threads = IntakeThreads()
    yield threads
    threads.close()


async def test_short_texts_wait_for_no_long_ones(
    threads: IntakeThreads, held: threading.Event
) -> None:
    long = [asyncio.create_task(threads.run("", LONG, held.wait)) for _ in range(5)]
    assert await threads.run("", SHORT, int, "7") == 7
    assert not any(task.done() for task in long)
    held.set()
    assert all(await asyncio.gather(*long))


async def test_one_tenant_s_texts_wait_for_no_queue_of_another(
    threads: IntakeThreads, held: threading.Event
) -> None:
    order: list[str] = []
    first = asyncio.create_task(threads.run("a", SHORT, held.wait))
    await asyncio.sleep(0)
    queued = [asyncio.create_task(threads.run("a", SHORT, order.append, "a")) for _ in range(50)]
    await asyncio.sleep(0)
    other = asyncio.create_task(threads.run("b", SHORT, order.append, "b"))
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(first, other, *queued)
    assert order.index("b") <= 1


async def test_half_of_the_cores_are_left_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    monkeypatch.setattr("pagoda.engine.intake_threads.num_usable_cores", lambda: 16)
    threads, before = IntakeThreads(), set(threading.enumerate())
    waiting = [asyncio.create_task(threads.run("", size, held.wait)) for size in (LONG, SHORT) * 12]
    await asyncio.sleep(0)
    assert len(set(threading.enumerate()) - before) == 8
    held.set()
    assert all(await asyncio.gather(*waiting))
    threads.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
async def test_they_give_way(threads: IntakeThreads) -> None:
    for size in (LONG, SHORT):
        assert await threads.run("", size, os.nice, 0) > os.nice(0)


async def test_what_waits_is_done_after_they_close_and_nothing_more(
    threads: IntakeThreads, held: threading.Event
) -> None:
    waiting = [asyncio.create_task(threads.run("", LONG, held.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    threads.close()
    with pytest.raises(ShutDownError):
        await threads.run("", SHORT, int, "7")
    held.set()
    assert all(await asyncio.gather(*waiting))
    while any(each.name.startswith("long-texts") for each in threading.enumerate()):
        await asyncio.sleep(0.001)


async def test_time_runs_while_a_request_waits_for_a_thread(
    make_llm, held: threading.Event
) -> None:
    engine = AsyncEngine(make_llm().engine)
    engine.start()
    busy = [engine.tokenizer._threads.run("", SHORT, held.wait) for _ in range(64)]
    waiting = asyncio.gather(*busy)
    await asyncio.sleep(0)
    with pytest.raises(RequestTimeoutError, match=r"0\.05 seconds"):
        await anext(engine.generate("x", SamplingParams(), request_id="x", timeout_s=0.05))
    held.set()
    await waiting
    await engine.shutdown()
    with pytest.raises(ShutDownError):
        await engine.tokenizer.encode("x", tenant="")


async def test_token_ids_wait_for_no_thread(make_llm, held: threading.Event) -> None:
    engine = AsyncEngine(make_llm().engine)
    engine.start()
    waiting = asyncio.gather(
        *(engine.tokenizer._threads.run("", SHORT, held.wait) for _ in range(64))
    )
    await asyncio.sleep(0)
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    [output] = [each async for each in engine.generate([1, 2], sampling, request_id="ids")]
    assert len(output.outputs[0].token_ids) == 1
    with pytest.raises(InvalidRequestError, match="prompt"):
        await anext(engine.generate([1, -1], sampling, request_id="refused"))
    held.set()
    await waiting
    await engine.shutdown()
    with pytest.raises(ShutDownError):
        await anext(engine.generate([1, 2], sampling, request_id="late"))
