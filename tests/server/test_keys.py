"""API keys: which of them open, and for whom."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import pytest

from pagoda.errors import InvalidOptionError
from pagoda.server.keys import Holder, KeyRing
from pagoda.server.options import ServerOptions
from server.conftest import MakeApp, client_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
ALICE, BOB = "alices-key-1", "bobs-key-1"
TENANTS = {ALICE: "alice", BOB: "bob", "bobs-key-2": "bob"}


def test_without_keys_everybody_is_one_tenant() -> None:
    keys = KeyRing()
    assert keys.is_open
    assert keys.holder_of(None) == keys.holder_of("anything") == Holder("", is_operator=True)


def test_a_key_stands_for_its_tenant() -> None:
    keys = KeyRing(TENANTS)
    for key, tenant in TENANTS.items():
        assert keys.holder_of(key) == Holder(tenant, is_operator=False)
    for wrong in (None, "", "alices-key-", "alices-key-12", "ALICES-KEY-1", "é" * 12, "\udcff"):
        assert keys.holder_of(wrong) is None


def test_keys_come_from_options_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nalices-key-1 alice\n\nbobs-key-1\tbob  # his\n")
    keys = KeyRing.of(["another-key"], file)
    assert keys.holder_of(ALICE) == Holder("alice", is_operator=False)
    assert keys.holder_of(BOB) == Holder("bob", is_operator=False)
    assert keys.holder_of("another-key") == Holder("default", is_operator=True)


def test_who_has_the_server_alone_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alices-key-1 alice\nalices-key-2 alice\n")
    assert KeyRing.of((), file).holder_of(ALICE) == Holder("alice", is_operator=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("alices-key-1", "line 1 must be a key, the name of its tenant, and perhaps its quota"),
        ("a b c d", "line 1 must be"),
        ("short x", "the key of line 1 must have at least 8 characters"),
        ("alices-key-1 a\nalices-key-1 b", "line 2 repeats a key"),
        ("# nothing", "holds no key"),
    ],
)
def test_a_file_that_will_not_do_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidOptionError) as refused:
        KeyRing.of((), file)
    assert reason in str(refused.value)
    assert "alices" not in str(refused.value)


def test_a_file_that_is_not_there_and_a_short_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="api_key_file="):
        KeyRing.of((), tmp_path / "nothing")
    with pytest.raises(InvalidOptionError, match="api_key=") as refused:
        KeyRing.of(["secret"])
    assert "secret" not in str(refused.value)


ONE_KEY = KeyRing({ALICE: "alice"})
ROUTES = ("/v1/models", "/metrics", "/load", "/version", "/openapi.json", "/nothing")


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_but_health_needs_a_key(route: str, make_app: MakeApp) -> None:
    async with client_of(make_app(keys=ONE_KEY)) as client:
        refused = await client.get(route)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.headers["www-authenticate"].startswith("Bearer")
        allowed = await client.get(route, headers={"Authorization": f"Bearer {ALICE}"})
        assert allowed.status_code in (200, 404)
        for free in ("/health", "/ping"):
            assert (await client.get(free)).status_code == 200


OPERATOR = "operators-key"
UNSHARED = KeyRing(TENANTS)
SHARED = KeyRing({**TENANTS, OPERATOR: "default"}, operators=[OPERATOR])


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", "/metrics"),
        ("HEAD", "/metrics"),
        ("GET", "/server_info"),
        ("POST", "/reset_prefix_cache"),
    ],
)
async def test_what_concerns_all_tenants_takes_an_operators_key(
    method: str, route: str, make_app: MakeApp, engine: FakeEngine
) -> None:
    async with client_of(make_app(ServerOptions(dev_mode=True), SHARED)) as client:
        refused = await client.request(method, route, headers={"Authorization": f"Bearer {BOB}"})
        assert refused.status_code == 403
        if method != "HEAD":
            assert refused.json()["error"]["code"] == "operators_only"
        assert engine.num_resets == 0
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        assert (await client.request(method, route, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("key", "priority", "status"),
    [(ALICE, -1, 400), (ALICE, 0, 200), (ALICE, 1, 200), (OPERATOR, -1, 200)],
)
async def test_only_an_operator_goes_before_others(
    key: str, priority: int, status: int, make_app: MakeApp, engine: FakeEngine
) -> None:
    async with client_of(make_app(keys=SHARED)) as client:
        body = {"prompt": "x", "priority": priority}
        headers = {"Authorization": f"Bearer {key}"}
        response = await client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == status
    assert [asked["options"].priority for asked in engine.asked] == [priority] * (status == 200)
    if status == 400:
        assert response.json()["error"]["param"] == "priority"
        assert "priority=-1: 0 or more with this key" in response.json()["error"]["message"]


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {ALICE}", 200),
        (f"bearer  {ALICE} ", 200),
        (basic(ALICE), 200),
        (basic("wrong"), 401),
        ("Basic !", 401),
        ("Basic /w==", 401),
        (ALICE, 401),
        ("Bearer", 401),
        ("Digest x", 401),
        ("Bearer \xff", 401),
    ],
)
async def test_how_a_key_is_presented(header: str, status: int, make_app: MakeApp) -> None:
    async with client_of(make_app(keys=UNSHARED)) as client:
        headers = {"Authorization": header.encode("latin-1")}
        assert (await client.get("/v1/models", headers=headers)).status_code == status


async def test_a_key_decides_whose_cache_is_asked(make_app: MakeApp, engine: FakeEngine) -> None:
    async with client_of(make_app(keys=UNSHARED)) as client:
        for key in TENANTS:
            headers = {"Authorization": f"Bearer {key}"}
            body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
            for route in ("/v1/completions", "/v1/chat/completions"):
                response: httpx.Response = await client.post(route, json=body, headers=headers)
                assert response.status_code == 200
    assert [asked["options"].tenant for asked in engine.asked] == ["alice"] * 2 + ["bob"] * 4
