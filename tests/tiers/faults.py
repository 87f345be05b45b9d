"""A line to a store that can have the faults which networks and servers have.

A proxy on this machine, in a thread of its own. A `Fault` holds for whatever passes from when it is
set, on connections that are there and on new ones.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_PIECE = 2**19
_SLOW_PIECE = 2**12
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Fault:
    """What a line does wrong; as it is made, nothing."""

    refuses: bool = False
    """Nobody listens, and whoever was connected is cut off."""
    hangs: bool = False
    """Connections are taken, and nothing passes."""
    bytes_per_s: float | None = None
    """Answers come so slowly."""
    resets_after: int | None = None
    """Connections are reset when so many bytes of answers have passed."""
    latency_s: float = 0.0
    """Answers come so much later, as many at once as ever."""
    status: str | None = None
    """Each request of HTTP is answered so: "503 SlowDown"."""


WELL = Fault()


class Line:
    """To a port of this machine: whoever connects to `port` speaks with what listens there."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._fault = WELL
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._open = dict[asyncio.StreamWriter, asyncio.Task[Any] | None]()
        self._server: asyncio.Server | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._listen())

    def set(self, fault: Fault = WELL) -> None:
        """From now on."""
        self._do(self._set(fault))

    def cut_off(self) -> None:
        """Whoever is connected, now."""
        self._do(self._cut())

    def close(self) -> None:
        """Cut everybody off and end the thread."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=_PIECE, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _set(self, fault: Fault) -> None:
        was, self._fault = self._fault, fault
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if fault.refuses and not was.refuses:
            assert self._server is not None
            self._server.close()
        if fault.refuses or fault.status or was.status:
            self._cut_off()
        if was.refuses and not fault.refuses:
            await self._listen()

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut_off()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cut(self) -> None:
        self._cut_off()

    def _cut_off(self) -> None:
        for writer, serving in list(self._open.items()):
            _reset(writer)
            if serving is not None:
                serving.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        store: asyncio.StreamWriter | None = None
        try:
            if self._fault.status is not None:
                await self._answer(reader, writer, self._fault.status)
                return
            answers, store = await asyncio.open_connection("127.0.0.1", self._to_port, limit=_PIECE)
            asking = asyncio.create_task(self._pass_on(reader, store))
            try:
                await self._pass_back(answers, writer)
            finally:
                asking.cancel()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            del self._open[writer]
            writer.close()
            if store is not None:
                store.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Questions."""
        try:
            while piece := await reader.read(_PIECE):
                await self._wait_while_hanging()
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.close()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers: they are sent when it is their time, while others are read."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

        async def send() -> None:
            while True:
                due, piece = await on_the_way.get()
                await asyncio.sleep(due - self._loop.time())
                with suppress(OSError):
                    writer.write(piece)
                    await writer.drain()
                on_the_way.task_done()

        sending = asyncio.create_task(send())
        num_passed, fault = 0, self._fault
        try:
            while piece := await reader.read(_PIECE):
                await self._wait_while_hanging()
                if fault is not self._fault:
                    num_passed, fault = 0, self._fault
                num_passed += len(piece)
                if fault.resets_after is not None and num_passed > fault.resets_after:
                    writer.write(piece[: fault.resets_after])
                    await writer.drain()
                    _reset(writer)
                    return
                await self._pass_slowly(piece, on_the_way)
            await on_the_way.join()
        finally:
            sending.cancel()

    async def _pass_slowly(
        self, piece: bytes, on_the_way: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        for start in range(0, len(piece), _SLOW_PIECE):
            if self._fault.bytes_per_s is None:
                await on_the_way.put((self._loop.time() + self._fault.latency_s, piece[start:]))
                return
            some = piece[start : start + _SLOW_PIECE]
            await asyncio.sleep(len(some) / self._fault.bytes_per_s)
            await on_the_way.put((self._loop.time() + self._fault.latency_s, some))

    async def _wait_while_hanging(self) -> None:
        """What was said into the void is never heard."""
        if self._fault.hangs:
            await self._changed.wait()
            raise ConnectionResetError

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str
    ) -> None:
        """All requests of a connection, as a store that answers all of them so."""
        number, code = status.split()
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            answer = f"HTTP/1.1 {number} {code}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            writer.write(answer if head.startswith(b"HEAD") else answer + body)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Without the courtesies with which a connection ends."""
    connected: socket.socket = writer.get_extra_info("socket")
    if connected.fileno() >= 0:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
