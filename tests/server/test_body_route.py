"""Bodies are read beside the event loop where they are long."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import field_validator

from pagoda.engine.tenant_threads import TenantThreads
from pagoda.server.body_route import BodyRoute
from pagoda.server.errors import install_handlers
from pagoda.server.model_body import ModelBody

THREADS: list[str] = []


class Noting(ModelBody):
    """A body that notes which thread looks at it."""

    text: str

    @field_validator("text")
    @classmethod
    def _note(cls, text: str) -> str:
        THREADS.append(threading.current_thread().name)
        return text


@pytest.fixture
def client() -> httpx.AsyncClient:
    router = APIRouter(route_class=BodyRoute)

    @router.post("/")
    async def read(body: Noting) -> dict[str, Any]:
        told = [each.field for each in body.ignored()]
        return {"length": len(body.text), "extra": sorted(body.model_extra or {}), "told": told}

    app = FastAPI()
    app.state.body_threads = TenantThreads(1, "bodies")
    install_handlers(app)
    app.include_router(router)
    THREADS.clear()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x")


@pytest.mark.anyio
async def test_a_long_body_is_looked_at_once_and_not_on_the_loop(client: httpx.AsyncClient) -> None:
    answer = await client.post("/", json={"text": "x" * 100_000, "junk": 1, "suffix": 2})
    assert answer.json() == {"length": 100_000, "extra": ["suffix"], "told": ["junk"]}
    [thread] = THREADS
    assert thread != threading.current_thread().name


@pytest.mark.parametrize("padding", ["", "x" * 100_000], ids=["short", "long"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"text": 5, "pad": "%s"}', "text=5: must be text"),
        ('["%s"]', "the body must be a JSON object"),
        ('{"text": "%s"', "the body is not valid JSON"),
    ],
)
@pytest.mark.anyio
async def test_what_is_wrong_is_told_as_ever(
    client: httpx.AsyncClient, content: str, told: str, padding: str
) -> None:
    body = (content % padding).encode()
    headers = {"content-type": "application/json"}
    answer = await client.post("/", content=body, headers=headers)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"text": "x",}', "line 1 column 14"),
        (b'{"text": "\xff"}', "line 1 column"),
        (b'{"junk": ' + b"[" * 10_000, "recursion limit exceeded at line 1 column"),
        ('{"text": "x"}'.encode("utf-16"), "line 1 column 1"),
        ('{"text": "x"}'.encode("utf-16-le"), "line 1 column 2"),
        ('{"text": "x"}'.encode("utf-32-be"), "line 1 column 1"),
    ],
    ids=["comma", "no UTF-8", "deep", "UTF-16", "UTF-16, no mark", "UTF-32"],
)
@pytest.mark.anyio
async def test_what_is_no_json_is_told_with_its_place(
    client: httpx.AsyncClient, content: bytes, told: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = await client.post("/", content=content, headers=headers)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("the body is not valid JSON")
    assert told in message


@pytest.mark.anyio
async def test_utf_8_may_be_marked(client: httpx.AsyncClient) -> None:
    content = '{"text": "é"}'.encode("utf-8-sig")
    headers = {"content-type": "application/json"}
    answer = await client.post("/", content=content, headers=headers)
    assert answer.json()["length"] == 1


@pytest.mark.anyio
async def test_half_of_a_surrogate_pair_in_a_very_long_body_is_no_json(
    client: httpx.AsyncClient,
) -> None:
    content = b'{"text": "%s\\ud800"}' % (b"x" * 2**20)
    headers = {"content-type": "application/json"}
    answer = await client.post("/", content=content, headers=headers)
    assert answer.status_code == 400
    assert "not valid JSON" in answer.json()["error"]["message"]
