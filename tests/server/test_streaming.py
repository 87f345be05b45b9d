"""A stream whose client goes away while it is being sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, cast

import pytest

from pagoda.engine.outputs import RequestOutput
from pagoda.server.generation import PromptOutput
from pagoda.server.responses import ErrorDetail
from pagoda.server.streaming import EventStream, event

pytestmark = pytest.mark.anyio


class Numbers:
    """Writes the number of an output, which stands where the output would."""

    def news(self, item: PromptOutput) -> bytes:
        return event(str(item.output).encode())

    def takes_long(self, item: PromptOutput) -> bool:
        return False

    def __init__(self) -> None:
        self.num_ends = 0

    def end(self, outputs: Sequence[RequestOutput]) -> Iterator[bytes]:
        for number in range(2):
            self.num_ends += 1
            yield event(str(number).encode(), name="done")

    def ends_long(self) -> bool:
        return True

    def failure(self, detail: ErrorDetail) -> bytes:
        return event(detail.model_dump_json().encode())


class Client:
    """Takes so many messages, the status line among them, and is gone."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.bodies: list[bytes] = []

    async def __call__(self, message: Any) -> None:
        self.patience -= 1
        if self.patience < 0:
            raise OSError("connection lost")
        self.bodies.append(message.get("body", b""))


def numbered(number: int) -> PromptOutput:
    return PromptOutput(0, cast(RequestOutput, number))


class Outputs:
    """Four of them, of which the third may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_closed = False

    async def run(self) -> AsyncGenerator[PromptOutput, None]:
        try:
            for number in range(1, 4):
                if number == 3 and self.error is not None:
                    raise self.error
                yield numbered(number)
        finally:
            self.is_closed = True


def stream_of(outputs: Outputs) -> EventStream:
    return EventStream({"type": "http"}, numbered(0), outputs.run(), Numbers())


@pytest.mark.parametrize("patience", range(1, 7))
async def test_a_client_that_is_gone_is_sent_nothing_more(patience: int) -> None:
    """Least of all an error of the engine, which has not failed."""
    outputs, client = Outputs(), Client(patience)
    stream = stream_of(outputs)
    with pytest.raises(OSError, match="connection lost"):
        await stream.stream_response(client)
    assert len(client.bodies) == patience
    assert client.patience == -1, "it was tried again"
    assert not any(b"error" in body for body in client.bodies)
    assert outputs.is_closed == (patience > 1), "what has begun is closed"


async def test_a_failure_of_the_engine_is_told_in_the_stream() -> None:
    outputs, client = Outputs(RuntimeError("secret")), Client(9)
    await stream_of(outputs).stream_response(client)
    *told, failure = b"".join(client.bodies).split(b"\n\n")[:-1]
    assert told == [b"data: 0", b"data: 1", b"data: 2"]
    assert b"server_error" in failure
    assert b"secret" not in failure
    assert outputs.is_closed


async def test_an_end_has_events_of_its_own() -> None:
    outputs, client = Outputs(), Client(9)
    await stream_of(outputs).stream_response(client)
    told = b"".join(client.bodies).split(b"\n\n")[:-1]
    ends = [f"event: done\ndata: {n}".encode() for n in range(2)]
    assert told == [*(f"data: {n}".encode() for n in range(4)), *ends]
    assert outputs.is_closed


async def test_an_end_is_written_as_it_is_sent() -> None:
    """Its events may be large, and are not in memory together."""
    writer = Numbers()
    stream = EventStream({"type": "http"}, numbered(0), Outputs().run(), writer)
    sent: list[int] = []

    async def send(message: Any) -> None:
        if b"event: done" in message.get("body", b""):
            sent.append(writer.num_ends)

    await stream.stream_response(send)
    assert sent == [1, 2]
