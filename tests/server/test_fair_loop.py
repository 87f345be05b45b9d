"""A crowd of clients is served a few at a time."""

from __future__ import annotations

import asyncio
import selectors
import socket
from itertools import pairwise

from pagoda.server.fair_loop import MOST_AT_ONCE, FairLoop, FairSelector

NUM_READY = 5 * MOST_AT_ONCE + 3


def test_all_that_are_ready_are_told_in_turns() -> None:
    pairs = [socket.socketpair() for _ in range(NUM_READY)]
    told = set()
    with FairSelector() as selector:
        for number, (reader, writer) in enumerate(pairs):
            selector.register(reader, selectors.EVENT_READ, number)
            writer.send(b"x")
        for _ in range(2 * NUM_READY // MOST_AT_ONCE):
            ready = selector.select(0)
            assert len(ready) == MOST_AT_ONCE
            told |= {key.data for key, _ in ready}
    assert told == set(range(NUM_READY))
    for each in (end for pair in pairs for end in pair):
        each.close()


def test_a_crowd_is_not_served_in_one_turn_of_the_loop() -> None:
    pairs = [socket.socketpair() for _ in range(NUM_READY)]
    served_before_turns: list[int] = []

    async def serve() -> None:
        loop, served, done = asyncio.get_running_loop(), [], asyncio.Event()

        def turn() -> None:
            served_before_turns.append(len(served))
            done.set() if len(served) == NUM_READY else loop.call_soon(turn)

        def read(reader: socket.socket) -> None:
            served.append(reader)
            loop.remove_reader(reader)

        for reader, writer in pairs:
            writer.send(b"x")
            loop.add_reader(reader, read, reader)
        loop.call_soon(turn)
        await done.wait()

    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(serve())
    steps = pairwise(served_before_turns)
    assert max(after - before for before, after in steps) <= MOST_AT_ONCE
    for each in (end for pair in pairs for end in pair):
        each.close()
