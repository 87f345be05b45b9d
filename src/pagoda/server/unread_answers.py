"""Answers that lie in memory until their clients have read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from pagoda.server.door import tenant_of
from pagoda.server.shares import Shares

MAX_UNREAD_BYTES = 2**28


class UnreadAnswers:
    """Bounds the bytes of all large answers that are being read, of one event loop's clients."""

    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES, *, is_shared: bool) -> None:
        self._bytes = Shares(
            max_bytes, "bytes of answers that are not read yet", is_shared=is_shared
        )

    @contextmanager
    def held(self, scope: Scope, num_bytes: int) -> Iterator[None]:
        """An answer of this size waits for its reader until the block ends.

        One that is larger than all that its tenant may have is taken where nothing else is unread.
        Raises `RejectedError` where there are too many; the answer is to be dropped then.
        """
        with self._bytes.holding(tenant_of(scope)) as holding:
            holding.take(min(num_bytes, self._bytes.most_of_one))
            yield
