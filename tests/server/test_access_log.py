"""One line for each request: what it tells, and what it must not."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from rich.console import Console

from pagoda.cli.terminal import logging_to
from pagoda.server.app import create_app
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from server.conftest import client_of
from server.fake_engine import FakeEngine, words

pytestmark = pytest.mark.anyio
COMPLETIONS = "/v1/completions"
KEY, PROMPT = "alices-secret-key", "a very private question"
BODY = {"prompt": PROMPT, "max_tokens": 5}
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """Of an application that has counted nothing yet."""
    async with client_of(create_app(engine)) as client:
        yield client


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The server's log in JSON."""
    console = Console(file=io.StringIO(), width=20)
    with logging_to(console, "pagoda", log_format="json"):
        yield console.file  # type: ignore[misc]


@pytest.fixture
async def keyed(engine: FakeEngine) -> httpx.AsyncClient:
    return client_of(create_app(engine, keys=KeyRing({KEY: "alice"})))


def lines_of(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_line_tells_how_much_and_not_what(
    streamed: bool, keyed: httpx.AsyncClient, written: io.StringIO
) -> None:
    body = {**BODY, "stream": streamed, "n": 2}
    await keyed.post(COMPLETIONS, json=body, headers=HEADERS)
    url = f"{COMPLETIONS}?key={KEY}"
    again = await keyed.post(url, json=body, headers={**HEADERS, "x-request-id": "mine"})
    text = again.text.removeprefix("data: ").partition("\n")[0]
    again_id = json.loads(text)["id"]
    first, line = lines_of(written)
    assert timedelta() <= datetime.now().astimezone() - datetime.fromisoformat(line.pop("ts"))
    assert line.pop("duration_ms") >= 0
    assert line.pop("answer_id") == again_id
    assert line.pop("message").startswith(f"method=POST path={COMPLETIONS} status=200 ")
    assert line == {
        "level": "INFO",
        "logger": "pagoda.access",
        "method": "POST",
        "path": COMPLETIONS,
        "status": 200,
        "tenant": "alice",
        "request_id": "mine",
        "streamed": streamed,
        "prompt_tokens": len(PROMPT),
        "cached_tokens": len(PROMPT) - 1,
        "output_tokens": 10,
    }
    assert first["ts"].endswith("+00:00")
    assert first["cached_tokens"] == 0
    text = written.getvalue()
    assert words(0, 1)[0] in again.text
    for secret in (KEY, PROMPT, *words(0, 6)):
        assert secret not in text


async def test_names_that_a_client_makes_up_make_no_line_and_no_field(
    keyed: httpx.AsyncClient, written: io.StringIO
) -> None:
    names = ("x\nINFO tenant=bob", "\x1b[31mred", "p q=r")
    await keyed.post(COMPLETIONS, json={**BODY, **dict.fromkeys(names, 1)}, headers=HEADERS)
    (line,) = lines_of(written)
    assert line["ignored"] == "x%0AINFO%20tenant%3Dbob,%1B[31mred,p%20q%3Dr"
    assert line["message"].isprintable()
    assert line["message"].count("=") == len(line) - 4  # but for ts, level, logger and message


async def test_who_is_turned_away_is_told_as_well(
    keyed: httpx.AsyncClient, written: io.StringIO
) -> None:
    await keyed.post(COMPLETIONS, json=BODY, headers={"Authorization": "Bearer wrong-key-12"})
    await keyed.post(COMPLETIONS, json={"prompt": ""}, headers=HEADERS)
    await keyed.get("/no%0Aline", headers=HEADERS)
    assert [line["status"] for line in lines_of(written)] == [401, 400, 404]
    assert [line["tenant"] for line in lines_of(written)] == ["", "alice", "alice"]
    assert lines_of(written)[2]["path"] == "/no%0Aline"
    assert "wrong-key" not in written.getvalue()
    assert not any("prompt_tokens" in line for line in lines_of(written))


async def test_a_line_tells_why_and_never_the_value(
    engine: FakeEngine, keyed: httpx.AsyncClient, written: io.StringIO
) -> None:
    long = {"prompt": "secret " * 20}
    for body in ({**BODY, "seed": "my-secret"}, {**BODY, "top_p": 1234.5}, long):
        await keyed.post(COMPLETIONS, json=body, headers=HEADERS)
    await keyed.post(COMPLETIONS, json={**BODY, "model": "secret-model"}, headers=HEADERS)
    await keyed.post(COMPLETIONS, content=b"{secret", headers=HEADERS)
    await keyed.post(COMPLETIONS, json=BODY)
    await keyed.get("/nothing", headers=HEADERS)
    engine.fail = RuntimeError("a secret bug")
    await keyed.post(COMPLETIONS, json=BODY, headers=HEADERS)
    refusal = "invalid_request_error"
    lines = [line for line in lines_of(written) if line["logger"] == "pagoda.access"]
    assert [(line["status"], line["error"], line.get("error_param")) for line in lines] == [
        (400, refusal, "seed"),
        (400, refusal, "top_p"),
        (400, "context_length_exceeded", "prompt"),
        (404, "model_not_found", "model"),
        (400, refusal, None),
        (401, "invalid_api_key", None),
        (404, refusal, None),
        (500, "engine_error", None),
    ]
    told = json.dumps(lines)
    assert "secret" not in told
    assert "1234.5" not in told  # ids may have the digits


async def test_what_is_asked_every_few_seconds_is_for_debugging(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pagoda.access")
    for path in ("/health", "/metrics", "/version"):
        await client.get(path)
    assert [(record.levelname, record.fields["path"]) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("DEBUG", "/health"),
        ("DEBUG", "/metrics"),
        ("INFO", "/version"),
    ]


async def test_a_stream_that_breaks_off_is_told_as_far_as_it_came(
    engine: FakeEngine, written: io.StringIO
) -> None:
    engine.hold = asyncio.Event()
    options = ServerOptions(request_timeout=0.05)
    async with client_of(create_app(engine, options)) as client:
        await client.post(COMPLETIONS, json={**BODY, "stream": True})
    line = lines_of(written)[-1]
    assert (line["prompt_tokens"], line["output_tokens"]) == (len(PROMPT), 1)
    assert line["duration_ms"] >= 50


async def test_a_client_that_goes_away_is_told_as_499(
    engine: FakeEngine, client: httpx.AsyncClient, written: io.StringIO
) -> None:
    engine.hold = asyncio.Event()
    asking = asyncio.create_task(client.post(COMPLETIONS, json=BODY))
    async with asyncio.timeout(20):
        while not engine.started:
            await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    [line] = lines_of(written)
    assert (line["status"], line["streamed"]) == (499, False)


@pytest.mark.parametrize("given", ["abc-1", "!" + "x" * 126 + "~"])
async def test_a_sane_request_id_is_echoed(given: str, client: httpx.AsyncClient) -> None:
    response = await client.get("/version", headers={"x-request-id": given})
    assert response.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize("given", [None, "", "x" * 129, "a b", "é", "a\tb", "\x7f"])
async def test_any_other_is_replaced(given: str | None, client: httpx.AsyncClient) -> None:
    headers = {} if given is None else {"x-request-id": given.encode("latin-1")}
    made = [(await client.get("/version", headers=headers)).headers["x-request-id"] for _ in "ab"]
    assert len(set(made)) == 2
    assert given not in made
    assert all(len(each) == 32 for each in made)


async def test_every_response_has_a_request_id(
    engine: FakeEngine, keyed: httpx.AsyncClient
) -> None:
    async with keyed:
        answers = [
            await keyed.get("/health"),
            await keyed.get("/version"),
            await keyed.get("/nothing", headers=HEADERS),
            await keyed.put(COMPLETIONS, headers=HEADERS),
            await keyed.post(COMPLETIONS, json=BODY, headers=HEADERS),
        ]
        engine.fail = RuntimeError("a bug")
        answers.append(await keyed.post(COMPLETIONS, json=BODY, headers=HEADERS))
    assert [answer.status_code for answer in answers] == [200, 401, 404, 405, 200, 500]
    assert all(answer.headers["x-request-id"] for answer in answers)


async def test_requests_are_counted_by_kinds_that_clients_cannot_make_up(
    client: httpx.AsyncClient,
) -> None:
    for path in ("/version", "/version", "/made-up-1", "/made-up-2"):
        await client.get(path)
    await client.request("INVENTED", "/version")
    await client.post(COMPLETIONS, json={"prompt": ""})
    text = (await client.get("/metrics")).text
    found = {
        line.split('engine="0",')[1].split(" ")[0]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("pagoda:http_requests_total{")
    }
    assert found == {
        'method="GET",model_name="fake-model",route="/version",status="200"}': 2,
        'method="GET",model_name="fake-model",route="other",status="404"}': 2,
        'method="other",model_name="fake-model",route="/version",status="405"}': 1,
        f'method="POST",model_name="fake-model",route="{COMPLETIONS}",status="400"}}': 1,
    }


async def test_what_is_refused_on_its_way_counts_under_the_route_that_it_was_for(
    client: httpx.AsyncClient,
) -> None:
    strange = {"host": "elsewhere.example"}
    paths = ("/v1/models", "/v1/responses/resp_1", "/openapi.json", COMPLETIONS, "/made-up")
    for path in paths:
        assert (await client.get(path, headers=strange)).status_code == 403
    await client.get("/openapi.json")
    text = (await client.get("/metrics")).text
    counted = [
        line.split('route="')[1].split('"')[0]
        for line in text.splitlines()
        if line.startswith("pagoda:http_requests_total{") and 'status="403"' in line
    ]
    own = ["/v1/models", "/v1/responses/{response_id}", "/openapi.json", COMPLETIONS, "other"]
    assert sorted(counted) == sorted(own)
    assert 'route="/openapi.json",status="200"} 1.0' in text


async def test_rejections_are_counted_by_code(engine: FakeEngine) -> None:
    app = create_app(engine, keys=KeyRing({KEY: "alice"}))
    app.state.admission.close()
    async with client_of(app) as client:
        await client.post(COMPLETIONS, json=BODY, headers=HEADERS)
        await client.post(COMPLETIONS, json=BODY)
        text = (await client.get("/metrics", headers=HEADERS)).text
    labels = 'engine="0",model_name="fake-model"'
    for code, count in (("server_shutting_down", 1), ("server_overloaded", 0)):
        assert f'requests_rejected_total{{code="{code}",{labels}}} {count}.0' in text
    for status in (503, 401):
        kind = f'method="POST",model_name="fake-model",route="{COMPLETIONS}",status="{status}"'
        assert f"{kind}}} 1.0" in text
