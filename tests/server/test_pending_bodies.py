"""Bodies on their way are bounded apart from the places."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from starlette.types import Message, Receive

from pagoda.server.errors import ClientGoneError, RejectedError
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


class Client:
    """Sends parts of a body when it is told to."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[Message] = asyncio.Queue()

    def send(self, part: bytes, *, is_last: bool = False) -> None:
        message = {"type": "http.request", "body": part, "more_body": not is_last}
        self._parts.put_nowait(message)

    def leave(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})

    async def receive(self) -> Message:
        return await self._parts.get()


async def status_of(bodies: PendingBodies, tenant: str, receive: Receive) -> int:
    """200 for a body that is taken."""
    try:
        await bodies.received(tenant, receive)
    except RejectedError as error:
        return error.status_code
    except ClientGoneError:
        return 499
    return 200


async def turn(num: int = 5) -> None:
    """Let others run."""
    for _ in range(num):
        await asyncio.sleep(0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody is silent who waits."""
    monkeypatch.setattr("pagoda.server.pending_bodies.SILENCE_S", 0)


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


async def begun(bodies: PendingBodies, tenant: str, num_bytes: int) -> asyncio.Task[int]:
    """A body of which so much has come, and no more does."""
    client = Client()
    client.send(b"x" * num_bytes)
    receiving = asyncio.create_task(status_of(bodies, tenant, client.receive))
    await turn()
    return receiving


async def ended(*tasks: asyncio.Task[int]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.usefixtures("at_once")
async def test_who_is_silent_gives_bytes_back_too() -> None:
    bodies = PendingBodies(10, is_shared=False)
    first, second = [await begun(bodies, "a", 5) for _ in range(2)]
    assert await status_of(bodies, "a", coming(b"x")) == 200
    assert await first == 408
    assert not second.done()
    assert await status_of(bodies, "a", coming(b"x" * 5)) == 200
    await ended(second)


async def test_of_those_who_send_each_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = PendingBodies(10, is_shared=False)
    silent = await begun(bodies, "a", 2)
    monkeypatch.setattr("pagoda.server.pending_bodies.SILENCE_S", 0.001)
    await asyncio.sleep(0.002)
    sending = await begun(bodies, "a", 7)
    monkeypatch.setattr("pagoda.server.pending_bodies._LEAST_BYTES", 1)
    assert await status_of(bodies, "a", coming(b"x" * 4)) == 503
    assert not silent.done(), "it would have made too little room"
    assert await status_of(bodies, "a", coming(b"x" * 3)) == 200
    assert await silent == 408
    await ended(sending)


async def test_a_byte_now_and_then_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagoda.server.pending_bodies.SILENCE_S", 0.02)
    bodies = PendingBodies(100_000, max_num=2, is_shared=False)
    clients = [Client(), Client()]
    dripping, fast = [
        asyncio.create_task(status_of(bodies, "a", client.receive)) for client in clients
    ]
    await asyncio.sleep(0.03)
    clients[0].send(b"x")
    clients[1].send(b"x" * 10_000)
    await turn()
    assert await status_of(bodies, "a", coming(b"x")) == 200
    assert await dripping == 408
    assert not fast.done()
    await ended(fast)


@pytest.mark.usefixtures("at_once")
async def test_other_tenants_give_way_to_nobody() -> None:
    bodies = PendingBodies(10, is_shared=True)
    others = [await begun(bodies, "a", 5), await begun(bodies, "b", 2)]
    assert await status_of(bodies, "c", coming(b"x" * 4)) == 503
    assert not any(task.done() for task in others)
    await ended(*others)


@pytest.mark.usefixtures("at_once")
async def test_a_tenant_above_its_share_gives_way_to_itself_as_often_as_it_takes() -> None:
    bodies = PendingBodies(100, max_num=8, is_shared=True)
    mine = [await begun(bodies, "a", 0) for _ in range(4)]
    others = [await begun(bodies, "b", 0) for _ in range(2)]
    newcomers = await asyncio.gather(*[status_of(bodies, "a", coming(b"x")) for _ in range(3)])
    assert newcomers == [200] * 3
    assert [task.result() for task in mine if task.done()] == [408] * 2
    assert not any(task.done() for task in others)
    await ended(*mine, *others)


async def test_a_share_that_shrinks_takes_nothing_from_a_body_that_is_there() -> None:
    bodies = PendingBodies(8, is_shared=True)
    client = Client()
    client.send(b"x" * 4)
    mine = asyncio.create_task(status_of(bodies, "a", client.receive))
    await turn()
    other = await begun(bodies, "b", 2)
    client.send(b"", is_last=True)  # as every inflated body ends
    assert await mine == 200
    await ended(other)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("is_last", [False, True])
async def test_who_gives_way_while_its_part_comes_holds_nothing(is_last: bool) -> None:
    bodies = PendingBodies(10, max_num=1, is_shared=False)
    client = Client()
    silent = asyncio.create_task(status_of(bodies, "a", client.receive))
    await turn()
    newcomer = asyncio.create_task(status_of(bodies, "a", coming(b"x")))
    client.send(b"x" * 10, is_last=is_last)  # before it hears of it the newcomer has its turn
    assert await newcomer == 200
    assert await silent == 408
    assert await status_of(bodies, "a", coming(b"x" * 10)) == 200


async def test_a_client_that_goes_in_the_middle_is_gone() -> None:
    bodies = PendingBodies(10, is_shared=False)
    client = Client()
    client.send(b"x" * 10)
    client.leave()
    with pytest.raises(ClientGoneError):
        await bodies.received("a", client.receive)
    assert await status_of(bodies, "a", coming(b"x" * 10)) == 200


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_becomes_of_bodies_all_is_given_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    max_num, max_bytes, is_shared = rng.randrange(1, 9), rng.randrange(20, 60), rng.random() < 0.5
    monkeypatch.setattr("pagoda.server.pending_bodies.SILENCE_S", rng.choice([0, 1]))
    monkeypatch.setattr("pagoda.server.pending_bodies._LEAST_BYTES", rng.randrange(1, 20))
    bodies = PendingBodies(max_bytes, max_num=max_num, is_shared=is_shared)
    lives: list[tuple[Client, asyncio.Task[int]]] = []
    statuses = Counter[int]()
    for _ in range(200):
        if rng.random() < 0.3:
            client = Client()
            body = status_of(bodies, rng.choice("abc"), client.receive)
            lives.append((client, asyncio.create_task(body)))
        for client, task in rng.sample(lives, min(len(lives), 2)):
            what = rng.random()
            if what < 0.8:
                client.send(b"x" * rng.randrange(12), is_last=what < 0.2)
            elif what < 0.9:
                client.leave()
            else:
                task.cancel()
        if rng.random() < 0.7:
            await turn(rng.randrange(1, 3))
    for client, _ in lives:
        client.leave()
    for told in await asyncio.gather(*[task for _, task in lives], return_exceptions=True):
        statuses[told if isinstance(told, int) else 0] += 1
        assert isinstance(told, int | asyncio.CancelledError)
    assert statuses.keys() <= {0, 200, 408, 429, 499, 503}
    assert statuses[200]
    alone = 2 if is_shared else 1  # a tenant has half of what is free
    silent = [await begun(bodies, "a", 0) for _ in range((max_num - 1) // alone)]
    filling = coming(b"x" * ((max_bytes + alone - 1) // alone))
    assert await status_of(bodies, "a", filling) == 200
    assert not any(task.done() for task in silent)
    await ended(*silent)
