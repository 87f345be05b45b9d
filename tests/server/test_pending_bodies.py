"""Bodies on their way are bounded apart from the places."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from starlette.types import Message, Receive

from pagoda.server.errors import RejectedError
from pagoda.server.pending_bodies import PendingBodies

pytestmark = pytest.mark.anyio


def coming(*parts: bytes) -> Receive:
    """A body in parts, then that the client has gone."""
    left: list[Message] = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, 1)
    ]
    left.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return left.pop(0)

    return receive


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_body_is_given_as_it_came() -> None:
    bodies = PendingBodies(4, is_shared=False)
    for _ in range(3):  # what is there is not pending
        received = await bodies.received("a", coming(b"{", b"", b"}"))
        parts = [await received() for _ in range(4)]
        assert [part.get("body") for part in parts] == [b"{", b"", b"}", None]


async def test_so_many_may_be_on_their_way_and_so_many_of_one_tenant() -> None:
    bodies = PendingBodies(100, max_num=4, is_shared=True)
    silent = [asyncio.create_task(bodies.received("a", never)) for _ in range(3)]
    await asyncio.sleep(0)
    done = [task for task in silent if task.done()]
    assert len(done) == 1  # half of them, at most
    with pytest.raises(RejectedError):
        await done[0]
    await bodies.received("b", coming(b"x"))
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)
    await bodies.received("a", coming(b"x"))


async def test_so_many_bytes_may_be_on_their_way() -> None:
    rejected = Counter[str]()
    bodies = PendingBodies(10, is_shared=False, num_rejected=rejected)
    for _ in range(2):
        with pytest.raises(RejectedError, match="bytes of bodies"):
            await bodies.received("a", coming(b"x" * 6, b"x" * 6))
    await bodies.received("a", coming(b"x" * 10))
    assert rejected == {"server_overloaded": 2}


async def test_who_is_silent_for_longest_gives_way_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = PendingBodies(100, max_num=2, is_shared=False)
    first, second = [asyncio.create_task(bodies.received("a", never)) for _ in range(2)]
    await asyncio.sleep(0.001)
    with pytest.raises(RejectedError, match="2 bodies"):  # so early nobody gives way
        await bodies.received("a", coming(b"x"))
    monkeypatch.setattr("pagoda.server.pending_bodies.SILENCE_S", 0)
    await bodies.received("a", coming(b"x"))
    with pytest.raises(RejectedError) as told:
        await first
    assert told.value.status_code == 408
    await bodies.received("a", coming(b"x"))  # there is a place now
    assert not second.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
