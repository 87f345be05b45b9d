"""Answers that lie in memory until their clients have read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from pagoda.server.door import tenant_of
from pagoda.server.shares import Shares


class UnreadAnswers:
    """Bounds the bytes of all answers that are being read, of one event loop's clients."""

    def __init__(self, max_bytes: int, *, is_shared: bool) -> None:
        self._bytes = Shares(max_bytes, is_shared, "bytes of answers that are not read yet")

    @contextmanager
    def held(self, scope: Scope, num_bytes: int) -> Iterator[None]:
        """An answer of this size waits for its reader until the block ends.

        Raises `RejectedError` where there are too many; the answer is to be dropped then.
        """
        tenant = tenant_of(scope)
        self._bytes.take(tenant, num_bytes)
        try:
            yield
        finally:
            self._bytes.give_back(tenant, num_bytes)
