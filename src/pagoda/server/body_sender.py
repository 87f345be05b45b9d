"""The body of one answer on its way to its client."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from starlette.types import Message, Scope, Send

PART_BYTES = 256 * 1024
"""Of a body, sent at once."""


class BodySender:
    """Sends an answer in pieces of any size; the first one takes the status and headers along.

    A piece goes in parts, each when the client has read nearly all before it: a request is over,
    and its place free, when its answer is read and does not lie in the server's memory any more. A
    piece of several parts counts among the application's `unread_answers` meanwhile.
    """

    def __init__(self, scope: Scope, send: Send, start: Message) -> None:
        self._scope = scope
        self._send = send
        self._start: Message | None = start
        """What is sent before the body, until it is."""

    @property
    def has_begun(self) -> bool:
        """The status is sent."""
        return self._start is None

    async def send(self, piece: bytes) -> None:
        """Send a piece, which may be empty.

        Raises `RejectedError` where too much is unread already: nothing of the piece is sent then.
        """
        with self._held(len(piece)):
            if self._start is not None:
                start, self._start = self._start, None
                await self._send(start)
            for begin in range(0, len(piece), PART_BYTES):
                part = piece[begin : begin + PART_BYTES]
                await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        """Tell the client that it has all."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _held(self, num_bytes: int) -> AbstractContextManager[None]:
        if num_bytes <= PART_BYTES:
            return nullcontext()
        held: AbstractContextManager[None] = self._scope["app"].state.unread_answers.held(
            self._scope, num_bytes
        )
        return held
