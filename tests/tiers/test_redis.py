"""What is Redis's own: its addresses, its keys, its connections."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.tiers.redis import PREFIX, RedisTier
from pagoda.tiers.redis_address import RedisAddress
from pagoda.tiers.tier import TierError, TierFault
from tiers.faults import Fault, Line
from tiers.stores import ADMIN, PASSWORD, RedisServer, S3Server

PATIENCE_S = 10.0
FRAME_BYTES = 1000
NAMES = [f"{7:016x}-{number:064x}" for number in range(200)]
FRAMES = [number.to_bytes(2, "big") * (FRAME_BYTES // 2) for number in range(200)]


@pytest.fixture
def tier(redis_server: RedisServer) -> Iterator[RedisTier]:
    tier = RedisTier(redis_server.url, FRAME_BYTES)
    yield tier
    tier.close()


def as_admin(server: RedisServer, password: str = PASSWORD, port: int | None = None) -> str:
    scheme = "redis" if port is None else "rediss"
    return f"{scheme}://{ADMIN}:{password}@127.0.0.1:{port or server.port}"


def test_addresses() -> None:
    def parsed(url: str) -> tuple[object, ...]:
        address = RedisAddress.parse(url)
        assert "word" not in f"{address} {address!r}"
        return address.host, address.port, address.database, address.user, address.password

    assert parsed("redis://store") == ("store", 6379, 0, None, None)
    assert parsed("redis://store:1/3") == ("store", 1, 3, None, None)
    assert parsed("redis://:word@store/") == ("store", 6379, 0, None, "word")
    assert parsed("redis://me:wo%40rd%2F@[::1]:7/2") == ("::1", 7, 2, "me", "wo@rd/")
    assert RedisAddress.parse("redis://store").tls is None
    assert RedisAddress.parse("rediss://store").tls is not None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "store:6379",
        "http://store",
        "redis://",
        "redis://me:sesame@",
        "redis://store:port",
        "redis://me:sesame@store:99999",
        "redis://me:sesame@store/name",
        "redis://me:sesame@store/0?db=1",
        "redis://me:sesame@store/0#1",
        "redis://me:sesame@[::1",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"kv_tier=.*redis://") as caught:
        RedisAddress.parse(url)
    assert "sesame" not in str(caught.value)


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no certificates"):
        RedisAddress.parse("rediss://store", ca_file=str(tmp_path / "none.pem"))


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(InvalidOptionError, match=r"pagoda-llm\[redis\]") as caught:
        RedisTier("redis://me:sesame@store", FRAME_BYTES)
    assert "word" not in str(caught.value)


@pytest.mark.redis
def test_many_frames_by_many_threads(tier: RedisTier) -> None:
    def live(first: int) -> None:
        names, frames = NAMES[first : first + 50], FRAMES[first : first + 50]
        for _ in range(5):
            tier.store(list(zip(names, frames, strict=True)), PATIENCE_S)
            assert list(tier.load(names, PATIENCE_S)) == frames
            assert tier.holds(NAMES[first : first + 50], PATIENCE_S) == [True] * 50

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(live, range(0, 200, 50)))
    assert tier.usage().num_frames == len(NAMES)
    assert tier.usage().num_bytes > FRAME_BYTES * len(NAMES)


@pytest.mark.redis
def test_others_keys_are_neither_told_nor_touched(
    tier: RedisTier, redis_server: RedisServer
) -> None:
    redis_server.ask("SET", NAMES[0], "another program's")
    redis_server.ask("SET", f"{PREFIX}setting", "another program's")
    redis_server.ask("LPUSH", PREFIX + NAMES[1], "a list where a frame should be")
    tier.store([(NAMES[2], FRAMES[2])], PATIENCE_S)
    assert tier.holds([NAMES[0], NAMES[2]], PATIENCE_S) == [False, True]
    (entry,) = tier.entries(PATIENCE_S)
    assert (entry.name, entry.num_bytes) == (NAMES[2], FRAME_BYTES)
    with pytest.raises(TierError) as caught:
        list(tier.load([NAMES[1]], PATIENCE_S))
    assert caught.value.reason is TierFault.ERROR
    tier.remove(NAMES, PATIENCE_S)
    assert redis_server.ask("GET", NAMES[0]) == b"another program's"
    assert redis_server.ask("DBSIZE") == 2


@pytest.mark.redis
def test_entries_tell_the_last_use_where_the_server_keeps_it(
    tier: RedisTier, redis_server: RedisServer
) -> None:
    tier.store([(NAMES[0], FRAMES[0])], PATIENCE_S)
    (entry,) = tier.entries(PATIENCE_S)
    assert entry.used_at is not None
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    (entry,) = tier.entries(PATIENCE_S)
    assert (entry.num_bytes, entry.used_at) == (FRAME_BYTES, None)
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.redis
def test_frames_that_nobody_loads_are_forgotten_in_time(redis_server: RedisServer) -> None:
    tier = RedisTier(redis_server.url, FRAME_BYTES, ttl_s=1000)
    tier.store([(NAMES[0], FRAMES[0]), (NAMES[1], FRAMES[1])], PATIENCE_S)
    for name in NAMES[:2]:
        assert redis_server.ask("EXPIRE", PREFIX + name, 10) == 1
    assert list(tier.load([NAMES[0], NAMES[2]], PATIENCE_S)) == [FRAMES[0], None]
    left_s = [redis_server.ask("TTL", PREFIX + name) for name in NAMES[:3]]
    assert left_s[0] > 900
    assert 0 < left_s[1] <= 10
    assert left_s[2] == -2, "there is no such key"
    tier.close()


@pytest.mark.redis
def test_what_is_too_long_is_not_read_to_its_end(
    tier: RedisTier, redis_server: RedisServer
) -> None:
    redis_server.ask("SET", PREFIX + NAMES[0], bytes(100 * FRAME_BYTES))
    assert list(tier.load(NAMES[:1], PATIENCE_S)) == [bytes(FRAME_BYTES + 1)]


@pytest.mark.redis
def test_a_load_that_is_given_up_leaves_no_answers_to_the_next(tier: RedisTier) -> None:
    tier.store(list(zip(NAMES, FRAMES, strict=True)), PATIENCE_S)
    for start in range(5):
        loading = tier.load(NAMES[start:], PATIENCE_S)
        assert next(loading) == FRAMES[start]
        loading.close()  # type: ignore[attr-defined]
        assert list(tier.load(NAMES[:3], PATIENCE_S)) == FRAMES[:3]


@pytest.mark.redis
def test_frames_under_way_fill_a_long_line(redis_server: RedisServer, redis_line: Line) -> None:
    """200 frames with a round trip of 20 ms take a few of those, not 200, on several links."""
    tier = RedisTier(f"redis://127.0.0.1:{redis_line.port}", FRAME_BYTES)
    redis_line.set(Fault(latency_s=0.02))
    tier.store(list(zip(NAMES, FRAMES, strict=True)), 1.0)
    assert list(tier.load(NAMES, 1.0)) == FRAMES
    tier.close()


@pytest.mark.redis
def test_users_and_databases(
    redis_server: RedisServer, tier: RedisTier, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tier.store([(NAMES[0], FRAMES[0])], PATIENCE_S)
    known = RedisTier(as_admin(redis_server), FRAME_BYTES)
    assert known.holds(NAMES[:2], PATIENCE_S) == [True, False]
    elsewhere = RedisTier(f"{as_admin(redis_server)}/1", FRAME_BYTES)
    assert elsewhere.holds(NAMES[:2], PATIENCE_S) == [False, False]
    unknown = RedisTier(as_admin(redis_server, "wr0ng-p4ss"), FRAME_BYTES)
    with pytest.raises(TierError, match="does not take this user and password") as caught:
        unknown.holds(NAMES, PATIENCE_S)
    assert caught.value.reason is TierFault.DENIED
    told = f"{caught.value!r} {caught.value.__cause__} {caplog.text} {vars(unknown)}"
    assert "wr0ng-p4ss" not in told
    for each in (known, elsewhere, unknown):
        each.close()


@pytest.mark.redis
def test_what_is_said_can_be_encrypted(redis_server: RedisServer) -> None:
    url = as_admin(redis_server, port=redis_server.tls_port)
    trusted = RedisTier(url, FRAME_BYTES, ca_file=str(redis_server.certificate))
    for _ in range(3):
        trusted.store(list(zip(NAMES, FRAMES, strict=True)), PATIENCE_S)
        assert list(trusted.load(NAMES, PATIENCE_S)) == FRAMES
    assert len(trusted._idle) == 1, "a connection is used again"
    trusted.close()
    strange = RedisTier(url, FRAME_BYTES)
    with pytest.raises(TierError, match="certificate") as caught:
        strange.holds(NAMES, PATIENCE_S)
    assert caught.value.reason is TierFault.UNREACHABLE


def test_what_answers_is_no_redis(s3_server: S3Server) -> None:
    tier = RedisTier(f"redis://127.0.0.1:{s3_server.port}", FRAME_BYTES)
    with pytest.raises(TierError) as caught:
        tier.holds(NAMES, PATIENCE_S)
    assert caught.value.reason is TierFault.FOREIGN


def test_a_host_that_is_not_known() -> None:
    tier = RedisTier("redis://nowhere.invalid", FRAME_BYTES)
    with pytest.raises(TierError) as caught:
        tier.holds(NAMES, PATIENCE_S)
    assert caught.value.reason in {TierFault.UNREACHABLE, TierFault.TIMEOUT}


def test_a_name_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    import threading

    hanging = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **keywords: hanging.wait())
    tier = RedisTier("redis://store.invalid", FRAME_BYTES)
    with pytest.raises(TierError) as caught:
        tier.holds(NAMES, 0.05)
    hanging.set()
    assert caught.value.reason is TierFault.TIMEOUT


@pytest.mark.redis
def test_a_tier_that_is_closed(redis_server: RedisServer) -> None:
    tier = RedisTier(redis_server.url, FRAME_BYTES)
    tier.store([(NAMES[0], FRAMES[0])], PATIENCE_S)
    tier.close()
    tier.close()
    with pytest.raises(TierError):
        tier.holds(NAMES, PATIENCE_S)


@pytest.mark.redis
@pytest.mark.parametrize("database", [0, 1])
def test_a_user_needs_what_the_documents_say(redis_server: RedisServer, database: int) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tiers.md").read_text("utf-8")
    [of_all] = re.findall(r"A user needs `([^`]*)` on `~pagoda:\*`", text)
    [of_others] = re.findall(r"database\s+is not 0 it needs `([^`]*)` too", text)
    commands = [*of_all.split(), *(of_others.split() if database else [])]
    redis_server.ask("ACL", "SETUSER", "documented", "reset", "on", ">pw", "~pagoda:*", *commands)
    url = f"redis://documented:pw@127.0.0.1:{redis_server.port}/{database}"
    tier = RedisTier(url, FRAME_BYTES, ttl_s=60.0)
    tier.store([(NAMES[0], FRAMES[0])], PATIENCE_S)
    assert [bytes(each or b"") for each in tier.load(NAMES[:1], PATIENCE_S)] == FRAMES[:1]
    assert [entry.name for entry in tier.entries(PATIENCE_S)] == NAMES[:1]
    tier.remove(NAMES[:1], PATIENCE_S)
    assert tier.holds(NAMES[:1], PATIENCE_S) == [False]
    tier.close()
    redis_server.ask("ACL", "DELUSER", "documented")
