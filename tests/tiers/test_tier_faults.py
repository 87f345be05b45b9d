"""Each tier with each fault that its store can have: every call ends in time, and none in surprise.

A call that meets a fault raises a `TierError`, or does what it should; it gives no wrong answer and
takes no longer than it may. Once the fault is gone, the next call is as good as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pagoda.tiers.redis import RedisTier
from pagoda.tiers.s3 import S3Tier
from pagoda.tiers.s3_address import S3Address
from pagoda.tiers.tier import Tier, TierError, TierFault
from tiers.faults import WELL, Fault, Line
from tiers.stores import BUCKET, KEYS, PASSWORD, RedisServer, S3Server

TIMEOUT_S = 0.25
LATE_S = 0.2
"""What a call may take beyond its timeout."""
NUM_TRIES = 3
"""Of a call that ended late, or had no time for a better reason: a busy machine is not so three
times running."""
PATIENCE_S = 10.0
SECRETS = (PASSWORD, KEYS["AWS_SECRET_ACCESS_KEY"])
FRAME_BYTES = 100_000
NAMES = [f"{7:016x}-{number:064x}" for number in range(4)]
UNUSED = f"{8:016x}-{0:064x}"
FRAMES = [bytes([number]) * FRAME_BYTES for number in range(4)]
KEPT, NEW = 3, 3
"""Frames that are there before the fault; the number of one that is not."""

READS = ("holds", "load", "entries")
WRITES = ("store", "remove")
ALL = (*READS, *WRITES)
CALLS: dict[str, Callable[[Tier], Any]] = {
    "holds": lambda tier: tier.holds(NAMES, TIMEOUT_S),
    "load": lambda tier: [
        frame if frame is None else bytes(frame) for frame in tier.load(NAMES, TIMEOUT_S)
    ],
    "entries": lambda tier: sorted(entry.name for entry in tier.entries(TIMEOUT_S)),
    "store": lambda tier: tier.store([(NAMES[NEW], FRAMES[NEW])], TIMEOUT_S),
    "remove": lambda tier: tier.remove([NAMES[NEW]], TIMEOUT_S),
}
RIGHT = {
    "holds": [True] * KEPT + [False],
    "load": [*FRAMES[:KEPT], None],
    "entries": NAMES[:KEPT],
    "store": None,
    "remove": None,
}
"""What each call gives where frames 0 to 2 are there."""


@dataclass(frozen=True)
class Trouble:
    """A fault, and what comes of it."""

    fails: tuple[str, ...]
    """Calls that have to raise; others do what they should."""
    reasons: frozenset[TierFault]
    fault: Fault = WELL
    """Of the line."""
    harm: Callable[[Any], object] | None = None
    """Done to the server itself; whoever is connected to it has to begin anew."""
    heal: Callable[[Any], object] | None = None


def trouble(fails: tuple[str, ...], *reasons: TierFault, **rest: Any) -> Trouble:
    return Trouble(fails, frozenset(reasons), **rest)


UNREACHABLE, TIMEOUT, DENIED, FULL, ERROR = (
    TierFault.UNREACHABLE,
    TierFault.TIMEOUT,
    TierFault.DENIED,
    TierFault.FULL,
    TierFault.ERROR,
)
LINE_FAULTS = {
    "refused": trouble(ALL, UNREACHABLE, fault=Fault(refuses=True)),
    "hang": trouble(ALL, TIMEOUT, fault=Fault(hangs=True)),
    "slow": trouble(("load",), TIMEOUT, fault=Fault(bytes_per_s=FRAME_BYTES)),
    "reset in mid-body": trouble(
        ("load",), UNREACHABLE, fault=Fault(resets_after=FRAME_BYTES // 8)
    ),
    "reset at once": trouble(ALL, UNREACHABLE, fault=Fault(resets_after=0)),
    "far away": trouble((), fault=Fault(latency_s=0.02)),
    "too far away": trouble(ALL, TIMEOUT, fault=Fault(latency_s=2 * TIMEOUT_S)),
}


def forbid(*rights: str) -> Callable[[RedisServer], None]:
    def harm(server: RedisServer) -> None:
        server.ask("ACL", "SETUSER", "default", *rights)

    return harm


def welcome(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")


def fill(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory", 1)


def empty(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory", 0)


REDIS_FAULTS = {
    "full": trouble(("store",), FULL, harm=fill, heal=empty),
    "wrong password": trouble(ALL, DENIED, harm=forbid("resetpass", f">{PASSWORD}"), heal=welcome),
    "no permission": trouble(ALL, DENIED, harm=forbid("nopass", "-@all"), heal=welcome),
    "may only read": trouble(WRITES, DENIED, harm=forbid("nopass", "-@write"), heal=welcome),
    "others' names": trouble(
        ALL, DENIED, harm=forbid("nopass", "resetkeys", "~others:*"), heal=welcome
    ),
}
S3_FAULTS = {
    "overloaded": trouble(ALL, ERROR, fault=Fault(status="503 SlowDown")),
    "broken": trouble(ALL, ERROR, fault=Fault(status="500 InternalError")),
    "full": trouble(ALL, FULL, fault=Fault(status="507 InsufficientStorage")),
    "no permission": trouble(ALL, DENIED, fault=Fault(status="403 AccessDenied")),
    "wrong key": trouble(ALL, DENIED, fault=Fault(status="401 InvalidAccessKeyId")),
}


def outcome(tier: Tier, call: str) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return CALLS[call](tier)
    except TierError as error:
        return error


def judge(tier: Tier, call: str, trouble: Trouble) -> None:
    """Make a call that meets a fault."""
    for left in reversed(range(NUM_TRIES)):
        began = time.monotonic()
        got = outcome(tier, call)
        took_s = time.monotonic() - began
        if isinstance(got, TierError):
            assert not any(secret in str(got) for secret in SECRETS), call
            is_as_expected = call in trouble.fails and got.reason in trouble.reasons
            may_be_busy = got.reason is TIMEOUT
        else:
            is_as_expected = call not in trouble.fails and got == RIGHT[call]
            may_be_busy = False
        if is_as_expected and took_s < TIMEOUT_S + LATE_S:
            return
        assert is_as_expected or may_be_busy, f"{call} gave {str(got)[:80]!r}"
        assert left, f"{call} took {took_s:.2f} s, and gave {str(got)[:80]!r}"


def judge_all(tier: Tier, trouble: Trouble) -> None:
    """Make all calls, from several threads where none of them can change what another one finds."""
    with ThreadPoolExecutor(len(ALL) if trouble.fails == ALL else 1) as threads:
        for done in [threads.submit(judge, tier, call, trouble) for call in CALLS]:
            done.result()


def is_well(tier: Tier, new: str = NAMES[NEW]) -> None:
    """All calls at once do what they should. Nobody has used the name `new` before."""
    names = [*NAMES[:KEPT], new]
    assert tier.holds(names, PATIENCE_S) == RIGHT["holds"]
    assert [frame and bytes(frame) for frame in tier.load(names, PATIENCE_S)] == RIGHT["load"]
    tier.store([(new, FRAMES[NEW])], PATIENCE_S)
    assert tier.holds(names, PATIENCE_S) == [True] * len(names)
    tier.remove([new], PATIENCE_S)
    told = {entry.name for entry in tier.entries(PATIENCE_S)}
    assert told & set(names) == set(NAMES[:KEPT])


def go_through(tier: Tier, server: Any, line: Line, trouble: Trouble) -> None:
    """A tier that is well, ill, and well again."""
    tier.store(list(zip(NAMES[:KEPT], FRAMES, strict=False)), PATIENCE_S)
    is_well(tier)
    line.set(trouble.fault)
    if trouble.harm is not None:
        trouble.harm(server)
        line.cut_off()
    judge_all(tier, trouble)
    line.set(WELL)
    if trouble.heal is not None:
        trouble.heal(server)
    is_well(tier, UNUSED)  # of a call that failed something may be kept, even now


@pytest.fixture
def redis_tier(redis_line: Line) -> Iterator[RedisTier]:
    tier = RedisTier(f"redis://127.0.0.1:{redis_line.port}", FRAME_BYTES)
    yield tier
    tier.close()


@pytest.fixture
def s3_tier(s3_server: S3Server, s3_line: Line) -> Iterator[S3Tier]:
    endpoint = f"http://127.0.0.1:{s3_line.port}"
    address = S3Address.parse(f"s3://{BUCKET}/frames", endpoint=endpoint)
    tier = S3Tier(address.open(), FRAME_BYTES, told=str(address))
    yield tier
    tier.close()


@pytest.mark.redis
@pytest.mark.parametrize("name", [*LINE_FAULTS, *REDIS_FAULTS])
def test_redis(
    name: str, redis_tier: RedisTier, redis_server: RedisServer, redis_line: Line
) -> None:
    go_through(redis_tier, redis_server, redis_line, {**LINE_FAULTS, **REDIS_FAULTS}[name])


@pytest.mark.parametrize("name", [*LINE_FAULTS, *S3_FAULTS])
def test_s3(name: str, s3_tier: S3Tier, s3_server: S3Server, s3_line: Line) -> None:
    """Requests are made again while there is time, so on a busy machine it may run out."""
    trouble = {**LINE_FAULTS, **S3_FAULTS}[name]
    lenient = replace(trouble, reasons=trouble.reasons | {TIMEOUT})
    go_through(s3_tier, s3_server, s3_line, lenient)


@pytest.mark.redis
def test_a_redis_that_is_dead_at_start_and_dies_again(
    redis_server: RedisServer, redis_tier: RedisTier
) -> None:
    redis_server.kill()
    judge_all(redis_tier, trouble(ALL, UNREACHABLE))
    for _ in range(2):
        redis_server.start()
        redis_tier.store(list(zip(NAMES[:KEPT], FRAMES, strict=False)), PATIENCE_S)
        is_well(redis_tier)
        redis_server.kill()
        judge(redis_tier, "load", trouble(ALL, UNREACHABLE))
    redis_server.start()
    assert redis_tier.holds(NAMES, PATIENCE_S) == [False] * len(NAMES)


def test_an_s3_that_is_dead_at_start(s3_tier: S3Tier, s3_line: Line) -> None:
    s3_line.set(Fault(refuses=True))
    judge_all(s3_tier, trouble(ALL, UNREACHABLE, TIMEOUT))
    s3_line.set(WELL)
    s3_tier.store(list(zip(NAMES[:KEPT], FRAMES, strict=False)), PATIENCE_S)
    is_well(s3_tier, UNUSED)


def test_a_bucket_that_is_not_there(s3_server: S3Server) -> None:
    endpoint = f"http://127.0.0.1:{s3_server.port}"
    tier = S3Tier(S3Address.parse("s3://nowhere", endpoint=endpoint).open(), FRAME_BYTES)
    assert tier.holds(NAMES, PATIENCE_S) == [False] * len(NAMES)
    with pytest.raises(TierError) as caught:
        tier.store([(NAMES[0], FRAMES[0])], PATIENCE_S)
    assert caught.value.reason is UNREACHABLE
    tier.close()
