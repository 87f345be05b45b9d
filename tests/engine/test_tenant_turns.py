"""Turns among tenants, whoever asks for how much and whoever gives up."""

from __future__ import annotations

import asyncio

import pytest

from pagoda.engine.tenant_turns import TenantTurns

pytestmark = pytest.mark.anyio


class Queue:
    """What tenants ask for, as it is begun."""

    def __init__(self, num: int) -> None:
        self.turns = TenantTurns(num)
        self.begun: list[str] = []
        self._go_on = asyncio.Semaphore(0)

    def ask(self, tenant: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._work(tenant))

    async def _work(self, tenant: str) -> None:
        async with self.turns.of(tenant):
            self.begun.append(tenant)
            await self._go_on.acquire()

    async def end(self, times: int = 1) -> None:
        """Let so many of those that have begun come to their end."""
        for _ in range(times):
            self._go_on.release()
            for _ in range(5):
                await asyncio.sleep(0)


async def test_tenants_take_turns_however_much_one_of_them_asks_for() -> None:
    queue = Queue(1)
    tasks = [queue.ask(tenant) for tenant in "aaaabcb"]
    await asyncio.sleep(0)
    await queue.end(7)
    await asyncio.gather(*tasks)
    assert "".join(queue.begun) == "aabcaba"


async def test_as_many_go_on_at_once_as_may() -> None:
    queue = Queue(3)
    tasks = [queue.ask("a") for _ in range(5)]
    await asyncio.sleep(0)
    assert queue.begun == ["a"] * 3
    await queue.end(5)
    await asyncio.gather(*tasks)
    again = [queue.ask("b") for _ in range(3)]
    await asyncio.sleep(0)
    assert queue.begun[5:] == ["b"] * 3
    await queue.end(3)
    await asyncio.gather(*again)


@pytest.mark.parametrize("has_come", [False, True])
async def test_who_gives_up_keeps_nobody_waiting(has_come: bool) -> None:
    queue = Queue(1)
    first, gone, last = (queue.ask(tenant) for tenant in "abc")
    await asyncio.sleep(0)
    if has_come:
        queue._go_on.release()
        while not first.done():
            await asyncio.sleep(0)
    gone.cancel()
    await queue.end(2)
    await asyncio.gather(first, last)
    assert queue.begun == ["a", "c"] or (has_come and queue.begun == ["a", "b", "c"])
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert queue.turns._num_free == 1
