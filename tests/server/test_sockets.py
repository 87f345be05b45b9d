"""Clients that do not speak HTTP as they should: what comes over the wire, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from pagoda.errors import InvalidOptionError
from pagoda.server.connection_limit import most_connections
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from server.fake_engine import FakeEngine
from server.live import live_server

TIMEOUT_S = 0.3
BODY = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n" % len(BODY)
)

LARGE_BYTES = 20_000_000
"""Of an answer: more than what the system keeps for a client that does not read."""
LARGE = b'{"tokens": [1]}'
LARGE_HEAD = (
    b"POST /detokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n" % len(LARGE)
)
"""For an answer of a `ChattyEngine`."""


class ChattyEngine(FakeEngine):
    """Says a great deal in one word."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer.decode = self._decode  # type: ignore[method-assign]

    async def _decode(
        self, token_ids: list[int], field: str = "tokens", *, tenant: str = ""
    ) -> str:
        return "x" * LARGE_BYTES


@pytest.fixture(scope="module")
def engine_at() -> Iterator[tuple[FakeEngine, str]]:
    """An engine, and the address of a server of it."""
    engine = FakeEngine()
    options = ServerOptions(client_timeout=TIMEOUT_S, max_body_bytes=100_000)
    with live_server(engine, options) as url:
        yield engine, url


@pytest.fixture
def engine(engine_at: tuple[FakeEngine, str]) -> FakeEngine:
    """As new."""
    engine, _ = engine_at
    engine.renew()
    return engine


@pytest.fixture
def url(engine: FakeEngine, engine_at: tuple[FakeEngine, str]) -> Iterator[str]:
    """Of a server that all tests share, and which is well after each."""
    _, url = engine_at
    yield url
    assert httpx.get(f"{url}/health").status_code == 200


def connected(url: str) -> socket.socket:
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port or 80), timeout=20)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_a_header_of_megabytes(url: str) -> None:
    with connected(url) as connection:
        started = time.monotonic()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(b"GET /health HTTP/1.1\r\nX: " + b"y" * 10_000_000 + b"\r\n\r\n")
        received = answer(connection)
        assert time.monotonic() - started < 10
    assert received == b"" or received.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("num_bytes", [60_000, 70_000])
def test_headers_that_come_at_once_are_bounded(num_bytes: int, url: str) -> None:
    with connected(url) as connection:
        ended = b"Connection: close\r\nX: " + b"y" * num_bytes + b"\r\n\r\n"
        connection.sendall(HEAD + ended + BODY)
        status = answer(connection)[9:12]
    # 400 is the parser's own, where it has to wait for the rest.
    assert status in ([b"200"] if num_bytes < 65536 else [b"431", b"400"])


def test_requests_sent_at_once_are_answered_in_order(url: str) -> None:
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /no HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connected(url) as connection:
        connection.sendall(HEAD + b"\r\n" + BODY + health + last)
        received = answer(connection)
    assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"404"]


@pytest.mark.parametrize("wanted", [b"h2c", b"websocket"])
def test_who_wants_another_protocol_is_answered_in_this_one(wanted: bytes, url: str) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: " + wanted + b"\r\n\r\n"
    with connected(url) as connection:
        connection.sendall(HEAD + upgrade + BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", HEAD], ids=["nothing", "a line", "head"])
def test_who_says_nothing_more_is_shown_the_door(sent: bytes, url: str) -> None:
    with connected(url) as connection:
        connection.sendall(sent)
        assert answer(connection) == b""


def test_who_owes_the_body_is_told_so(url: str) -> None:
    with connected(url) as connection:
        connection.sendall(HEAD + b"\r\n" + BODY[:5])
        received = answer(connection)
    assert received.startswith(b"HTTP/1.1 408")
    assert b"the body did not come within" in received


def test_a_request_that_dribbles_in_time_is_answered(url: str) -> None:
    with connected(url) as connection:
        for part in (HEAD[:30], HEAD[30:] + b"\r\n" + BODY[:4], BODY[4:]):
            connection.sendall(part)
            time.sleep(TIMEOUT_S / 4)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_connection_serves_several_requests_and_may_rest_between_them(url: str) -> None:
    with connected(url) as connection:
        for rest_s in (0.0, TIMEOUT_S * 1.5, TIMEOUT_S * 1.5):
            time.sleep(rest_s)
            connection.sendall(HEAD + b"\r\n" + BODY)
            received = b""
            while not received.endswith(b"}}}"):
                received += connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"GET /nothing HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"\x00" * 5000,
    ],
    ids=["TLS", "words", "another version", "zeros"],
)
def test_what_is_not_http(sent: bytes, url: str) -> None:
    with connected(url) as connection:
        connection.sendall(sent)
        received = answer(connection)
    assert received == b"" or received.startswith(b"HTTP/1.1 4")
    assert b"Traceback" not in received


def test_a_body_that_never_ends_is_not_read_after_a_refusal() -> None:
    options = ServerOptions(client_timeout=TIMEOUT_S)
    endless = HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    with (
        live_server(FakeEngine(), options, KeyRing({"the-only-key": "all"})) as url,
        connected(url) as connection,
    ):
        connection.sendall(endless + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        chunk = b"10000\r\n" + b"{" * 0x10000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            while True:  # until the server leaves
                connection.sendall(chunk)


def test_there_are_so_many_connections_and_who_rests_gives_way() -> None:
    engine = FakeEngine()
    engine.hold = asyncio.Event()
    ask = HEAD + b"\r\n" + BODY
    with live_server(engine, ServerOptions(max_num_connections=2)) as url, ExitStack() as stack:
        resting, busy, third = (stack.enter_context(connected(url)) for _ in range(3))
        assert answer(third) == b""  # both others may be about to ask
        resting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert resting.recv(65536).startswith(b"HTTP/1.1 200")
        busy.sendall(ask)
        newcomer = stack.enter_context(connected(url))
        assert answer(resting) == b""
        newcomer.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert newcomer.recv(65536).startswith(b"HTTP/1.1 200")
        newcomer.sendall(ask)
        deadline = time.monotonic() + 10
        while len(engine.started) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert answer(stack.enter_context(connected(url))) == b""


def test_connections_are_fewer_than_open_files() -> None:
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < most_connections(None) < num_files
    assert most_connections(7) == 7
    with pytest.raises(InvalidOptionError, match=r"max_num_connections=.*ulimit -n"):
        most_connections(num_files)


def test_a_body_larger_than_allowed_is_not_waited_for(url: str) -> None:
    with connected(url) as connection:
        head = HEAD.replace(b"%d" % len(BODY), b"100000001")
        connection.sendall(head + b"\r\n" + b"{")
        assert answer(connection).startswith(b"HTTP/1.1 413")


def test_who_does_not_read_is_left() -> None:
    with (
        live_server(ChattyEngine(), ServerOptions(client_timeout=TIMEOUT_S)) as url,
        connected(url) as connection,
    ):
        connection.sendall(LARGE_HEAD + b"\r\n" + LARGE)
        connection.recv(1000)  # it has begun
        time.sleep(TIMEOUT_S * 4)
        assert len(answer(connection)) < LARGE_BYTES


def test_who_does_not_read_and_asks_again_is_left_too() -> None:
    engine = ChattyEngine()
    with (
        live_server(engine, ServerOptions(client_timeout=TIMEOUT_S)) as url,
        connected(url) as connection,
    ):
        connection.sendall(LARGE_HEAD + b"\r\n" + LARGE + HEAD + b"\r\n" + BODY)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(TIMEOUT_S)
            if httpx.get(f"{url}/load").json() == {"server_load": 0}:
                break
        assert httpx.get(f"{url}/load").json() == {"server_load": 0}
        assert len(answer(connection)) < LARGE_BYTES


def test_a_place_is_free_when_its_answer_is_read() -> None:
    """Who reads next to nothing holds a place for a while, and then not even the memory."""
    # Long enough to be asked for on a machine that has other things to do.
    options = ServerOptions(client_timeout=5 * TIMEOUT_S, max_num_queued_reqs=0)
    with live_server(ChattyEngine(), options) as url, connected(url) as connection:
        connection.sendall(LARGE_HEAD + b"\r\n" + LARGE)
        connection.recv(1000)
        assert httpx.get(f"{url}/load").json() == {"server_load": 1}
        deadline = time.monotonic() + 20
        while httpx.get(f"{url}/load").json() != {"server_load": 0}:
            assert time.monotonic() < deadline
            connection.recv(1)
            time.sleep(TIMEOUT_S / 4)


def test_who_sends_no_body_holds_no_place() -> None:
    options = ServerOptions(max_num_queued_reqs=0)  # two places
    with live_server(FakeEngine(), options) as url, contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connected(url)).sendall(HEAD + b"\r\n")
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "x"}).status_code == 200


def test_who_reads_slowly_gets_it_all() -> None:
    with (
        live_server(ChattyEngine(), ServerOptions(client_timeout=TIMEOUT_S)) as url,
        connected(url) as connection,
    ):
        connection.sendall(LARGE_HEAD + b"Connection: close\r\n\r\n" + LARGE)
        received = 0
        while part := connection.recv(2_000_000):
            received += len(part)
            time.sleep(TIMEOUT_S / 20)
    assert received > LARGE_BYTES


def test_who_closes_his_side_is_taken_to_have_gone(url: str, engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    with connected(url) as connection:
        connection.sendall(HEAD + b"Connection: close\r\n\r\n" + BODY)
        connection.shutdown(socket.SHUT_WR)
        assert answer(connection) == b""
    deadline = time.monotonic() + 10
    while not engine.aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(engine.aborted) == len(engine.started)
