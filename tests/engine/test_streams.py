"""Outputs on their way from the engine's thread to the event loops of its callers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pagoda.engine.outputs import RequestOutput
from pagoda.engine.stream import Stream
from pagoda.engine.streams import Streams
from pagoda.errors import EngineError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def output_of(request_id: str, *, finished: bool = False) -> RequestOutput:
    return RequestOutput(request_id, None, [1], None, [], finished)


async def in_a_thread(function, *args) -> None:
    await asyncio.to_thread(function, *args)


async def test_an_error_takes_no_unread_output_away() -> None:
    streams, stream = Streams(gives_turns=False), Stream(asyncio.get_running_loop())
    streams.open("mine", stream)
    await in_a_thread(streams.deliver, [output_of("mine")])
    await in_a_thread(streams.fail, {"mine": EngineError("it broke")})
    await asyncio.sleep(0)
    assert (await stream.next()).request_id == "mine"
    with pytest.raises(EngineError, match="it broke"):
        await stream.next()


async def test_an_answer_ends_with_its_last_output_though_its_time_is_up_before_it_is_read() -> (
    None
):
    stream = Stream(asyncio.get_running_loop())
    stream.put(output_of("mine", finished=True))
    stream.put(EngineError("too late"))
    assert (await stream.next()).finished


async def test_an_output_reaches_its_own_caller_alone() -> None:
    streams, loop = Streams(gives_turns=False), asyncio.get_running_loop()
    here, there = Stream(loop), Stream(loop)
    streams.open("here", here)
    streams.open("there", there)
    await in_a_thread(streams.deliver, [output_of("here"), output_of("nobody's")])
    assert (await here.next()).request_id == "here"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(there.next(), 0.02)


async def test_a_finished_request_is_waited_for_no_longer() -> None:
    streams, stream = Streams(gives_turns=False), Stream(asyncio.get_running_loop())
    streams.open("a", stream)
    await in_a_thread(streams.deliver, [output_of("a", finished=True)])
    assert (await stream.next()).finished
    assert streams.request_ids == []
    assert not streams.close("a", stream)


async def test_a_stream_is_closed_by_its_owner_alone() -> None:
    streams, loop = Streams(gives_turns=False), asyncio.get_running_loop()
    owner, other = Stream(loop), Stream(loop)
    streams.open("a", owner)
    assert not streams.close("a", other)
    assert streams.request_ids == ["a"]
    assert streams.close("a", owner)
    assert streams.request_ids == []


async def test_an_error_comes_last_whatever_is_put_after_it() -> None:
    streams, stream = Streams(gives_turns=False), Stream(asyncio.get_running_loop())
    streams.open("a", stream)
    await in_a_thread(streams.fail, {"a": EngineError("broken"), "nobody's": EngineError("x")})
    await asyncio.sleep(0)
    stream.put(output_of("a"))
    with pytest.raises(EngineError, match="broken"):
        await stream.next()
    assert streams.request_ids == []


def test_a_loop_that_is_closed_keeps_nobody_else_waiting() -> None:
    streams = Streams(gives_turns=True)
    closed = asyncio.new_event_loop()
    streams.open("gone", Stream(closed))
    closed.close()
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    try:
        stream = Stream(loop)
        streams.open("here", stream)
        streams.deliver([output_of("gone"), output_of("here")])
        arrived = asyncio.run_coroutine_threadsafe(stream.next(), loop).result(20)
        assert arrived.request_id == "here"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()
