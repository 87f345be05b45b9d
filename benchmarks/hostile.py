"""What one hostile request costs everybody else: 16 streams beside each of a list of requests.

    python benchmarks/hostile.py [--streams 16] [--only salt,stops]

Starts `pagoda serve` as a process of its own. For each request it prints how it was answered, the
longest that any stream waited meanwhile, and by how much the server's memory grew at most. The
first rows are for comparison: nothing, and a prompt that anybody may send. Other load on the
machine shows in all rows alike, so read a row by its ratio to those.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from serving import Server, _head, prompt_ids, serving

_KEY = "the-key-of-alice"
_QUIET_S = 3.0
_PATIENCE_S = 60.0
_MANY = 128
_DIGITS = "7" * 150_000


class Streams:
    """Answers that somebody reads all the time, and how long each waited for its next part."""

    def __init__(self, server: Server, num: int) -> None:
        self._server = server
        self.longest_wait_s = 0.0
        self._last = [time.perf_counter()] * num
        self._has_begun = [False] * num
        self._tasks = [asyncio.create_task(self._read(index)) for index in range(num)]

    async def begun(self) -> None:
        """Wait until all of them have had something."""
        while not all(self._has_begun):
            await asyncio.sleep(0.1)

    def begin(self) -> None:
        """Forget the waits so far."""
        self.longest_wait_s = 0.0
        self._last = [time.perf_counter()] * len(self._last)

    def end(self) -> float:
        """The longest wait since, one that goes on included."""
        now = time.perf_counter()
        return max(self.longest_wait_s, max(now - last for last in self._last))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _read(self, index: int) -> None:
        body = {"prompt": prompt_ids(index, 16), "max_tokens": 4000, "ignore_eos": True}
        while True:
            reader, writer = await _sent(
                self._server.port, "/v1/completions", {**body, "stream": True}
            )
            while await reader.read(65536):
                now = time.perf_counter()
                self.longest_wait_s = max(self.longest_wait_s, now - self._last[index])
                self._last[index] = now
                self._has_begun[index] = True
            writer.close()


async def _sent(
    port: int, route: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_head("POST", route, _KEY, len(content)) + content)
    return reader, writer


async def _ask(server: Server, route: str, body: dict[str, Any]) -> str:
    """The answer's status, all of it read."""
    reader, writer = await _sent(server.port, route, body)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            status = await reader.read(12)
            while await reader.read(1 << 20):
                pass
    except TimeoutError:
        return "none"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()
    return status[9:].decode()


def asks(route: str, **body: Any) -> Callable[[Server], Any]:
    async def ask(server: Server) -> str:
        return await _ask(server, route, body)

    return ask


async def nothing(server: Server) -> str:
    await asyncio.sleep(_QUIET_S)
    return "-"


async def unread(server: Server) -> str:
    """Large answers that nobody reads."""
    body = {"tokens": [100] * 1_000_000}
    open_ones = [await _sent(server.port, "/detokenize", body) for _ in range(6)]
    await asyncio.sleep(_QUIET_S)
    statuses = {(await reader.read(12))[9:].decode() for reader, _ in open_ones}
    for _, writer in open_ones:
        writer.close()
    return "/".join(sorted(statuses))


async def silent(server: Server) -> str:
    """Headers without a body, and then somebody who asks for something."""
    open_ones = []
    for _ in range(400):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(_head("POST", "/v1/completions", _KEY, 100))
        open_ones.append(writer)
    await asyncio.sleep(1)
    status = await _ask(server, "/v1/completions", {"prompt": "x", "max_tokens": 1})
    for writer in open_ones:
        writer.close()
    return status


_COMPLETE = "/v1/completions"
_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_LONG_CALL = {**_CALL, "function": {"name": "f", "arguments": json.dumps({"x": _DIGITS})}}
_SCHEMA = {
    "type": "object",
    "properties": {f"field_{n}": {"type": "string", "maxLength": 99} for n in range(40)},
}
REQUESTS: dict[str, Callable[[Server], Any]] = {
    "nothing": nothing,
    "a prompt of 1,000 tokens": asks(_COMPLETE, prompt=prompt_ids(99, 1000), max_tokens=1),
    "prompt_logprobs": asks(
        _COMPLETE, prompt=prompt_ids(98, 1000), max_tokens=1, n=_MANY, prompt_logprobs=20
    ),
    "echo": asks(
        _COMPLETE, prompt=prompt_ids(97, 1000), max_tokens=1, n=_MANY, echo=True, logprobs=20
    ),
    "logprobs": asks(_COMPLETE, prompt="x", max_tokens=100, n=16, logprobs=20, ignore_eos=True),
    "guided_choice": asks(_COMPLETE, prompt="x", guided_choice=[1] * 200_000),
    "logit_bias": asks(_COMPLETE, prompt="x", logit_bias={str(n): None for n in range(100_000)}),
    "digits": asks(_COMPLETE, prompt=_DIGITS, max_tokens=1),
    "arguments": asks(
        "/v1/chat/completions",
        messages=[{"role": "assistant", "content": "", "tool_calls": [_LONG_CALL] * 3}],
    ),
    "empty messages": asks(
        "/v1/chat/completions", messages=[{"role": "user", "content": ""}] * 30_000
    ),
    "stops": asks(
        _COMPLETE,
        prompt="x",
        max_tokens=1,
        n=_MANY,
        stop=[f"{number:02}" + "ab" * 511 for number in range(64)],
    ),
    "salt": asks(_COMPLETE, prompt="x", max_tokens=1, n=_MANY, cache_salt="s" * 7_000_000),
    "unknown field": asks(_COMPLETE, prompt="x", max_tokens=16, junk=[[]] * 1_500_000),
    "detokenize, unread": unread,
    "silent": silent,
    "grammars": asks(
        _COMPLETE, prompt="x", max_tokens=40, n=16, structured_outputs={"json": _SCHEMA}
    ),
}


async def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each of the requests."""
    rows = []
    async with serving("--kv-cache-memory-bytes", "1GiB", "--max-num-seqs", "160") as server:
        streams = Streams(server, args.streams)
        await streams.begun()
        for name, ask in REQUESTS.items():
            if args.only and not any(word in name for word in args.only.split(",")):
                continue
            rows.append(await _row(server, streams, name, ask))
            print_row(rows[-1])
            await asyncio.sleep(1)
        streams.close()
    return rows


async def _row(
    server: Server, streams: Streams, name: str, ask: Callable[[Server], Any]
) -> dict[str, Any]:
    before = most = server.process.memory_info().rss
    streams.begin()
    asking = asyncio.create_task(ask(server))
    while not asking.done():
        await asyncio.wait([asking], timeout=0.02)
        most = max(most, server.process.memory_info().rss)
    return {
        "request": name,
        "status": asking.result(),
        "longest_wait_ms": streams.end() * 1e3,
        "memory_mib": (most - before) / 2**20,
    }


def print_row(row: dict[str, Any]) -> None:
    wait, memory = f"{row['longest_wait_ms']:.0f} ms", f"{row['memory_mib']:.0f} MiB"
    print(f"{row['request']:28} {row['status']:>8} {wait:>10} {memory:>10}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--only", help="words of the requests to send, with commas between them")
    args = parser.parse_args()
    print(f"{'request':28} {'status':>8} {'wait':>10} {'memory':>10}")
    print(json.dumps(asyncio.run(measure(args))))


if __name__ == "__main__":
    main()
