"""How many values a body may have, counted before anything is made of them."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.server.door import STREAMED
from pagoda.server.errors import RejectedError
from pagoda.server.turns import Turns

MAX_VALUES = 2**18
"""Beside one prompt: a batch of 128 prompts of 2,048 token ids has so many."""
MAX_MEMBERS = 100_000
"""Objects, lists, and the names in objects: each takes some 100 bytes, and time to look at."""
_SHORT_BYTES = 16 * 2**10
"""Counted at once: that takes less than to wait for a turn."""
_SLICE_BYTES = 64 * 2**10
"""Of a longer part, counted in one turn of the event loop."""
_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[{,:'))
"""Bytes that do not matter for counting, once escapes are gone."""


class ValueCount:
    """Counts the values of JSON texts, of which parts come one after the other.

    It is right as far as a text is JSON, and no parser reads on from there.
    """

    def __init__(self) -> None:
        self.num_values = 0
        self.num_members = 0
        """Objects, lists, and the names in objects."""
        self.begin()

    def begin(self) -> None:
        """What comes now is another text: nothing that is open in the last one hides any of it."""
        self.num_values += 1
        self._is_in_text = False
        self._escape = b""
        """A backslash at the end of a part."""

    def add(self, part: bytes) -> None:
        plain = (self._escape + part).replace(rb"\\", b"").replace(rb"\"", b"")
        self._escape = plain[-1:] if plain.endswith(b"\\") else b""
        # Texts without structure are left out first: an object is made of each of the others.
        pieces = plain.translate(None, _NO_STRUCTURE).replace(b'""', b"").split(b'"')
        structure = b"".join(pieces[self._is_in_text :: 2])
        self._is_in_text ^= len(pieces) % 2 == 0
        containers = structure.count(b"[") + structure.count(b"{")
        self.num_values += structure.count(b",") + containers
        self.num_members += structure.count(b":") + containers

    def too_many(self, max_model_len: int) -> str | None:
        """What there are too many of beside a prompt of that length, with the limit."""
        max_values = MAX_VALUES + max_model_len
        if self.num_values > max_values:
            return f"{max_values:,} values"
        if self.num_members > MAX_MEMBERS:
            return f"{MAX_MEMBERS:,} objects, lists and names of values"
        return None


class ValueLimit:
    """400 for a body of more values than a request needs.

    The interpreter makes an object of each, and nothing else runs meanwhile. Long parts of bodies
    are counted in `turns`.
    """

    def __init__(self, app: ASGIApp, max_model_len: int, turns: Turns) -> None:
        self._app = app
        self._max_model_len = max_model_len
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("path") in STREAMED:
            await self._app(scope, receive, send)
            return
        count = ValueCount()

        async def receive_counted() -> Message:
            message = await receive()
            if too_many := await self._too_many_with(count, message.get("body", b"")):
                while message.get("more_body", False):  # or the client would not hear of it
                    message = await receive()
                limit = f"the body must have at most {too_many}"
                raise RejectedError(400, "too_many_values", limit)
            return message

        await self._app(scope, receive_counted, send)

    async def _too_many_with(self, count: ValueCount, part: bytes) -> str | None:
        """Add a part of the body; what there are too many of, with the limit."""
        if len(part) <= _SHORT_BYTES:
            count.add(part)
            return count.too_many(self._max_model_len)
        for begin in range(0, len(part), _SLICE_BYTES):
            async with self._turns.next():
                count.add(part[begin : begin + _SLICE_BYTES])
            if too_many := count.too_many(self._max_model_len):
                return too_many
        return None
