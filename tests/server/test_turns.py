"""One piece of work is done in a turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from pagoda.server.turns import Turns

pytestmark = pytest.mark.anyio


async def test_pieces_of_all_are_done_one_a_turn_and_each_in_its_turn() -> None:
    turns = Turns()
    done: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            async with turns.next():
                done.append(name)

    working = [asyncio.create_task(work(name)) for name in "abc"]
    num_before = 0
    while not all(task.done() for task in working):
        await asyncio.sleep(0)
        assert len(done) <= num_before + 1
        num_before = len(done)
    assert "".join(done) == "abcabcabc"


async def test_whoever_fails_or_is_cancelled_lets_others_go_on() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="broken"):
        async with turns.next():
            raise ValueError("broken")

    async def work() -> None:
        async with turns.next():
            pass

    working = [asyncio.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in working[:2]:
        task.cancel()
    async with asyncio.timeout(10):
        await working[2]
