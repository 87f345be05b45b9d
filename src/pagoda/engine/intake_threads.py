"""Threads for what is done with a request before the engine has it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from pagoda.engine.devices.cores import num_usable_cores
from pagoda.engine.tenant_turns import TenantTurns
from pagoda.errors import ShutDownError

P = ParamSpec("P")
R = TypeVar("R")

_LONG_CHARACTERS = 32 * 2**10
"""Of prose so many take 18 ms of a core without AVX-512, and of digits 45."""
_NICENESS = 5
"""A core that the engine wants too is given to it three times out of four."""


class IntakeThreads:
    """Texts are tokenised here and grammars compiled, beside the event loop and the engine's steps.

    Long texts wait for one another, and short ones never wait for them; among either, tenants take
    turns. Together the threads are half as many as the cores, but at least one of each kind. On
    Linux they give way to the engine: its steps need all cores at once, and wait for the slowest.
    """

    def __init__(self) -> None:
        num = max(1, num_usable_cores() // 4)
        self._short = ThreadPoolExecutor(num, "short-texts", initializer=_give_way)
        self._long = ThreadPoolExecutor(num, "long-texts", initializer=_give_way)
        self._turns = {each: TenantTurns(num) for each in (self._short, self._long)}
        self._num_calls = 0
        self._is_closed = False

    async def run(
        self,
        tenant: str,
        num_characters: int,
        function: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """What the function returns, which is to read a tenant's text of so many characters.

        Raises `ShutDownError` after `close`.
        """
        if self._is_closed:
            raise ShutDownError
        threads = self._long if num_characters >= _LONG_CHARACTERS else self._short
        call = partial(function, *args, **kwargs)
        self._num_calls += 1
        try:
            async with self._turns[threads].of(tenant):
                return await asyncio.get_running_loop().run_in_executor(threads, call)
        finally:
            self._num_calls -= 1
            self._end_if_done()

    def close(self) -> None:
        """End the threads once they have done what waits for them already."""
        self._is_closed = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_closed and not self._num_calls:
            for threads in (self._short, self._long):
                threads.shutdown(wait=False)


def _give_way() -> None:
    """A thread has a priority of its own on Linux alone."""
    if sys.platform == "linux":
        os.nice(_NICENESS)
