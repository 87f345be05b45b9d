"""What stands before the routes: how much comes in, how large and how fast."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from starlette.types import Message

from pagoda.engine.stats import FIGURES
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.server.access_log import AccessLog
from pagoda.server.admission import Admission
from pagoda.server.app import create_app
from pagoda.server.door import HeaderLimit
from pagoda.server.errors import RejectedError
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from pagoda.server.recent_lookups import RecentLookups
from pagoda.server.traffic import Traffic
from server.conftest import client_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
COMPLETIONS = "/v1/completions"


async def test_places_are_given_back_however_a_request_ends() -> None:
    admission = Admission(2, most_per_tenant=1)
    places = admission.entered("a")
    places.__enter__()
    assert admission.num_admitted == 1
    assert not places.__exit__(ValueError, ValueError("broken"), None)  # it is not swallowed
    assert admission.num_admitted == 0
    await admission.emptied()


async def test_places_are_those_of_sequences() -> None:
    admission = Admission(4)
    with admission.entered("a") as places:
        places.hold(3)
        assert admission.num_admitted == 1
        with admission.entered("b") as others:
            with pytest.raises(RejectedError) as rejected:
                others.hold(2)
            assert rejected.value.status_code == 503
            with pytest.raises(InvalidRequestError, match="at most 4 at a time") as refused:
                others.hold(5, "prompt")
            assert refused.value.field == "prompt"
            with pytest.raises(RejectedError), admission.entered("c"):
                pass
    with admission.entered("b") as places:
        places.hold(4)
    await admission.emptied()


@pytest.mark.parametrize("most", range(1, 9))
async def test_a_tenant_leaves_as_many_places_as_it_takes(most: int) -> None:
    admission = Admission(most, is_shared=True)
    held = Counter[str]()
    with ExitStack() as stack:
        for tenant in "abc":
            with suppress(RejectedError):
                while True:
                    stack.enter_context(admission.entered(tenant))
                    held[tenant] += 1
    assert held["a"] == admission.most_of_one == (most + 1) // 2
    assert held["b"] == (most - held["a"] + 1) // 2
    assert held["c"] == (most - held["a"] - held["b"] + 1) // 2
    assert held.total() <= most


async def test_who_is_in_loses_nothing_to_those_who_come_later() -> None:
    admission = Admission(8, is_shared=True)
    with ExitStack() as stack:
        mine = [stack.enter_context(admission.entered("a")) for _ in range(4)]
        for _ in range(2):
            stack.enter_context(admission.entered("b"))
        for places in mine:
            places.hold(1)
            assert places.num_held == 1
        with pytest.raises(RejectedError):
            mine[0].hold(2)
    assert admission.num_rejected.total() == 1


async def test_who_has_the_server_alone_may_take_all_places() -> None:
    admission = Admission(8)
    assert admission.most_of_one == 8
    with admission.entered("") as places:
        places.hold(8)
    assert Admission(8, 3, is_shared=True).most_of_one == 3


async def test_there_is_room_for_so_many_and_so_many_of_each() -> None:
    admission = Admission(2, most_per_tenant=1)
    with admission.entered("a"):
        with pytest.raises(RejectedError) as rejected, admission.entered("a"):
            pass
        assert (rejected.value.status_code, rejected.value.code) == (429, "rate_limit_exceeded")
        with admission.entered("b"):
            with pytest.raises(RejectedError) as rejected, admission.entered("c"):
                pass
            assert (rejected.value.status_code, rejected.value.code) == (503, "server_overloaded")
            waiting = asyncio.create_task(admission.emptied())
            await asyncio.sleep(0)
            assert not waiting.done()
    await waiting
    admission.close()
    with pytest.raises(RejectedError, match="shutting down"), admission.entered("a"):
        pass
    assert admission.num_rejected == {
        "rate_limit_exceeded": 1,
        "server_overloaded": 1,
        "server_shutting_down": 1,
    }


async def wait_for_starts(engine: FakeEngine, count: int) -> None:
    async with asyncio.timeout(20):
        while len(engine.started) < count:
            await asyncio.sleep(0)


async def test_one_more_than_fits_is_told_503_and_when_to_come_back(engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    options = ServerOptions(max_num_queued_reqs=1)  # beside the two that run
    async with client_of(create_app(engine, options)) as client:
        running = [
            asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x", "stream": stream}))
            for stream in (False, True, False)
        ]
        await wait_for_starts(engine, 3)
        assert (await client.get("/load")).json() == {"server_load": 3}
        late = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert late.json()["error"]["code"] == "server_overloaded"
        assert (await client.get("/health")).status_code == 200
        engine.hold.set()
        assert [response.status_code for response in await asyncio.gather(*running)] == [200] * 3
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_one_key_cannot_take_all_places(engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    keys = KeyRing({"alices-key-1": "alice", "bobs-key-1": "bob"})
    app = create_app(engine, ServerOptions(max_num_reqs_per_key=1), keys)
    alice, bob = ({"Authorization": f"Bearer {key}"} for key in ("alices-key-1", "bobs-key-1"))
    body = {"prompt": "x"}
    async with client_of(app) as client:
        running = [asyncio.create_task(client.post(COMPLETIONS, json=body, headers=alice))]
        await wait_for_starts(engine, 1)
        refused = await client.post(COMPLETIONS, json=body, headers=alice)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        running.append(asyncio.create_task(client.post(COMPLETIONS, json=body, headers=bob)))
        await wait_for_starts(engine, 2)
        engine.hold.set()
        assert [response.status_code for response in await asyncio.gather(*running)] == [200] * 2


async def test_a_greedy_key_leaves_room_for_others(engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    keys = KeyRing({"alices-key-1": "alice", "bobs-key-1": "bob"})
    app = create_app(engine, ServerOptions(max_num_queued_reqs=6), keys)
    alice, bob = ({"Authorization": f"Bearer {key}"} for key in ("alices-key-1", "bobs-key-1"))
    async with client_of(app) as client:
        body = {"prompt": ["x", "y"], "n": 2}
        running = [asyncio.create_task(client.post(COMPLETIONS, json=body, headers=alice))]
        await wait_for_starts(engine, 2)
        greedy = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=alice)
        assert (greedy.status_code, greedy.json()["error"]["type"]) == (429, "rate_limit_error")
        assert greedy.json()["error"]["message"].startswith("this tenant has 4 sequences")
        too_many = await client.post(COMPLETIONS, json={"prompt": "x", "n": 5}, headers=bob)
        assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")
        running.append(
            asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}, headers=bob))
        )
        await wait_for_starts(engine, 3)
        assert (await client.get("/load", headers=bob)).json() == {"server_load": 2}
        engine.hold.set()
        assert [response.status_code for response in await asyncio.gather(*running)] == [200] * 2


@pytest.mark.parametrize(
    ("route", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [97]})]
)
async def test_tokenising_has_a_gate(
    route: str, body: dict[str, object], engine: FakeEngine
) -> None:
    engine.hold = asyncio.Event()
    async with client_of(create_app(engine, ServerOptions(max_num_queued_reqs=0))) as client:
        asking = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x", "n": 2}))
        await wait_for_starts(engine, 1)
        assert (await client.post(route, json=body)).status_code == 503
        engine.hold.set()
        await asking
        assert (await client.post(route, json=body)).status_code == 200


async def test_texts_of_tokens_are_made_off_the_event_loop(
    engine: FakeEngine, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def token_text(token_id: int) -> str:
        threads.add(threading.get_ident())
        return chr(token_id)

    monkeypatch.setattr(engine.tokenizer, "token_text", token_text)
    body = {"prompt": "ab", "return_token_strs": True}
    assert (await client.post("/tokenize", json=body)).status_code == 200
    assert threads
    assert threading.get_ident() not in threads


async def test_the_time_of_a_request_begins_when_it_comes(engine: FakeEngine) -> None:
    loop = asyncio.get_running_loop()
    came_at = 0.0

    async def body() -> AsyncIterator[bytes]:
        nonlocal came_at
        yield b'{"prompt": '
        came_at = loop.time()
        await asyncio.sleep(0.01)
        yield b'"x"}'

    headers = {"Content-Type": "application/json"}
    async with client_of(create_app(engine)) as client:
        answer = await client.post(COMPLETIONS, content=body(), headers=headers)
    assert answer.status_code == 200
    arrived_at = engine.asked[0]["arrived_at"]
    assert isinstance(arrived_at, float)
    assert arrived_at <= came_at


async def test_a_request_may_take_so_long(engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    async with client_of(create_app(engine, ServerOptions(request_timeout=0.05))) as client:
        whole = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert whole.status_code == 504
        assert whole.json()["error"]["code"] == "request_timeout"
        stream = await client.post(COMPLETIONS, json={"prompt": "x", "stream": True})
        assert (stream.status_code, "request_timeout" in stream.text) == (200, True)
        assert stream.text.endswith("data: [DONE]\n\n")
    assert sorted(engine.aborted) == sorted(engine.started)
    assert len(engine.started) == 2


async def in_parts(num_bytes: int, pause_s: float = 0.0) -> AsyncIterator[bytes]:
    """A body without an announced length."""
    for _ in range(num_bytes // 1000):
        yield b" " * 1000
        await asyncio.sleep(pause_s)


async def test_a_body_may_be_so_large(engine: FakeEngine) -> None:
    headers = {"Content-Type": "application/json"}
    async with client_of(create_app(engine, ServerOptions(max_body_bytes=5000))) as client:
        fits = await client.post(COMPLETIONS, json={"prompt": "x", "user": "y" * 4000})
        assert fits.status_code == 200
        for content in (b" " * 5001, in_parts(6000)):
            refused = await client.post(COMPLETIONS, content=content, headers=headers)
            assert refused.status_code == 413
            error = refused.json()["error"]
            assert error["message"] == "the body must have at most 5,000 bytes"
            assert error["code"] == "request_too_large"


@pytest.mark.parametrize("url", [COMPLETIONS, "/health?a=b"])
async def test_a_head_may_be_so_large(url: str, engine: FakeEngine) -> None:
    written = (
        f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nX-Long: {'y' * 500}\r\n\r\n"
    ).encode()
    headers = {"Host": "localhost", "Accept": "*/*", "X-Long": "y" * 500}
    bare = httpx.Request("GET", f"http://localhost{url}", headers=headers)
    for max_bytes, is_refused in ((len(written), False), (len(written) - 1, True)):
        app = AccessLog(HeaderLimit(create_app(engine), max_bytes), Traffic(), RecentLookups())
        async with client_of(app) as client:  # type: ignore[arg-type]
            answer = await client.send(bare)
        assert (answer.status_code == 431) == is_refused
        assert answer.headers["x-request-id"]
        if is_refused:
            error = answer.json()["error"]
            limit = f"a request's line and headers must have at most {max_bytes} bytes"
            assert (error["message"], error["code"]) == (limit, "request_headers_too_large")
            assert error["type"] == "invalid_request_error"
            assert answer.headers["connection"] == "close"


async def test_a_client_that_goes_in_the_middle_of_a_body_is_noted_as_gone(
    engine: FakeEngine,
) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"prompt": ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    statuses = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        statuses.append(message.get("status"))

    app = create_app(engine)
    scope = {
        "type": "http",
        "method": "POST",
        "path": COMPLETIONS,
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await app(scope, receive, send)
    assert statuses[0] == 499
    assert engine.asked == []


async def test_a_body_may_take_so_long(engine: FakeEngine) -> None:
    async with client_of(create_app(engine, ServerOptions(client_timeout=0.05))) as client:

        async def stuck() -> AsyncIterator[bytes]:
            yield b"{"
            while True:  # each part in time, and no end
                await asyncio.sleep(0.01)
                yield b" "

        headers = {"Content-Type": "application/json"}
        async with asyncio.timeout(10):
            refused = await client.post(COMPLETIONS, content=stuck(), headers=headers)
    assert refused.status_code == 408


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_queued_reqs", -1),
        ("max_num_reqs_per_key", 0),
        ("max_body_bytes", 0),
        ("max_header_bytes", 1.5),
        ("request_timeout", -1.0),
        ("client_timeout", float("nan")),
        ("shutdown_timeout", float("inf")),
    ],
)
def test_limits_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        ServerOptions(**{name: value})  # type: ignore[arg-type]
    assert refused.value.field == name


async def test_routes_for_developers_are_there_if_wanted(engine: FakeEngine) -> None:
    async with client_of(create_app(engine)) as client:
        assert (await client.post("/reset_prefix_cache")).status_code == 404
        assert (await client.get("/server_info")).status_code == 404
    async with client_of(create_app(engine, ServerOptions(dev_mode=True))) as client:
        assert (await client.post("/reset_prefix_cache")).status_code == 200
        info = (await client.get("/server_info")).json()
    assert engine.num_resets == 1
    assert info["server"]["dev_mode"] is True
    assert info["engine"]["num_blocks"] == 40
    assert info["engine"].keys() == set(FIGURES)
    assert (info["max_num_seqs"], info["engine_options"]) == (2, None)  # nobody has told them
    assert info["cache"]["cache_dtype"] == "int8_per_token_head"
    assert info["cache"]["layers_left_out"] == [0, 29]
    assert info["cache"]["summary"].endswith("1,000 tokens where bfloat16 would hold 560")
    assert info["weights"] == {
        "summary": "0.25 GiB, Q4_1 and Q8_0 as stored, F32 as bfloat16",
        "total_bytes": 2**28,
        "read_bytes": 2**28,
        "dtype": "bfloat16",
        "kept": ["Q4_1", "Q8_0"],
        "converted": ["F32"],
        "quantised": [],
        "scheme": None,
        "multiplied": [],
        "chosen_bytes": 0,
        "chosen_share": 1.0,
    }


async def test_text_and_chats_are_tokenised(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/tokenize", json={"prompt": "ab"})).json()
    assert answer == {"count": 3, "max_model_len": 64, "tokens": [1, 97, 98], "token_strs": None}
    bare = {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True}
    answer = (await client.post("/tokenize", json=bare)).json()
    assert (answer["tokens"], answer["token_strs"]) == ([97, 98], ["a", "b"])
    chat = {"messages": [{"role": "user", "content": "x"}]}
    tokens = (await client.post("/tokenize", json=chat)).json()["tokens"]
    assert (await client.post("/detokenize", json={"tokens": tokens})).json() == {
        "prompt": "<user>x"
    }


@pytest.mark.parametrize(("body", "given"), [({}, None), ({"prompt": "x", "messages": []}, "x")])
async def test_what_is_both_prompt_and_chat_or_neither_is_told_in_words(
    body: dict[str, object], given: object, client: httpx.AsyncClient
) -> None:
    message = (await client.post("/tokenize", json=body)).json()["error"]["message"]
    assert message == f"prompt={given!r}: takes a prompt or messages, one of the two"


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x", "audio": {"id": "a"}}]},
            "audio",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
async def test_what_cannot_be_tokenised_is_refused(
    route: str, body: dict[str, object], param: str, client: httpx.AsyncClient
) -> None:
    refused = await client.post(route, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
