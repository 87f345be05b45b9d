"""A client's connection, which may not take for ever to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def patient_for(timeout_s: float) -> type[asyncio.Protocol]:
    """HTTP connections that close where a client is silent for `timeout_s` seconds.

    That is while it owes the headers of a request, or does not read its answer. Between requests a
    connection may rest for as long as Uvicorn keeps it alive.
    """

    class PatientProtocol(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._waiting is None and (self.cycle is None or self.cycle.response_complete):
                self._wait()
            super().data_received(data)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_waiting()

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before:  # the headers are there
                self._stop_waiting()

        def _wait(self) -> None:
            self._stop_waiting()
            self._waiting = self.loop.call_later(timeout_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return PatientProtocol
