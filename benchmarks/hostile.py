"""What one hostile request costs everybody else: 16 streams beside each of a list of requests.

    python benchmarks/hostile.py [--streams 16] [--rounds 3] [--only salt,stops]

Starts `pagoda serve` as a process of its own and sends the requests of `hostile_requests.py`, each
beside streams that have just begun, from a third process: who reads the streams is not kept from it
by what is sent. A row tells how a request was answered and, in ms:

    ordinary    the median and the longest wait of any stream in a quiet moment just before
    wait        the longest wait of any stream while the request ran
    lost        by how much that is longer than in its control: the row whose request asks for the
                same computation and nothing else, or for nothing
    loop        the longest that /health took meanwhile: the event loop's own delay

and by how much the server's memory grew at most. The least of several rounds counts: other load on
the machine only adds to it, and the first round pays for what is made when it is first used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import median

from hostile_requests import A_WORD, NOTHING, REQUESTS, Hostile, sent
from serving import Server, prompt_ids, serving

_QUIET_S = 2.0
_AFTERMATH_S = 0.3
_LOOK_S = 0.02
_NUM_TOKENS = 2000
"""Of a stream: more than come while a row is measured."""


@dataclass(frozen=True)
class Costs:
    """What a request has cost, in ms and MiB."""

    ordinary: float
    ordinary_worst: float
    wait: float
    loop: float
    memory: float

    def least(self, other: Costs) -> Costs:
        """The better of two rounds, figure by figure."""
        others = asdict(other)
        return Costs(**{name: min(value, others[name]) for name, value in asdict(self).items()})


class Waits:
    """How long readers waited for their next part."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._waits_s: list[float] = []

    @property
    def num_readers(self) -> int:
        """That have had something."""
        return len(self._last)

    def came(self, reader: int) -> None:
        now = time.perf_counter()
        self._waits_s.append(now - self._last.get(reader, now))
        self._last[reader] = now

    def ended(self, reader: int) -> None:
        self._last.pop(reader, None)

    def take(self) -> list[float]:
        """The waits since the last call, in ms, with those that go on."""
        now = time.perf_counter()
        waits_s = [*self._waits_s, *[now - last for last in self._last.values()]]
        self._waits_s, self._last = [], dict.fromkeys(self._last, now)
        return [1e3 * wait for wait in waits_s]


@asynccontextmanager
async def streaming(server: Server, num: int) -> AsyncIterator[Waits]:
    """Answers that somebody reads all the time, once all have begun."""
    waits = Waits()

    async def read(index: int) -> None:
        body = {"max_tokens": _NUM_TOKENS, "ignore_eos": True, "stream": True}
        content = json.dumps({**body, "prompt": prompt_ids(index, 16)}).encode()
        async with sent(server.port, "/v1/completions", content) as reader:
            while await reader.read(65536):
                waits.came(index)
        waits.ended(index)

    async with _beside(*[read(index) for index in range(num)]):
        while waits.num_readers < num:
            await asyncio.sleep(0.1)
        yield waits


@asynccontextmanager
async def probing(server: Server) -> AsyncIterator[Waits]:
    """How long `/health` takes, asked again and again over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    waits = Waits()

    async def ask() -> None:
        while True:
            waits.ended(0)
            waits.came(0)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            waits.came(0)
            waits.ended(0)
            await asyncio.sleep(_LOOK_S)

    async with _beside(ask()):
        yield waits
    writer.close()


@asynccontextmanager
async def _beside(*work: Coroutine) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def asked(name: str, port: int) -> str:
    """How a request is answered; for a process of its own."""
    [hostile] = [each for each in REQUESTS if each.name == name]
    return asyncio.run(hostile.ask(port))


async def measure(
    server: Server, sender: ProcessPoolExecutor, hostile: Hostile, num_streams: int
) -> tuple[str, Costs]:
    """One round: how the request was answered, and what it cost."""
    async with streaming(server, num_streams) as waits, probing(server) as probe:
        waits.take()
        await asyncio.sleep(_QUIET_S)
        ordinary = waits.take()
        probe.take()
        before = most = server.process.memory_info().rss
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(sender, asked, hostile.name, server.port)
        while not asking.done():
            await asyncio.wait([asking], timeout=_LOOK_S)
            most = max(most, server.process.memory_info().rss)
        await asyncio.sleep(_AFTERMATH_S)
        costs = Costs(
            ordinary=median(ordinary),
            ordinary_worst=max(ordinary),
            wait=max(waits.take()),
            loop=max(probe.take(), default=0.0),
            memory=(most - before) / 2**20,
        )
    return asking.result(), costs


async def settled(server: Server) -> None:
    """Wait until the server's memory stands still: what it populates while idle is there."""
    before = 0
    while before < (now := server.process.memory_info().rss):
        before = now
        await asyncio.sleep(2)


async def measure_all(args: argparse.Namespace) -> list[dict[str, object]]:
    wanted = [each for each in REQUESTS if _is_wanted(each, args.only)]
    found: dict[str, tuple[str, Costs]] = {}
    processes = multiprocessing.get_context("spawn")
    flags = "--kv-cache-memory-bytes", "1GiB", "--max-num-seqs", "160"
    async with serving(*flags) as server:
        sender = ProcessPoolExecutor(1, mp_context=processes)
        sender.submit(asked, A_WORD, server.port).result()  # the process is ready
        await settled(server)
        for _ in range(args.rounds):
            for each in wanted:
                status, costs = await measure(server, sender, each, args.streams)
                found[each.name] = status, costs.least(found.get(each.name, (status, costs))[1])
                print(".", end="", flush=True)
        sender.shutdown()
    print()
    rows = []
    for each in wanted:
        status, costs = found[each.name]
        lost = costs.wait - found[each.control][1].wait
        rows.append({"request": each.name, "status": status, **asdict(costs), "lost": lost})
    return rows


def _is_wanted(hostile: Hostile, only: str | None) -> bool:
    """Asked for by a word of its name, or the control of such a row."""
    words = only.split(",") if only else [""]
    named = {each for each in REQUESTS if any(word in each.name for word in words)}
    return hostile in named or hostile.name in {NOTHING, *(each.control for each in named)}


def print_table(rows: list[dict[str, object]]) -> None:
    print("| request | answer | ordinary, ms | wait, ms | lost, ms | loop, ms | memory, MiB |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            "| {request} | {status} | {ordinary:.0f}, {ordinary_worst:.0f} | {wait:.0f} "
            "| {lost:.0f} | {loop:.0f} | {memory:.0f} |".format(**row)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="words of the requests to send, with commas between them")
    args = parser.parse_args()
    rows = asyncio.run(measure_all(args))
    print_table(rows)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
