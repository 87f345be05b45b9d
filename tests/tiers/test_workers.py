"""Threads that work for shelves and sessions: what fails in one, and where there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from fake_tier import FakeTier, ManualWorkers, formats

from pagoda.tiers.look_up import LookUp
from pagoda.tiers.names import BlockName
from pagoda.tiers.rows_from_shelves import RowsFromShelf, RowsFromShelves
from pagoda.tiers.shelf import Shelf
from pagoda.tiers.store_queue import Room, StoreQueue
from pagoda.tiers.workers import WorkerThreads

BLOCK_BYTES = 64
ROWS = [[BlockName(bytes([number]) * 32, 0)] for number in range(3)]


def shelf() -> Shelf:
    return Shelf(FakeTier(), formats(BLOCK_BYTES), timeout_s=0.5, stores_all=True)


def test_workers_say_whose_task_failed(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    workers = WorkerThreads("sessions-of-a-test", 1)
    workers.submit(lambda: [][0])
    workers.submit(done.set)
    assert done.wait(10)
    workers.close()
    assert "a task of sessions-of-a-test failed" in caplog.text
    assert not workers.submit(done.set)


def test_where_no_thread_can_be_started_nothing_is_there_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, told = WorkerThreads("a-tier", 1), list[str]()
    room = Room(10 * BLOCK_BYTES)
    stores = StoreQueue(shelf(), workers, room)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        asked = [(0, shelf(), workers), (1, shelf(), workers)]
        look_up = LookUp(asked, "", ROWS, BLOCK_BYTES, lambda: told.append("look-up"))
        assert (look_up.is_done, look_up.segments) == (True, ())
        load = RowsFromShelves(
            [RowsFromShelf(shelf(), workers, "", ROWS, BLOCK_BYTES, lambda: told.append("load"))]
        )
        assert (load.take(10), load.is_done, load.ending) == ([], True, "error")
        assert told == ["look-up", "load"]
        assert stores.put("", ROWS[0][0], bytes(BLOCK_BYTES))
    assert "a-tier has 0 threads and gets no other: can't start new thread" in caplog.text
    assert not room.wait_until_empty(0)
    assert stores.put("", ROWS[1][0], bytes(BLOCK_BYTES))
    assert room.wait_until_empty(10), "the next block takes those that wait along"
    workers.close()


class WatchedLock:
    """Does something once it has been let go for the second time."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._then = then
        self._num_exits = 0

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._num_exits += 1
        if self._num_exits == 2:
            self._then()


def test_a_block_that_is_put_while_others_end_is_stored_once() -> None:
    workers, target = ManualWorkers(), shelf()
    stores = StoreQueue(target, workers, Room(10 * BLOCK_BYTES))
    stores.put("", ROWS[0][0], bytes(BLOCK_BYTES))
    lock = WatchedLock(lambda: stores.put("", ROWS[1][0], bytes(BLOCK_BYTES)))
    stores._lock = lock  # type: ignore[assignment]
    workers.work(1)  # takes the first, lets the lock go, stores it, and lets the lock go again
    assert len(workers.tasks) == 1
    workers.work(2)
    assert target.find("", ROWS) == 2
