"""Threads that tenants share, whoever asks for how much and whoever gives up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pagoda.engine.tenant_threads import TenantThreads
from pagoda.errors import ShutDownError

pytestmark = pytest.mark.anyio


class Bench:
    """One thread, which is busy until it is let go, and what it is asked for then."""

    def __init__(self) -> None:
        self.threads = TenantThreads(1, "shared")
        self.go_on = threading.Event()
        self.done: list[str] = []

    def keep_busy(self) -> asyncio.Task[bool]:
        return asyncio.create_task(self.threads.run("busy", lambda: self.go_on.wait(10)))

    def ask(self, tenant: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.threads.run(tenant, lambda: self.done.append(tenant)))


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.go_on.set()
    bench.threads.close()


async def test_tenants_take_turns_however_much_one_of_them_asks_for(bench: Bench) -> None:
    busy = bench.keep_busy()
    await asyncio.sleep(0)
    tasks = [bench.ask(tenant) for tenant in "aaaabcb"]
    await asyncio.sleep(0)
    bench.go_on.set()
    await asyncio.gather(busy, *tasks)
    assert "".join(bench.done) == "abcabaa"


async def test_who_gave_up_costs_its_tenant_no_turn(bench: Bench) -> None:
    busy = bench.keep_busy()
    await asyncio.sleep(0)
    others = [bench.ask("a") for _ in range(10)]
    gone = [bench.ask("b") for _ in range(20)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    last = bench.ask("b")
    await asyncio.sleep(0)
    assert sum(map(len, bench.threads._waiting.values())) == 11, "they wait for nothing"
    bench.go_on.set()
    await asyncio.gather(busy, last, *others)
    assert bench.done.index("b") <= 1
    assert all(task.cancelled() for task in gone)


async def test_a_thread_is_busy_until_its_call_ends_whoever_waits_for_it(bench: Bench) -> None:
    busy = bench.keep_busy()
    await asyncio.sleep(0)
    busy.cancel()
    task = bench.ask("a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.threads._threads._work_queue.qsize() == 0, "it was given a thread that is busy"
    bench.go_on.set()
    await task
    assert bench.done == ["a"]


async def test_a_call_that_fails_leaves_its_thread_to_others(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError):
        await bench.threads.run("a", lambda: 1 / 0)
    await bench.ask("b")
    assert bench.done == ["b"]


async def test_where_no_thread_can_be_started_nobody_waits_for_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await bench.threads.run("a", int)
    assert await bench.threads.run("a", lambda: 7) == 7


async def test_what_waits_is_done_after_they_close_and_nothing_more(bench: Bench) -> None:
    busy = bench.keep_busy()
    await asyncio.sleep(0)
    tasks = [bench.ask("a") for _ in range(3)]
    await asyncio.sleep(0)
    bench.threads.close()
    with pytest.raises(ShutDownError):
        await bench.threads.run("b", int)
    bench.go_on.set()
    await asyncio.gather(busy, *tasks)
    assert bench.done == ["a"] * 3
    while any(each.name.startswith("shared") for each in threading.enumerate()):
        await asyncio.sleep(0.001)
