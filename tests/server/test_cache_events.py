"""`/cache/events` over a live server: who is told what, how many may look, and when it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

import pagoda.server.cache_events
import pagoda.server.cache_lookout
from checkpoints import CASES, write_checkpoint
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.server.admission import Admission
from pagoda.server.cache_lookout import MOST_VIEWERS, CacheLookout
from pagoda.server.errors import RejectedError, ShuttingDownError
from pagoda.server.keys import ANYBODY, Holder, KeyRing
from pagoda.server.options import ServerOptions
from server.fake_engine import FakeEngine
from server.live import live_server
from server.news_of_a_cache import cells_of

NUM_BLOCKS = 40
KEYS = {"key-of-ann": "ann", "key-of-bob": "bob", "key-of-the-house": "house"}
EVENTS = "/cache/events"
TEXT = "a pagoda on a hill, and the bells of evening "


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])


@pytest.fixture
def engine(checkpoint: Path) -> AsyncEngine:
    options = EngineOptions(
        str(checkpoint),
        max_model_len=128,
        num_gpu_blocks_override=NUM_BLOCKS,
        block_size=4,
        threads=1,
    )
    return AsyncEngine.load(options)


@pytest.fixture
def url(engine: AsyncEngine) -> Iterator[str]:
    with live_server(engine, keys=KeyRing(KEYS, operators=["key-of-the-house"])) as url:
        yield url


def client_with(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=30)


@contextmanager
def looking(url: str, key: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    """The news that a viewer is told, its opening left out."""
    with client_with(url, key) as client, client.stream("GET", EVENTS) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        told = (json.loads(line.removeprefix("data: ")) for line in lines if line[:1] == "d")
        assert next(told) == {"has_curve": key not in ("key-of-ann", "key-of-bob")}
        yield told


def complete(url: str, key: str, prompt: str = TEXT, **fields: Any) -> None:
    with client_with(url, key) as client:
        answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, **fields})
    assert answer.status_code == 200, answer.text


def until(told: Iterator[dict[str, Any]], what: str) -> dict[str, Any]:
    """The first news in which a number is not 0."""
    return next(news for news in islice(told, 2000) if news[what])


def test_an_operator_sees_all_and_a_tenant_its_own(url: str) -> None:
    complete(url, "key-of-ann")
    complete(url, "key-of-ann")
    complete(url, "key-of-bob", TEXT * 2)
    with looking(url, "key-of-the-house") as told:
        news = until(told, "cached")
    assert {each["name"] for each in news["tenants"]} == {"ann", "bob"}
    assert news["found"] > 0
    assert news["hinted"] == 0
    shown = cells_of(news["map"])
    assert len(shown) == news["num_blocks"] == NUM_BLOCKS
    assert {cell.owner for cell in shown} == {0, 1, 2}
    for key, name, owns in (("key-of-ann", "ann", 1), ("key-of-bob", "bob", 2)):
        with looking(url, key) as told:
            own = until(told, "cached")
        assert [each["name"] for each in own["tenants"]] == [name]
        assert own["hinted"] is None, "others' doings would show in it"
        assert own["cached"] == sum(cell.owner == owns for cell in shown)
        states = [cell.state for cell in cells_of(own["map"])]
        assert states == [1] * own["cached"] + [0] * (NUM_BLOCKS - own["cached"])
        assert ({"ann", "bob"} - {name}).pop() not in json.dumps(own)
        assert own["found"] == (news["found"] if name == "ann" else 0)


def test_a_sequence_is_seen_while_it_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagoda.server.cache_lookout, "PERIOD_S", 0.005)
    monkeypatch.setattr(pagoda.server.cache_lookout, "REST", 1)
    body = {"prompt": TEXT, "max_tokens": 80, "ignore_eos": True, "n": 2}
    asking = threading.Thread(target=complete, args=(url, "key-of-ann"), kwargs=body)
    with looking(url, "key-of-the-house") as told:
        asking.start()
        [sequence, *_] = until(told, "num_running")["sequences"]
        asking.join()
        news = next(news for news in islice(told, 2000) if not news["num_running"])
    assert sequence["owner"] == 1
    assert sequence["computed"] <= sequence["tokens"] <= 128
    assert sum(sequence["cells"][1::2]) == sequence["num_blocks"] > 0
    assert news["sequences"] == []
    assert news["cached"] > 0


def test_a_place_is_given_back_when_a_viewer_goes(url: str) -> None:
    with ExitStack() as others:
        for _ in range(MOST_VIEWERS // 2):  # as many as one of several tenants may have
            others.enter_context(looking(url, "key-of-the-house"))
        with client_with(url, "key-of-the-house") as client:
            refused = client.get(EVENTS)
        assert refused.status_code == 429
        assert "viewers of the cache" in refused.json()["error"]["message"]
        with looking(url, "key-of-bob") as told:  # others still find a place
            next(told)
    for _ in range(100):
        with client_with(url, "key-of-the-house") as client, client.stream("GET", EVENTS) as answer:
            if answer.status_code == 200:
                return
    raise AssertionError("the places were not given back")


def test_one_viewer_more_than_there_are_places(engine: AsyncEngine) -> None:
    with live_server(engine) as url, ExitStack() as others:
        for _ in range(MOST_VIEWERS):
            others.enter_context(looking(url))
        refused = httpx.get(url + EVENTS)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    limit = "the server takes 8 viewers of the cache, of all clients together"
    assert refused.json()["error"]["message"] == limit


def test_a_look_ends_after_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagoda.server.cache_events, "LONGEST_S", 0.5)
    with looking(url, "key-of-the-house") as told:
        assert 1 <= len(list(told)) <= 5


def test_head_takes_no_place_for_long(url: str) -> None:
    with client_with(url, "key-of-ann") as client:
        for _ in range(MOST_VIEWERS + 1):
            answer = client.head(EVENTS)
            assert (answer.status_code, answer.content) == (200, b"")


def test_a_key_is_needed(url: str) -> None:
    assert httpx.get(url + EVENTS).status_code == 401


def test_who_does_not_read_is_left(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed where `--client-timeout` says, and its place is free."""
    monkeypatch.setattr(pagoda.server.cache_lookout, "PERIOD_S", 0.0)
    monkeypatch.setattr(pagoda.server.cache_lookout, "REST", 0)
    padding = b"x" * 2**18
    monkeypatch.setattr(pagoda.server.cache_events, "event", lambda data: padding)
    with live_server(engine, ServerOptions(client_timeout=0.3)) as url:
        app_saw_it_go = threading.Event()
        leave = pagoda.server.cache_lookout.CacheLookout.place

        @contextmanager
        def place(self: CacheLookout, holder: Holder) -> Iterator[None]:
            with leave(self, holder):
                yield
            app_saw_it_go.set()

        monkeypatch.setattr(pagoda.server.cache_lookout.CacheLookout, "place", place)
        with httpx.stream("GET", url + EVENTS, timeout=30):
            assert app_saw_it_go.wait(20)


# ---- without a server ------------------------------------------------------------------------


async def look_once(lookout: CacheLookout, holder: Holder = ANYBODY) -> bytes:
    with lookout.place(holder):
        return await anext(lookout.news(holder))


@pytest.mark.anyio
async def test_nothing_is_asked_of_the_engine_while_nobody_looks() -> None:
    engine, asked = FakeEngine(), 0

    async def take() -> Any:
        nonlocal asked
        asked += 1
        return await engine.cache_snapshot()

    lookout = CacheLookout(take, Admission(4), is_shared=False)
    await asyncio.sleep(0.01)
    assert (asked, lookout.is_looking) == (0, False)
    assert json.loads(await look_once(lookout))["num_blocks"] == 40
    assert (asked, lookout.is_looking) == (1, False)
    await asyncio.sleep(0.6)
    assert asked == 1


@pytest.mark.anyio
async def test_who_looks_when_the_server_ends_is_told() -> None:
    admission = Admission(4)
    lookout = CacheLookout(FakeEngine().cache_snapshot, admission, is_shared=False)
    with lookout.place(ANYBODY):
        news = lookout.news(ANYBODY)
        assert await anext(news)
        admission.close()
        with pytest.raises(ShuttingDownError):
            await anext(news)
    with pytest.raises(RejectedError), lookout.place(ANYBODY):
        pass


@pytest.mark.anyio
async def test_who_looks_when_the_engine_fails_is_told_and_the_next_one_tries_again() -> None:
    engine, failures = FakeEngine(), [RuntimeError("no")]

    async def take() -> Any:
        if failures:
            raise failures.pop()
        return await engine.cache_snapshot()

    lookout = CacheLookout(take, Admission(4), is_shared=False)
    with pytest.raises(RuntimeError, match="no"):
        await look_once(lookout)
    assert await look_once(lookout)


@pytest.mark.anyio
async def test_a_tenant_is_told_in_whole_seconds_however_often_it_comes() -> None:
    lookout = CacheLookout(FakeEngine().cache_snapshot, Admission(4), is_shared=True)
    ann, loop = Holder("ann", is_operator=False), asyncio.get_running_loop()
    times = []
    for _ in range(2):
        await look_once(lookout, ann)
        times.append(loop.time())
    assert int(times[1]) > int(times[0])
    assert all(time % 1 < 0.9 for time in times)
