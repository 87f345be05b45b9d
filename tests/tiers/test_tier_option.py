"""What `--kv-tier` may say."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.tiers.disk import DiskTier
from pagoda.tiers.disk_folder import DiskFolder
from pagoda.tiers.duration import MOST_S, parse_duration, parse_timeout
from pagoda.tiers.kinds import (
    KINDS,
    is_shared,
    open_tier,
    parse_inspected_tier,
    parse_tier,
    require_tier,
)
from pagoda.tiers.tier import TierError, TierFault
from pagoda.tiers.tier_option import StorePolicy

NAME = "0" * 16 + "-" + "0" * 64

TAKEN: dict[str, dict[str, Any]] = {
    "disk:/kv,size=20GiB": {
        "kind": "disk",
        "address": "/kv",
        "capacity_bytes": 20 * 2**30,
        "store": StorePolicy.ALWAYS,
        "compression": "none",
    },
    "disk:my, folder,size=1e9,store=reused,timeout=0.5,compression=zstd": {
        "address": "my, folder",
        "capacity_bytes": 10**9,
        "store": StorePolicy.REUSED,
        "timeout_s": 0.5,
        "compression": "zstd",
    },
    "host:size=8GiB": {"kind": "host", "address": "", "capacity_bytes": 8 * 2**30},
    "host:store=reused,size=1GB": {"capacity_bytes": 10**9, "store": StorePolicy.REUSED},
    "redis://h:6379/0": {"kind": "redis", "address": "redis://h:6379/0", "ttl_s": None},
    "rediss://u:p@h,ttl=7d": {"kind": "redis", "address": "rediss://u:p@h", "ttl_s": 604800.0},
    "rediss://h,ca=/ca.pem": {"kind": "redis", "ca_file": "/ca.pem"},
    "s3://bucket,ca=/ca.pem": {"kind": "s3", "ca_file": "/ca.pem"},
    "s3://bucket/a/b,endpoint=http://h:9000,region=eu-1,store=always": {
        "kind": "s3",
        "address": "s3://bucket/a/b",
        "endpoint": "http://h:9000",
        "region": "eu-1",
        "store": StorePolicy.ALWAYS,
    },
}
REFUSED = {
    "": "must be one of host:size=8GiB, disk:PATH,size=20GiB, redis://host:6379/0, s3://bucket/pre",
    "/kv": "must be one of",
    "redis:h": "must be one of",
    "disk:": "must be disk:PATH,size=20GiB",
    "disk:/kv": "must be disk:PATH,size=20GiB",
    "disk:size=1GiB": "must be disk:PATH,size=20GiB",
    "host:": "must be host:size=8GiB",
    "host:/kv,size=1GiB": "must be host:size=8GiB",
    "host:store=always": "must be host:size=8GiB",
    "disk:/kv,size=": "kv_tier size='': a size like",
    "disk:/kv,size=0": "kv_tier size='0': must be at least one byte",
    "disk:/kv,size=1GiB,size=2GiB": "size is said twice",
    "disk:/kv,size=1GiB,ttl=1d": "ttl: disk takes compression, form, size, store, timeout",
    "host:size=1GiB,form=kvtc-4x": "form: host takes compression, size, store, timeout",
    "disk:/kv,size=1GiB,keep=all": "keep: disk takes compression, form, size, store, timeout",
    "disk:/kv,size=1GiB,store=never": "kv_tier store='never': always or reused",
    "disk:/kv,size=1GiB,timeout=soon": "kv_tier timeout='soon': a span of time like",
    "disk:/kv,size=1GiB,timeout=-1": "kv_tier timeout='-1': a span of time like",
    "disk:/kv,size=1GiB,timeout=0": "kv_tier timeout='0': must be more than nothing",
    "disk:/kv,size=1GiB,timeout=25h": "kv_tier timeout='25h': must be at most 24 hours",
    "redis://h,ttl=999999999999d": "kv_tier ttl='999999999999d': must be at most 10,000 days",
    "disk:/kv,size=1GiB,compression=lz4": "kv_tier compression='lz4': none or zstd",
    "redis://u:s3cret@h,size=1GiB": "size: redis takes ca, compression, form, store, timeout, ttl",
    "rediss://u:s3cret/s3cret@h,ttl=never": "kv_tier ttl='never': a span of time",
    "s3://k:s3cret@b,ttl=1d": "ttl: s3 takes ca, compression, endpoint, form, region, store",
    "sqlite://u:s3cret@h": "must be one of",
    "sqlite://u:\ns3cret@h": "must be one of",
    f"disk:{'x' * 5000},size=1GiB": "kv_tier='5,015 characters': at most 4,096",
}


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_taken(text: str) -> None:
    option = parse_tier(text)
    assert {name: getattr(option, name) for name in TAKEN[text]} == TAKEN[text]
    assert option.timeout_s > 0
    assert is_shared(option) == (option.kind in ("redis", "s3"))


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_tier(text)
    assert REFUSED[text] in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_home_that_nobody_has_is_refused() -> None:
    option = parse_tier("disk:~nobody-here/kv,size=1GiB")
    for use in (require_tier, lambda told: open_tier(told, 2**20)):
        with pytest.raises(InvalidOptionError, match="nobody who has a home here"):
            use(option)


def test_nobody_sees_a_password() -> None:
    option = parse_tier("redis://u:s3cret@h:1/2")
    assert "s3cret" not in f"{option} {option!r}"
    assert str(option) == "redis://…@h:1/2"


def test_shared_tiers_store_what_was_found_twice() -> None:
    for kind in KINDS.values():
        assert (kind.store is StorePolicy.REUSED) == kind.is_shared, kind.name


def test_a_tier_is_opened_without_being_touched(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    tier = open_tier(parse_tier(f"disk:{path},size=1GiB"), 1000)
    assert isinstance(tier, DiskTier)
    assert tier.usage().capacity_bytes == 2**30
    assert not path.exists()
    assert tier.holds([NAME], 5.0) == [False]
    assert path.exists()
    tier.close()
    assert open_tier(parse_tier("host:size=1000"), 100).kind == "host"


def test_a_command_needs_no_more_than_an_address() -> None:
    for text in ("disk:/kv", "disk:/kv,size=1GiB", "redis://h"):
        assert parse_inspected_tier(text).store is StorePolicy.NEVER
    with pytest.raises(InvalidOptionError, match="must be disk:PATH"):
        parse_inspected_tier("disk:")
    with pytest.raises(InvalidOptionError, match="is in a server's own memory"):
        parse_inspected_tier("host:size=1GiB")


def test_a_command_takes_no_folder_from_a_server(tmp_path: Path) -> None:
    served = open_tier(parse_tier(f"disk:{tmp_path},size=1GiB"), 1000)
    inspected = open_tier(parse_inspected_tier(f"disk:{tmp_path},size=1GiB"), 1000)
    served.store([(NAME, b"frame")], 5.0)
    assert inspected.holds([NAME], 5.0) == [True]
    with pytest.raises(TierError, match="for inspection alone"):
        inspected.store([(NAME, b"frame")], 5.0)
    served.close()
    inspected.close()


FOREIGN = {
    "file": "is a file: give it a folder of its own",
    "file/kv": "cannot be opened: Not a directory",
    "thesis": "holds other files: give it a folder of its own",
    "later": "is a tier's of another version: give it a folder of its own",
}


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Those of `FOREIGN`, one that is a tier's, and room for another."""
    (tmp_path / "file").write_text("x")
    for name, file, text in (
        ("thesis", "thesis.tex", "chapter 1"),
        ("later", "pagoda-tier", "pagoda tier 2\n"),
        ("ours", "pagoda-tier", "pagoda tier 1\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_another_programs_is_refused_and_left_as_it_is(places: Path, name: str) -> None:
    before = sorted(places.rglob("*"))
    with pytest.raises(InvalidOptionError) as caught:
        require_tier(parse_tier(f"disk:{places / name},size=1GiB"))
    told = str(caught.value)
    assert told.startswith("kv_tier='/"), "and a long path is cut"
    assert told.endswith(f": {places / name} {FOREIGN[name]}")
    assert sorted(places.rglob("*")) == before


def test_what_may_be_well_later_is_not_refused(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("host:size=1GiB", "redis://nobody.invalid:1", "s3://bucket,region=eu-1"):
        require_tier(parse_tier(text))
    for name in ("ours", "new", "new/deeper"):
        require_tier(parse_tier(f"disk:{places / name},size=1GiB"))
    assert not (places / "new").exists()
    answers = threading.Event()
    asked = list[bool]()

    def hang(folder: DiskFolder) -> None:
        asked.append(answers.wait(10.0))

    def deny(folder: DiskFolder) -> None:
        raise TierError(TierFault.DENIED, "planted")

    for require_free in (deny, hang):
        monkeypatch.setattr(DiskFolder, "require_free", require_free)
        require_tier(parse_tier(f"disk:{places / 'thesis'},size=1GiB,timeout=0.01"))
    assert not asked
    answers.set()


def test_a_folder_in_use_is_told_at_each_start(
    places: Path, caplog: pytest.LogCaptureFixture
) -> None:
    option = parse_tier(f"disk:{places / 'ours'},size=1GiB")
    holder = DiskFolder(places / "ours")
    holder.take()
    for _ in range(2):
        caplog.clear()
        require_tier(option)
        (told,) = caplog.messages
        assert told.startswith(f"the tier {option} is not used until it is well: ")
        told_who = f"{places / 'ours'} is in use by process {os.getpid()}: give"
        assert told_who in told
    holder.close()
    caplog.clear()
    require_tier(option)
    assert not caplog.messages


def test_spans_of_time() -> None:
    spans = {"0.5": 0.5, "250ms": 0.25, "90s": 90, "15m": 900, " 12 h": 43200, "7d": 604800}
    assert {text: parse_duration("age", text) for text in spans} == spans
    for text in ("", "d", "1w", "1e9", "nan", "inf", "1" * 13, "-1"):
        with pytest.raises(InvalidOptionError, match="a span of time"):
            parse_duration("age", text)
    assert parse_duration("age", "10000d") == MOST_S
    for parse, text in ((parse_duration, "10001d"), (parse_timeout, "86401")):
        with pytest.raises(InvalidOptionError, match="must be at most"):
            parse("age", text)
