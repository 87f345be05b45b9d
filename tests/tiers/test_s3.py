"""What is S3's own: addresses, what its errors mean, stores that do not know all requests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.tiers.s3 import S3Tier
from pagoda.tiers.s3_address import S3Address
from pagoda.tiers.s3_errors import tier_error
from pagoda.tiers.tier import TierError, TierFault
from tiers.faults import WELL, Fault, Line
from tiers.stores import BUCKET, KEYS, S3Server

PATIENCE_S = 10.0
FRAME_BYTES = 1000
NAMES = [f"{7:016x}-{number:064x}" for number in range(50)]
FRAMES = [bytes([number]) * FRAME_BYTES for number in range(50)]


def opened(server: S3Server, prefix: str, port: int | None = None) -> S3Tier:
    endpoint = f"http://127.0.0.1:{port or server.port}"
    address = S3Address.parse(f"s3://{BUCKET}/{prefix}", endpoint=endpoint)
    return S3Tier(address.open(), FRAME_BYTES, told=str(address))


def test_addresses() -> None:
    assert S3Address.parse("s3://bucket") == S3Address("bucket")
    given = S3Address.parse("s3://bucket/a/b/", endpoint="https://store:9000", region="eu-north-1")
    assert given == S3Address("bucket", "a/b", "https://store:9000", "eu-north-1")
    assert str(given) == "s3://bucket/a/b"
    assert str(S3Address("bucket")) == "s3://bucket"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("", None),
        ("bucket", None),
        ("s3://", None),
        ("http://bucket", None),
        ("s3://me:word@bucket", None),
        ("s3://bucket:80", None),
        ("s3://bucket?region=x", None),
        ("s3://bucket", "store:9000"),
        ("s3://bucket", "ftp://store"),
        ("s3://bucket", "http://"),
        ("s3://bucket", "http://store:port"),
        ("s3://bucket", "http://me:word@store"),
    ],
)
def test_addresses_that_are_none(url: str, endpoint: str | None) -> None:
    with pytest.raises(InvalidOptionError, match="kv_tier") as caught:
        S3Address.parse(url, endpoint=endpoint)
    assert "word" not in str(caught.value)


def test_an_authority_of_one_s_own(certificate: Path, tmp_path: Path) -> None:
    trusting = S3Address.parse("s3://bucket", ca_file=str(certificate))
    assert trusting.ca == certificate.read_bytes()
    assert trusting.open()
    (tmp_path / "none.pem").write_text("no certificate")
    for name in ("none.pem", "missing.pem"):
        with pytest.raises(InvalidOptionError, match="no certificates"):
            S3Address.parse("s3://bucket", ca_file=str(tmp_path / name))


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(InvalidOptionError, match=r"pagoda-llm\[s3\]"):
        S3Address("bucket").open()


def test_frames_of_others_are_neither_told_nor_touched(s3_server: S3Server) -> None:
    import obstore

    tier, other, above = (opened(s3_server, prefix) for prefix in ("one", "two", ""))
    tier.store(list(zip(NAMES, FRAMES, strict=True)), PATIENCE_S)
    other.store([(NAMES[0], b"another's")], PATIENCE_S)
    assert list(map(bytes, filter(None, other.load(NAMES, PATIENCE_S)))) == [b"another's"]
    obstore.put(tier._store, "notes.txt", b"words")
    assert sorted(entry.name for entry in tier.entries(PATIENCE_S)) == NAMES
    assert list(above.entries(PATIENCE_S)) == [], "what lies deeper is another tier's"
    tier.remove(NAMES, PATIENCE_S)
    assert other.usage().num_bytes == len(b"another's")
    assert tier.usage().num_frames == 0
    for each in (tier, other, above):
        each.close()


def test_a_store_that_cannot_put_on_a_condition() -> None:
    """It is asked first whether something is there."""
    from obstore import exceptions
    from obstore.store import MemoryStore

    tier = S3Tier(MemoryStore(), FRAME_BYTES)
    put: Callable[..., Any] = tier._obstore.put_async
    modes = list[str]()

    class Obstore:
        def __getattr__(self, name: str) -> Any:
            return getattr(sys.modules["obstore"], name)

        async def put_async(self, *args: Any, mode: str, **keywords: Any) -> None:
            modes.append(mode)
            if mode == "create":
                raise exceptions.NotSupportedError("no such request")
            await put(*args, mode=mode, **keywords)

    tier._obstore = Obstore()  # type: ignore[assignment]
    for frame in (b"first", b"second"):
        tier.store([(NAMES[0], frame)], PATIENCE_S)
        assert list(tier.load(NAMES[:1], PATIENCE_S)) == [b"first"]
    assert modes == ["create", "overwrite"]
    tier.close()


def test_what_is_too_long_is_not_read_to_its_end(s3_server: S3Server) -> None:
    tier = opened(s3_server, "long")
    tier.store([(NAMES[0], bytes(100 * FRAME_BYTES))], PATIENCE_S)
    assert list(tier.load(NAMES[:1], PATIENCE_S)) == [bytes(FRAME_BYTES + 1)]
    tier.close()


def test_a_load_that_is_given_up(s3_server: S3Server) -> None:
    tier = opened(s3_server, "given-up")
    tier.store(list(zip(NAMES, FRAMES, strict=True)), PATIENCE_S)
    loading = tier.load(NAMES, PATIENCE_S)
    assert next(loading) == FRAMES[0]
    loading.close()  # type: ignore[attr-defined]
    assert [bytes(frame or b"") for frame in tier.load(NAMES, PATIENCE_S)] == FRAMES
    tier.close()
    tier.close()
    with pytest.raises(TierError, match="closed"):
        tier.holds(NAMES, PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("status code: 403 Forbidden: <Code>AccessDenied</Code>", TierFault.DENIED),
        ("status code: 507 Insufficient Storage", TierFault.FULL),
        ("status code: 500 X: <Code>XMinioStorageFull</Code>", TierFault.FULL),
        ("status code: 400 X: <Code>QuotaExceeded</Code>", TierFault.FULL),
        ("status code: 503 X: <Code>SlowDown</Code>", TierFault.ERROR),
        ("status code: 404 X: <Code>NoSuchBucket</Code>", TierFault.UNREACHABLE),
        ("HTTP error: error sending request", TierFault.UNREACHABLE),
        ("HTTP error: operation timed out", TierFault.TIMEOUT),
        ("[Errno 28] No space left on device", TierFault.FULL),
        ("something else", TierFault.ERROR),
    ],
)
def test_what_errors_mean(text: str, reason: TierFault) -> None:
    error = tier_error(Exception(f"http://10.0.0.1/?key=word {text}"), "s3://bucket")
    assert error.reason is reason
    assert "word" not in str(error)
    assert "10.0.0.1" not in str(error)


def test_nobody_is_asked_when_a_tier_is_made(s3_server: S3Server, s3_line: Line) -> None:
    s3_line.set(Fault(refuses=True))
    tier = opened(s3_server, "dead", s3_line.port)
    with pytest.raises(TierError) as caught:
        tier.usage()
    assert caught.value.reason is TierFault.UNREACHABLE
    s3_line.set(WELL)
    with pytest.raises(TierError):
        tier.usage()  # a listing is not tried again at once, be it that it failed
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in repr(caught.value)
    tier.close()


def test_connections_that_were_cut_off_are_not_noticed(s3_server: S3Server, s3_line: Line) -> None:
    """As by a server that was begun anew: whatever the next call is, it does what it should."""
    tier, frames = opened(s3_server, "cut", s3_line.port), list(zip(NAMES, FRAMES, strict=True))[:4]
    for _ in range(15):
        s3_line.set(Fault(status="403 AccessDenied"))
        with pytest.raises(TierError):
            tier.store(frames, PATIENCE_S)
        s3_line.set(WELL)
        tier.store(frames, PATIENCE_S)
        s3_line.set(Fault(status="403 AccessDenied"))
        with ThreadPoolExecutor(2) as threads:
            asked = [threads.submit(tier.holds, NAMES[:4], PATIENCE_S) for _ in range(2)]
            assert all(isinstance(each.exception(), TierError) for each in asked)
        s3_line.set(WELL)
        tier.remove(NAMES[:4], PATIENCE_S)
    tier.close()
