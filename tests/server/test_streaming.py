"""A stream whose client goes away while it is being sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, cast

import pytest
from pydantic import BaseModel

from pagoda.engine.outputs import RequestOutput
from pagoda.server.generation import PromptOutput
from pagoda.server.responses import PromptTokensDetails, Usage
from pagoda.server.streaming import EventStream

pytestmark = pytest.mark.anyio


class Numbers:
    """Writes the number of an output, which stands where the output would."""

    def chunks(self, item: PromptOutput) -> Iterable[bytes]:
        yield str(item.output).encode()

    def usage_of(self, outputs: Sequence[RequestOutput]) -> Usage:
        details = PromptTokensDetails(cached_tokens=0)
        return Usage(
            prompt_tokens=len(outputs), completion_tokens=0, total_tokens=0,
            prompt_tokens_details=details,
        )  # fmt: skip

    def usage_chunk(self, usage: Usage) -> BaseModel:
        return usage


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
    return EventStream(numbered(0), outputs.run(), Numbers(), include_usage=True)


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
    *told, failure, done = b"".join(client.bodies).split(b"\n\n")[:-1]
    assert told == [b"data: 0", b"data: 1", b"data: 2"]
    assert b"server_error" in failure
    assert b"secret" not in failure
    assert done == b"data: [DONE]"
    assert outputs.is_closed
