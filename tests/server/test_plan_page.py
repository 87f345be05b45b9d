"""The planner's page as it is served."""

from __future__ import annotations

from contextlib import closing

import httpx
import pytest

from pagoda.calculator.page import plan_page
from pagoda.server.app import create_app
from pagoda.server.keys import KeyRing
from server.browser import Browser
from server.conftest import client_of
from server.fake_engine import FakeEngine
from server.live import live_server

POLICY = "content-security-policy"


@pytest.mark.anyio
async def test_it_is_served_with_headers_that_keep_it_to_itself(client: httpx.AsyncClient) -> None:
    response = await client.get("/plan")
    assert (response.status_code, response.text) == (200, plan_page())
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in response.headers[POLICY].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert policy["require-trusted-types-for"] == "'script'"


@pytest.mark.anyio
async def test_who_has_it_is_not_sent_it_again(client: httpx.AsyncClient) -> None:
    tag = (await client.get("/plan")).headers["etag"]
    for held in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        response = await client.get("/plan", headers={"If-None-Match": held})
        assert (response.status_code, response.content) == (304, b"")
    for other in ('"other"', f"other{tag}"):
        response = await client.get("/plan", headers={"If-None-Match": other})
        assert response.status_code == 200


@pytest.mark.anyio
async def test_it_needs_a_key_where_the_server_does(engine: FakeEngine) -> None:
    async with client_of(create_app(engine, keys=KeyRing({"alices-key-1": "alice"}))) as client:
        assert (await client.get("/plan")).status_code == 401
        assert (await client.get("/plan", auth=("me", "alices-key-1"))).status_code == 200


@pytest.mark.browser
def test_it_runs_under_its_policy(engine: FakeEngine, browser: Browser) -> None:
    with live_server(engine) as url, closing(browser.open()) as tab:
        tab.go(f"{url}/plan#model=Qwen/Qwen3-8B&gpu=L40S&context=8192&users=4")
        tab.wait_for("document.body.dataset.state === 'fits'")
        assert tab.text("#verdict").startswith("4 sequences of 8,192 tokens fit")
        assert tab.problems == []
        assert [
            address for address in tab.requested if not address.startswith(("data:", url))
        ] == []


@pytest.mark.anyio
async def test_the_chat_page_has_a_link_to_it(client: httpx.AsyncClient) -> None:
    assert 'href="plan"' in (await client.get("/")).text
