"""Large answers that wait for their readers share a bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message, Scope

from pagoda.server.app import create_app
from pagoda.server.body_sender import PART_BYTES, BodySender
from pagoda.server.errors import RejectedError, install_handlers
from pagoda.server.json_body import JSONBody
from pagoda.server.options import ServerOptions
from pagoda.server.unread_answers import MAX_UNREAD_BYTES, UnreadAnswers
from server.conftest import client_of
from server.fake_engine import FakeEngine

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
        pytest.raises(RejectedError, match="must leave as many of the 100"),
        answers.held(scope, 2),
    ):
        raise AssertionError


async def test_one_answer_is_sent_however_large_where_no_other_is_unread() -> None:
    app = app_for(100)
    reading = await unread(app)
    async with client_of(app) as client:
        assert (await client.get("/large")).status_code == 503
        reading.cancel()
        await asyncio.sleep(0)
        assert (await client.get("/large")).content == LARGE


async def test_small_bodies_may_have_large_answers(engine: FakeEngine) -> None:
    app = create_app(engine, ServerOptions(max_body_bytes=1))
    app.add_api_route("/large", lambda: JSONBody(LARGE))
    async with client_of(app) as client:
        assert (await client.get("/large")).content == LARGE


async def test_a_long_piece_goes_in_parts_which_are_held_until_all_are_sent() -> None:
    app = app_for(len(LARGE))
    answers = app.state.unread_answers
    scope: Scope = {"type": "http", "app": app}
    sent: list[bytes] = []
    refused: list[bool] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        try:
            with answers.held(scope, 1):
                refused.append(False)
        except RejectedError:
            refused.append(True)

    sender = BodySender(scope, send, {"type": "http.response.start", "status": 200})
    for piece in (b"", b"x", LARGE, b"y"):
        await sender.send(piece)
    await sender.end()
    assert b"".join(sent) == b"x" + LARGE + b"y"
    assert max(map(len, sent)) == PART_BYTES
    assert refused == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("route", "prompt", "is_told"),
    [
        ("/v1/completions", {"prompt": "x"}, True),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}, True),
        ("/v1/responses", {"input": "x"}, False),  # it would tell all that was said once more
    ],
)
async def test_a_stream_has_no_more_room_than_a_whole_answer(
    route: str, prompt: dict[str, Any], is_told: bool, engine: FakeEngine
) -> None:
    app = create_app(engine)
    body = {**prompt, "model": engine.model_name, "stream": True}
    long = "z" * len(LARGE)
    async with client_of(app) as client:
        engine.says = ["word", long]
        whole = await client.post(route, json=body)
        assert (whole.status_code, long in whole.text) == (200, True)
        with app.state.unread_answers.held({"type": "http"}, MAX_UNREAD_BYTES):
            cut = await client.post(route, json=body)
        assert cut.status_code == 200
        assert "word" in cut.text
        assert long not in cut.text
        assert ("bytes of answers" in cut.text) == is_told
        assert ('"type":"overloaded_error"' in cut.text) == (route == "/v1/messages")
        assert (await client.post(route, json=body)).status_code == 200
    assert len(engine.ended) == 3


async def test_a_stream_that_begins_with_too_much_is_refused(engine: FakeEngine) -> None:
    app = create_app(engine)
    engine.says = ["z" * len(LARGE), "word"]
    async with client_of(app) as client:
        with app.state.unread_answers.held({"type": "http"}, MAX_UNREAD_BYTES):
            refused = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_overloaded"
        assert engine.aborted == engine.started
        assert (await client.get("/load")).json() == {"server_load": 0}
