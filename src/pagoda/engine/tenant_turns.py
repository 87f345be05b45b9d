"""Turns among tenants: whoever asks for much waits for itself, not others for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TenantTurns:
    """So many may go on at once. Where more want to, each tenant in turn goes on with what it asked
    for first. All calls come from one event loop."""

    def __init__(self, num: int) -> None:
        self._num_free = num
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Whose turn is next comes first."""

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """From when it is this one's turn."""
        await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():  # cancelled
                turn.set_result(None)
                return
        self._num_free += 1
