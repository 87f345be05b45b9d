"""Sessions over HTTP: they survive a restart, travel to another server, and are their tenant's."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import httpx
import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.cli.main import run
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.engine.sessions.errors import SessionFailedError
from pagoda.server.admission import Admission
from pagoda.server.errors import RejectedError, ShuttingDownError
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from pagoda.server.session_work import SessionWork
from pagoda.server.spooled_body import spooled_body
from pagoda.tiers.key_file import write_new_secret
from server.live import live_server

BLOCK_SIZE = 4
NUM_BLOCKS = 96
TEXT = "a pagoda on a hill, and the bells of evening "
NUM_ANSWERED = 20
MAX_BODY_BYTES = 4096
"""Less than a session has."""
KEYS = {"key-of-ann": "ann", "key-of-bob": "bob"}
ANN, BOB = ({"x-api-key": key} for key in KEYS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "key"
    write_new_secret("file", file)
    return file


@contextmanager
def serving(checkpoint: Path, *, keys: KeyRing | None = None, **options: Any) -> Iterator[str]:
    """A server of the tiny model, and its address."""
    defaults: dict[str, Any] = {
        "max_model_len": 128,
        "num_gpu_blocks_override": NUM_BLOCKS,
        "block_size": BLOCK_SIZE,
    }
    engine = AsyncEngine.load(EngineOptions(str(checkpoint), threads=1, **(defaults | options)))
    server_options = ServerOptions(client_timeout=1.0, max_body_bytes=MAX_BODY_BYTES)
    with live_server(engine, server_options, keys) as url:
        yield url


@pytest.fixture(scope="module")
def shared(checkpoint: Path, key_file: Path) -> Iterator[str]:
    """A server of two tenants, with a key file and without tiers."""
    with serving(checkpoint, keys=KeyRing(KEYS), kv_tier_key_file=str(key_file)) as url:
        yield url


def ask(
    url: str, prompt: str | list[int], session_id: str | None = None, **more: Any
) -> tuple[list[int], int]:
    """The tokens of prompt and answer, and how many of the prompt's were cached."""
    headers = more.pop("headers", {})
    body = {
        "prompt": prompt, "max_tokens": NUM_ANSWERED, "ignore_eos": True, "temperature": 0,
        "return_token_ids": True, "session_id": session_id, **more,
    }  # fmt: skip
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    [choice] = told["choices"]
    tokens = choice["prompt_token_ids"] + choice["token_ids"]
    return tokens, told["usage"]["prompt_tokens_details"]["cached_tokens"]


def full(num_tokens: int) -> int:
    return num_tokens // BLOCK_SIZE * BLOCK_SIZE


def refused(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert all(word in message for word in words), message


def exported(url: str, session_id: str, **options: Any) -> bytes:
    answer = httpx.get(f"{url}/sessions/{session_id}/export", timeout=60, **options)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == int(answer.headers["content-length"])
    return answer.content


def test_a_session_survives_a_restart(checkpoint: Path, tmp_path: Path) -> None:
    tier = f"disk:{tmp_path / 'tier'},size=64MiB,store=reused"
    with serving(checkpoint, kv_tier=tier) as url:
        tokens, _ = ask(url, TEXT, "tea / at five")
        # The last token of an answer is never put through the model.
        num_tokens = len(tokens) - 1
        [known] = httpx.get(f"{url}/sessions").json()["data"]
        assert (known["id"], known["num_tokens"]) == ("tea / at five", num_tokens)
        assert time.time() - 60 < known["used_at"] <= time.time()
        saved = httpx.post(f"{url}/sessions/tea%20%2F%20at%20five/save", timeout=60)
        assert saved.json() == {
            "id": "tea / at five", "object": "session", "num_tokens": num_tokens,
            "num_saved_tokens": full(num_tokens),
        }  # fmt: skip
        expected, num_cached = ask(url, tokens)
        assert num_cached == full(num_tokens)
    with serving(checkpoint, kv_tier=tier) as url:
        assert httpx.get(f"{url}/sessions").json()["data"] == []
        restored = httpx.post(f"{url}/sessions/tea%20%2F%20at%20five/restore", timeout=60)
        assert restored.json() == {
            "id": "tea / at five", "object": "session", "num_tokens": num_tokens,
            "num_cached_tokens": full(num_tokens), "reason": None,
        }  # fmt: skip
        assert ask(url, tokens) == (expected, full(num_tokens))
        # It goes on, is saved once more in the place of the first, and is forgotten everywhere.
        longer, _ = ask(url, expected, "tea / at five")
        again = httpx.post(f"{url}/sessions/tea%20%2F%20at%20five/save", timeout=60).json()
        assert again["num_saved_tokens"] == full(len(longer) - 1)
        forgotten = httpx.delete(f"{url}/sessions/tea%20%2F%20at%20five", timeout=60)
        assert forgotten.json()["deleted"]
        for _ in range(2):
            refused(httpx.post(f"{url}/sessions/tea%20%2F%20at%20five/restore"), 404)
    with serving(checkpoint, kv_tier=tier) as url:
        refused(httpx.post(f"{url}/sessions/tea%20%2F%20at%20five/restore"), 404, "no such session")


def test_a_session_goes_on_in_a_second_server(
    checkpoint: Path, key_file: Path, tmp_path: Path, shared: str, capsys: Any
) -> None:
    file = tmp_path / "tea.session"
    with serving(checkpoint, kv_tier_key_file=str(key_file)) as url:
        tokens, _ = ask(url, TEXT, "tea")
        assert run(["session", "export", "tea", str(file), "--url", url]) == 0
        expected, num_cached = ask(url, tokens)
        assert run(["session", "export", "no tea", str(file), "--url", url]) == 2
    whole = full(len(tokens) - 1)
    assert num_cached == whole
    assert [each.name for each in tmp_path.iterdir()] == ["tea.session"]
    to_bob = ["session", "import", str(file), "--url", shared, "--api-key", "key-of-bob"]
    assert run([*to_bob, "--as", "my tea"]) == 0
    assert ask(shared, tokens, headers=ANN) == (expected, 0)
    assert ask(shared, tokens, headers=BOB) == (expected, whole)
    assert file.stat().st_size > MAX_BODY_BYTES
    zipped = httpx.post(
        f"{shared}/sessions/import",
        params={"id": "zipped"},
        content=gzip.compress(file.read_bytes()),
        headers={**BOB, "Content-Encoding": "gzip"},
    )
    assert (zipped.status_code, zipped.json().get("num_cached_tokens")) == (200, whole)
    assert httpx.delete(f"{shared}/sessions/zipped", headers=BOB).status_code == 200
    assert run(to_bob[:-2]) == 2
    assert run([*to_bob[:2], str(tmp_path / "nothing"), *to_bob[3:]]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(f"{whole} of {len(tokens) - 1} tokens of 'tea' are in {file}, ")
    assert "no such session is known" in told[1]
    assert told[2] == f"{whole} of {len(tokens) - 1} tokens of 'my tea' are in the cache"
    assert "a valid API key is needed; give it as --api-key" in told[3]
    assert "cannot be read: No such file" in told[4]


def test_a_session_of_another_engine_is_refused_with_what_differs(
    checkpoint: Path, key_file: Path, shared: str, tmp_path: Path
) -> None:
    other_key = tmp_path / "key"
    write_new_secret("file", other_key)
    other_model = write_checkpoint(tmp_path / checkpoint.name, CASES["llama-gqa"], seed=7)
    key = {"kv_tier_key_file": str(key_file)}
    cases: list[tuple[Path, dict[str, Any], tuple[str, ...]]] = [
        (other_model, key, ("weights differs",)),
        (checkpoint, {**key, "block_size": 8}, ("block size 8, here 4",)),
        (
            checkpoint,
            {**key, "kv_cache_dtype": "int8_per_token_head"},
            ("codecs int8_per_token_head, here float32",),
        ),
        (checkpoint, {"kv_tier_key_file": str(other_key)}, ("sealed with another key",)),
        (checkpoint, {**key, "max_model_len": 256}, ("tokens, and here max_model_len is 128",)),
    ]
    for model, options, words in cases:
        with serving(model, **options) as url:
            prompt = TEXT * 3 if "max_model_len" in options else TEXT
            ask(url, prompt, "tea")
            content = exported(url, "tea")
        answer = httpx.post(f"{shared}/sessions/import", content=content, headers=ANN, timeout=60)
        refused(answer, 400, "file=", *words)
    assert httpx.get(f"{shared}/sessions", headers=ANN).json()["data"] == []


def test_a_tenant_sees_its_own_alone(shared: str) -> None:
    tokens, _ = ask(shared, TEXT, "private", headers=ANN)
    ask(shared, TEXT, "mine", headers=BOB)
    ask(shared, TEXT + "more", "mine too", headers=BOB)

    def ids(headers: dict[str, str]) -> list[str]:
        told = httpx.get(f"{shared}/sessions", headers=headers).json()["data"]
        return [each["id"] for each in told]

    assert ids(ANN) == ["private"]
    assert ids(BOB)[:2] == ["mine too", "mine"]
    answers = []
    for name in ("private", "nobodys"):
        url = f"{shared}/sessions/{name}"
        for answer in (
            httpx.get(f"{url}/export", headers=BOB),
            httpx.delete(url, headers=BOB),
        ):
            refused(answer, 404, "no such session is known")
            answers.append(answer.text.replace(name, ""))
    assert len(set(answers)) == 1
    assert httpx.get(f"{shared}/sessions").status_code == 401
    assert ids(ANN) == ["private"]
    # What is exported by one and imported by the other is the other's from then on.
    content = exported(shared, "private", headers=ANN)
    answer = httpx.post(f"{shared}/sessions/import?id=given", content=content, headers=BOB)
    assert answer.json()["num_cached_tokens"] == full(len(tokens) - 1)
    assert httpx.delete(f"{shared}/sessions/given", headers=BOB).status_code == 200
    assert "given" not in ids(BOB)
    assert httpx.delete(f"{shared}/sessions/private", headers=ANN).status_code == 200


def test_what_a_server_was_not_started_for_is_refused_by_name(
    checkpoint: Path, shared: str
) -> None:
    ask(shared, TEXT, "tea", headers=ANN)
    for what in ("save", "restore"):
        refused(httpx.post(f"{shared}/sessions/tea/{what}", headers=ANN), 400, "--kv-tier")
    with serving(checkpoint) as url:
        ask(url, TEXT, "tea")
        words = ("kv_tier_key_file", "pagoda tiers new-key")
        refused(httpx.get(f"{url}/sessions/tea/export"), 400, *words)
        refused(httpx.post(f"{url}/sessions/import", content=b"x" * 2**20), 400, *words)


def test_what_is_no_session_is_refused(shared: str) -> None:
    url = f"{shared}/sessions/import"
    refused(httpx.post(url, content=b"", headers=ANN), 400, "is no session")
    refused(httpx.post(url, json={"a": [1] * 9}, headers=ANN), 400, "is no session")
    refused(httpx.post(f"{url}?id=", content=b"", headers=ANN), 400, "1 to 256 characters")
    refused(httpx.post(f"{url}?id=%0A", content=b"", headers=ANN), 400, "printable")
    refused(httpx.post(url, content=b"x" * 2**22, headers=ANN), 413, "has at most ")

    def endless(pause_s: float) -> Iterator[bytes]:
        for _ in range(1000):
            time.sleep(pause_s)
            yield b"x" * 2**13

    # What is no session is told so as soon as its first bytes have come.
    refused(httpx.post(url, content=endless(0.0), headers=ANN), 400, "is no session")
    # Whoever sends less than 256 KiB a second is not waited for.
    began = time.monotonic()
    refused(httpx.post(url, content=endless(0.25), headers=ANN), 408, "too slowly")
    assert time.monotonic() - began < 10


def test_a_file_is_judged_by_its_head_before_the_rest_comes(
    checkpoint: Path, key_file: Path, shared: str
) -> None:
    def going_on(head: bytes) -> Iterator[bytes]:
        """More than any session has."""
        yield head
        for _ in range(10):
            yield b"\0" * 2**19

    ask(shared, TEXT[:12], "short", headers=ANN)
    own = exported(shared, "short", headers=ANN)
    with serving(checkpoint, kv_tier_key_file=str(key_file), block_size=8) as url:
        ask(url, TEXT, "tea")
        other = exported(url, "tea")
    url = f"{shared}/sessions/import"
    answer = httpx.post(url, content=going_on(other), headers=ANN)
    refused(answer, 400, "block size 8, here 4")
    answer = httpx.post(url, content=going_on(own), headers=ANN)
    refused(answer, 413, "this session has at most ")
    bound = int(answer.json()["error"]["message"].split("at most ")[1].split()[0].replace(",", ""))
    assert len(own) <= bound < 1.5 * len(own)


@pytest.mark.anyio
async def test_a_body_may_not_take_for_ever_at_any_pace(anyio_backend: str) -> None:
    class Steady:
        headers: ClassVar[dict[str, str]] = {}

        async def stream(self) -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0.01)
                yield b"x" * 2**16

    async def at_once(do: Callable[[], None]) -> None:
        do()

    asked = list[int]()

    def bytes_of(file: BinaryIO, num_bytes: int) -> int | None:
        asked.append(num_bytes)
        return 2**40 if num_bytes > 2**17 else None

    request: Any = Steady()
    with pytest.raises(RejectedError, match=r"0\.3 seconds at most") as told:
        await spooled_body(request, 2**40, 60.0, at_once, bytes_of, most_s=0.3)
    assert told.value.status_code == 408
    assert asked == [2**16, 2**17, 3 * 2**16]


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.anyio
async def test_a_tenant_has_its_share_of_what_is_done_at_a_time(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = Admission(100, is_shared=True)
    work = SessionWork(admission, is_shared=True)
    with work.entered("ann"), work.entered("ann"):
        with pytest.raises(RejectedError) as told, work.entered("ann"):
            pass
        assert told.value.status_code == 429
        with work.entered("bob"):
            assert await work.do(lambda: admission.num_admitted) == 3
    with pytest.raises(ZeroDivisionError):
        await work.do(lambda: 1 // 0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(SessionFailedError, match="no thread"):
            await SessionWork(admission, is_shared=True).do(lambda: None)
    assert admission.num_admitted == 0
    admission.close()
    with pytest.raises(ShuttingDownError), work.entered("ann"):
        pass


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 6}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 6}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
    ],
)
def test_every_api_takes_a_session(shared: str, path: str, body: dict[str, Any]) -> None:
    url = shared + path
    answer = httpx.post(
        url, json={**body, "session_id": path, "model": None}, headers=ANN, timeout=60
    )
    known = httpx.get(f"{shared}/sessions", headers=ANN).json()["data"]
    if answer.status_code == 200:
        assert known[0]["id"] == path
        assert known[0]["num_tokens"] > 5
    else:
        assert answer.json() == {}
    for wrong in ("", "x" * 257, 7, "a\nb", ["x"]):
        answer = httpx.post(url, json={**body, "session_id": wrong}, headers=ANN)
        assert answer.status_code == 400, answer.text
        assert "session_id" in answer.text
