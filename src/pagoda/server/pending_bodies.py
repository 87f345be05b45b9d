"""Bodies of requests that are still on their way, which hold no place yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Message, Receive

from pagoda.server.errors import ClientGoneError, RejectedError
from pagoda.server.shares import Holding, Shares

MAX_PENDING = 1024
SILENCE_S = 1.0
"""Whose body has hardly grown for so long gives way to others."""
_LEAST_BYTES = 8192
"""By which a body has grown: who sends a byte now and then counts as silent."""


@dataclass(eq=False, slots=True)
class _Pending:
    """A body that is on its way."""

    tenant: str
    holdings: dict[Shares, Holding]
    """Its number, which is one, and its bytes."""
    patience: asyncio.Timeout
    """Ends the wait for its next part where it gives way."""
    grown_at: float
    """On the event loop's clock, in seconds."""
    _num_new_bytes: int = 0
    """Since then."""

    def grow(self, num_bytes: int, now: float) -> None:
        self._num_new_bytes += num_bytes
        if self._num_new_bytes >= _LEAST_BYTES:
            self.grown_at, self._num_new_bytes = now, 0

    def give_back(self) -> None:
        for holding in self.holdings.values():
            holding.give_back()


class PendingBodies:
    """Takes in the bodies of requests, so many and so many bytes of them at a time.

    Where several tenants share the server, each may have half of what the others leave free of
    either: clients who send nothing fill the share of their own key alone. Within a share, those
    who have been silent for longest give way, as many as make room for a part that came, or for a
    new body. For one event loop.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        max_num: int = MAX_PENDING,
        is_shared: bool,
        num_rejected: Counter[str] | None = None,
    ) -> None:
        """Who is not taken is counted in `num_rejected`, by the code that they are told."""

        def shares(most: int, what: str) -> Shares:
            return Shares(most, what, is_shared=is_shared, num_rejected=num_rejected)

        self._num = shares(max_num, "bodies on their way")
        self._bytes = shares(max_bytes, "bytes of bodies on their way")
        self._pending: set[_Pending] = set()
        """Those that have not given way."""

    async def received(self, tenant: str, receive: Receive) -> Receive:
        """Wait for a body; returns what gives it again, and then what comes after it.

        Raises `RejectedError` where there are too many or it has to give way, `ClientGoneError`
        where its client goes before the end, and what `receive` raises.
        """
        messages = await self._messages(tenant, receive)
        messages.reverse()

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        return receive_again

    async def _messages(self, tenant: str, receive: Receive) -> list[Message]:
        messages: list[Message] = []
        try:
            async with asyncio.timeout(None) as patience:
                with self._entered(tenant, patience) as pending:
                    while not messages or messages[-1].get("more_body", False):
                        messages.append(self._taken_in(pending, await receive()))
        except TimeoutError:
            if not patience.expired():
                raise
            raise _too_slow() from None
        return messages

    @contextmanager
    def _entered(self, tenant: str, patience: asyncio.Timeout) -> Iterator[_Pending]:
        holdings = {shares: shares.holding(tenant) for shares in (self._num, self._bytes)}
        pending = _Pending(tenant, holdings, patience, _now())
        self._take(pending, self._num, 1)
        self._pending.add(pending)
        try:
            yield pending
        finally:
            self._pending.discard(pending)
            pending.give_back()

    def _taken_in(self, pending: _Pending, message: Message) -> Message:
        """The message, whose bytes are held now.

        Raises `RejectedError` where there are too many, or where the body gave way in the very turn
        of the event loop in which the message came; and `ClientGoneError`.
        """
        if pending not in self._pending:
            raise _too_slow()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        num_bytes = len(message.get("body", b""))
        pending.grow(num_bytes, _now())
        self._take(pending, self._bytes, num_bytes)
        return message

    def _take(self, pending: _Pending, shares: Shares, num: int) -> None:
        if not shares.has(pending.tenant, num):
            for each in self._leaving(pending, shares, num):
                self._pending.discard(each)
                each.give_back()
                each.patience.reschedule(_now())
        pending.holdings[shares].take(num)

    def _leaving(self, pending: _Pending, shares: Shares, num: int) -> list[_Pending]:
        """Those who make room for a body by giving way; none where all of them are too few."""
        leaving: list[_Pending] = []
        given_back = 0
        for each in self._silent_beside(pending):
            if held := each.holdings[shares].num:
                leaving.append(each)
                given_back += held
                if shares.has(pending.tenant, num, given_back):
                    return leaving
        return []

    def _silent_beside(self, pending: _Pending) -> list[_Pending]:
        """Others of the same tenant who are silent, who has been for longest first."""
        latest = _now() - SILENCE_S
        silent = [
            each
            for each in self._pending
            if each is not pending and each.tenant == pending.tenant and each.grown_at <= latest
        ]
        return sorted(silent, key=lambda each: each.grown_at)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _too_slow() -> RejectedError:
    limit = "others wait, and hardly anything of the body came for a while"
    return RejectedError(408, "request_too_slow", limit)
