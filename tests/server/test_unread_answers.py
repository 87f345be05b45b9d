"""Large answers that wait for their readers share a bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message, Scope

from pagoda.server.errors import RejectedError, install_handlers
from pagoda.server.json_body import JSONBody
from pagoda.server.unread_answers import UnreadAnswers
from server.conftest import client_of

pytestmark = pytest.mark.anyio
LARGE = b" " * 300_000


def app_for(max_bytes: int) -> FastAPI:
    app = FastAPI()
    install_handlers(app)
    app.state.unread_answers = UnreadAnswers(max_bytes, is_shared=False)
    app.add_api_route("/large", lambda: JSONBody(LARGE))
    app.add_api_route("/small", lambda: JSONBody(b"{}"))
    return app


async def unread(app: FastAPI) -> asyncio.Task[None]:
    """A client that reads nothing but the first line of a large answer."""
    has_begun = asyncio.Event()

    async def send(message: Message) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    scope: Scope = {"type": "http", "app": app}
    reading = asyncio.create_task(JSONBody(LARGE)(scope, _nothing, send))
    await has_begun.wait()
    return reading


async def _nothing() -> Any:
    raise AssertionError


async def test_what_nobody_reads_keeps_out_other_large_answers_alone() -> None:
    app = app_for(2 * len(LARGE))
    unread_ones = [await unread(app) for _ in range(2)]
    async with client_of(app) as client:
        answer = await client.get("/large")
        assert answer.status_code == 503
        assert "600,000 bytes of answers" in answer.json()["error"]["message"]
        assert (await client.get("/small")).status_code == 200
        unread_ones.pop().cancel()
        await asyncio.sleep(0)
        for _ in range(3):  # one that was read holds nothing
            assert (await client.get("/large")).content == LARGE
    unread_ones.pop().cancel()


async def test_of_several_tenants_each_may_have_half_of_what_is_left() -> None:
    answers, scope = UnreadAnswers(100, is_shared=True), {"type": "http"}
    with (
        answers.held(scope, 50),
        pytest.raises(RejectedError, match="50 bytes .* of the 100"),
        answers.held(scope, 2),
    ):
        raise AssertionError
