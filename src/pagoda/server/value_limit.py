"""How many values a body may have, counted before anything is made of them."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.server.errors import RejectedError

BYTES_PER_VALUE = 7
"""A batch of token ids has about so many."""
BATCHES = "/v1/completions"
MAX_MEMBERS = 100_000
"""Objects, lists, and the names in objects: each takes some 100 bytes, and time to look at."""


class ValueCount:
    """Counts the values of a JSON text, of which parts come one after the other.

    What is no JSON is counted somehow.
    """

    def __init__(self) -> None:
        self.num_values = 1
        self.num_members = 0
        """Objects, lists, and the names in objects."""
        self._is_in_text = False
        self._escape = b""
        """A backslash at the end of a part."""

    def add(self, part: bytes) -> None:
        plain = (self._escape + part).replace(rb"\\", b"").replace(rb"\"", b"")
        self._escape = plain[-1:] if plain.endswith(b"\\") else b""
        pieces = plain.split(b'"')
        structure = b"".join(pieces[self._is_in_text :: 2])
        self._is_in_text ^= len(pieces) % 2 == 0
        containers = structure.count(b"[") + structure.count(b"{")
        self.num_values += structure.count(b",") + containers
        self.num_members += structure.count(b":") + containers


class ValueLimit:
    """400 for a body of more values than a request needs.

    The interpreter makes an object of each, and nothing else runs meanwhile.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_model_len: int) -> None:
        """Completions may be a batch of prompts, as many token ids as `max_bytes` bytes hold. Any
        other body has one prompt of at most `max_model_len` tokens."""
        self._app = app
        self._most_of_a_batch = max_bytes // BYTES_PER_VALUE
        self._most = min(self._most_of_a_batch, MAX_MEMBERS + max_model_len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        count = ValueCount()
        is_batch = scope["path"] == BATCHES
        max_values = self._most_of_a_batch if is_batch else self._most

        async def receive_counted() -> Message:
            message = await receive()
            if part := message.get("body", b""):
                count.add(part)
            if too_many := _too_many(count, max_values):
                while message.get("more_body", False):  # or the client would not hear of it
                    message = await receive()
                limit = f"the body must have at most {too_many}"
                raise RejectedError(400, "too_many_values", limit)
            return message

        await self._app(scope, receive_counted, send)


def _too_many(count: ValueCount, max_values: int) -> str | None:
    """What there are too many of, with the limit."""
    if count.num_values > max_values:
        return f"{max_values:,} values"
    if count.num_members > MAX_MEMBERS:
        return f"{MAX_MEMBERS:,} objects, lists and names of values"
    return None
