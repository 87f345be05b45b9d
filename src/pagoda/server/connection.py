"""A client's connection, which may not take for ever to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pagoda.server.connection_limit import ConnectionLimit

LEAST_BYTES_PER_S = 8192
"""Of an answer that waits for its reader: much less than the slowest line."""


class PatientProtocol(H11Protocol):
    """HTTP connections that close where a client is silent for `timeout_s` seconds.

    That is while it owes the headers of a request, or reads less than `LEAST_BYTES_PER_S` of an
    answer that waits for it. Between requests a connection may rest for as long as Uvicorn keeps it
    alive, or until there are too many: then one that rests gives way to the new one, and where none
    does the new one is closed.
    """

    timeout_s: float
    limit: ConnectionLimit
    _owing: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _num_unread = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()
        if len(self.connections) > self.limit.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting_headers()
        self._stop_expecting_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._owing is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_headers()
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:  # the headers are there
            self._stop_expecting_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_expecting_reader()

    @property
    def _rests(self) -> bool:
        return self._owing is None and self.cycle is not None and self.cycle.response_complete

    def _make_room(self) -> None:
        others = (each for each in self.connections if isinstance(each, PatientProtocol))
        leaving = next((each for each in others if each._rests), self)
        if leaving is self:
            self.limit.tell()
        self.connections.discard(leaving)
        leaving.transport.abort()

    def _expect_headers(self) -> None:
        self._owing = self.loop.call_later(self.timeout_s, self.transport.abort)

    def _stop_expecting_headers(self) -> None:
        if self._owing is not None:
            self._owing.cancel()
            self._owing = None

    def _expect_reader(self) -> None:
        self._num_unread = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self.timeout_s, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """Leave a client that has read next to nothing since the last look."""
        num_read = self._num_unread - self.transport.get_write_buffer_size()
        if num_read < LEAST_BYTES_PER_S * self.timeout_s:
            self.transport.abort()
        else:
            self._expect_reader()

    def _stop_expecting_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def patient_for(timeout_s: float, limit: ConnectionLimit) -> type[asyncio.Protocol]:
    """`PatientProtocol` with its bounds, for Uvicorn, which makes one for each connection."""
    return type("PatientProtocol", (PatientProtocol,), {"timeout_s": timeout_s, "limit": limit})
