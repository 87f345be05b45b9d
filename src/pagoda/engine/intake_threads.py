"""Threads for what is done with a request before the engine has it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from pagoda.engine.devices.cores import num_usable_cores
from pagoda.engine.tenant_threads import TenantThreads

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
        self._short = TenantThreads(num, "short-texts", _give_way)
        self._long = TenantThreads(num, "long-texts", _give_way)

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
        threads = self._long if num_characters >= _LONG_CHARACTERS else self._short
        return await threads.run(tenant, partial(function, *args, **kwargs))

    def close(self) -> None:
        """End the threads once they have done what waits for them already."""
        self._short.close()
        self._long.close()


def _give_way() -> None:
    """A thread has a priority of its own on Linux alone."""
    if sys.platform == "linux":
        os.nice(_NICENESS)
