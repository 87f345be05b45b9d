"""Pages of other origins: what they may make a browser send, and what they may read."""

from __future__ import annotations

import socket

import pytest
from fastapi import FastAPI

from pagoda.errors import InvalidOptionError
from pagoda.server.app import create_app
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from server.conftest import MakeApp, client_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
KEY = "the-only-key"
KEYS = KeyRing({KEY: "all"})
CHAT = "https://chat.example"
BODY = {"prompt": "x", "max_tokens": 1}
OWN_NAME = socket.gethostname()


async def status_of(app: FastAPI, method: str, route: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client_of(app) as client:
        return (await client.request(method, route, headers=named)).status_code


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "pagoda.localhost:8000",
        "127.0.0.1:8000",
        "192.168.1.7",
        "[::1]:8000",
        "[::1]",
        OWN_NAME,
        f"{OWN_NAME}.local:80",
        "models.example",
        "MODELS.example:8000",
    ],
)
async def test_a_keyless_server_answers_to_its_names(host: str, make_app: MakeApp) -> None:
    app = make_app(ServerOptions(allowed_hosts=("models.example",)))
    assert await status_of(app, "GET", "/v1/models", host=host) == 200


STRANGE_HOSTS = (
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil-localhost",
    "models.example.evil.example",
    "x:y:z",
    "[evil]",
    "1",
    "",
)


@pytest.mark.parametrize("host", STRANGE_HOSTS)
async def test_a_page_that_points_its_name_here_is_refused(
    host: str, make_app: MakeApp, engine: FakeEngine
) -> None:
    app = make_app(ServerOptions(allowed_hosts=("models.example",), dev_mode=True))
    for method, route in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/")):
        assert await status_of(app, method, route, host=host) == 403
    assert await status_of(app, "GET", "/health", host=host) == 200
    assert engine.asked == []


async def test_all_names_may_be_allowed_and_a_key_allows_them_too(engine: FakeEngine) -> None:
    anything = create_app(engine, ServerOptions(allowed_hosts=("*",)))
    assert await status_of(anything, "GET", "/v1/models", host="evil.example") == 200
    keyed = create_app(engine, keys=KEYS)
    bearer = f"Bearer {KEY}"
    assert (
        await status_of(keyed, "GET", "/v1/models", host="x.example", authorization=bearer) == 200
    )
    assert await status_of(keyed, "GET", "/v1/models", host="x.example") == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost"}, 200),
        ({"origin": CHAT}, 200),
        ({"origin": CHAT, "sec_fetch_site": "cross-site"}, 200),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "same-origin", "origin": "https://behind.a.proxy"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:3000"}, 403),
    ],
)
async def test_a_page_of_another_origin_changes_nothing(
    headers: dict[str, str], status: int, make_app: MakeApp, engine: FakeEngine
) -> None:
    app = make_app(ServerOptions(dev_mode=True, allowed_origins=(CHAT,)))
    assert await status_of(app, "POST", "/reset_prefix_cache", **headers) == status
    assert engine.num_resets == (status == 200)
    assert await status_of(app, "GET", "/v1/models", **headers) == 200


async def test_without_the_option_no_page_may_read(engine: FakeEngine) -> None:
    async with client_of(create_app(engine)) as client:
        response = await client.get("/v1/models", headers={"Origin": CHAT})
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]


def preflight(origin: str = CHAT, method: str = "POST") -> dict[str, str]:
    """What a browser asks before a page may send JSON and a key."""
    return {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type",
    }


async def test_a_browser_may_ask_first_and_without_a_key(engine: FakeEngine) -> None:
    app = create_app(engine, ServerOptions(allowed_origins=(CHAT,)), KEYS)
    async with client_of(app) as client:
        allowed = await client.options("/v1/completions", headers=preflight())
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == CHAT
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in allowed.headers
        refused = await client.options("/v1/completions", headers=preflight("https://evil.example"))
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
        sent = {"Origin": CHAT, "Authorization": f"Bearer {KEY}"}
        answer = await client.post("/v1/completions", json=BODY, headers=sent)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == CHAT
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_methods_headers_and_passwords_are_those_of_the_options(engine: FakeEngine) -> None:
    options = ServerOptions(
        allowed_origins=(CHAT,),
        allowed_methods=("GET",),
        allowed_headers=("content-type",),
        allow_credentials=True,
    )
    async with client_of(create_app(engine, options)) as client:
        assert (await client.options("/v1/models", headers=preflight())).status_code == 400
        asked = preflight(method="GET")
        assert (await client.options("/v1/models", headers=asked)).status_code == 400
        asked["Access-Control-Request-Headers"] = "content-type"
        allowed = await client.options("/v1/models", headers=asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-credentials"] == "true"
    with pytest.raises(InvalidOptionError, match="allow_credentials=True: name the origins"):
        ServerOptions(allowed_origins=("*",), allow_credentials=True)


async def test_a_page_may_read_why_it_was_refused(engine: FakeEngine) -> None:
    options = ServerOptions(allowed_origins=("*",), max_body_bytes=100)
    origin, bearer = {"Origin": CHAT}, {"Authorization": f"Bearer {KEY}"}
    app = create_app(engine, options, KEYS)
    async with client_of(app) as client:
        told = [await client.post("/v1/completions", json=BODY, headers=origin)]
        known = origin | bearer
        large = {**BODY, "prompt": "x" * 100}
        told.append(await client.post("/v1/completions", json=large, headers=known))
        engine.fail = RuntimeError("it breaks in the middle")
        failing = {**BODY, "max_tokens": 2}
        told.append(await client.post("/v1/completions", json=failing, headers=known))
        app.state.admission.close()
        told.append(await client.post("/v1/completions", json=BODY, headers=known))
    assert [response.status_code for response in told] == [401, 413, 500, 503]
    assert {response.headers["access-control-allow-origin"] for response in told} == {"*"}


@pytest.mark.parametrize("name", ["allowed_hosts", "allowed_origins", "allowed_headers"])
def test_names_are_texts(name: str) -> None:
    for wrong in ((1,), ("",)):
        with pytest.raises(InvalidOptionError, match=f"{name}=.*a list of texts"):
            ServerOptions(**{name: wrong})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_origins", "foo"),
        ("allowed_origins", "https://chat.example/"),
        ("allowed_origins", "https://chat.example/page"),
        ("allowed_hosts", "https://models.example"),
        ("allowed_hosts", "models.example:8000"),
        ("allowed_hosts", "a b"),
    ],
)
def test_what_no_browser_sends_is_refused_before_anything_is_loaded(field: str, value: str) -> None:
    with pytest.raises(InvalidOptionError, match=field) as refused:
        ServerOptions(**{field: ("*", value)})
    assert refused.value.value == value
