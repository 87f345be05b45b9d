"""What tenants have had, told by a live server, and kept over its starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.engine.usage import TOTALS
from pagoda.errors import InvalidOptionError
from pagoda.server import usage_routes
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from pagoda.server.usage_ledger import UsageLedger, require_usable
from server.fake_engine import FakeEngine
from server.live import live_server

KEYS = {"key-of-ann": "ann", "key-of-bob": "bob", "key-of-the-house": "house"}
TEXT = "a pagoda on a hill, and the bells of evening "
NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])


def engine_of(checkpoint: Path, **options: Any) -> AsyncEngine:
    defaults: dict[str, Any] = {"max_model_len": 128, "num_gpu_blocks_override": NUM_BLOCKS}
    return AsyncEngine.load(
        EngineOptions(str(checkpoint), block_size=4, threads=1, **(defaults | options))
    )


@pytest.fixture
def url(checkpoint: Path) -> Iterator[str]:
    keys = KeyRing(KEYS, operators=["key-of-the-house"], quotas={"bob": "floor=25%"})
    engine = engine_of(checkpoint, tenant_quotas=keys.quotas)
    with live_server(engine, keys=keys) as url:
        yield url


def ask(url: str, key: str, prompt: str = TEXT, max_tokens: int = 5) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers={"x-api-key": key}, timeout=60)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()["usage"]
    return told


def usage(url: str, key: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}/usage", headers={"x-api-key": key}, timeout=60)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_tokens_are_those_of_the_answers(url: str) -> None:
    told = [ask(url, "key-of-ann") for _ in range(3)] + [ask(url, "key-of-bob", max_tokens=9)]
    report = usage(url, "key-of-the-house")
    ann, bob = report["tenants"]
    assert (ann["tenant"], bob["tenant"]) == ("ann", "bob")
    for tenant, answers in ((ann, told[:3]), (bob, told[3:])):
        cached = sum(each["prompt_tokens_details"]["cached_tokens"] for each in answers)
        prompt = sum(each["prompt_tokens"] for each in answers)
        generated = sum(each["completion_tokens"] for each in answers)
        assert tenant["requests"] == len(answers)
        assert (tenant["prompt_tokens"], tenant["cached_tokens"]) == (prompt, cached)
        assert tenant["generated_tokens"] == generated
        # The last token of an answer is never put through the model.
        assert tenant["computed_tokens"] == prompt - cached + generated - len(answers)
    assert ann["cached_tokens"] > 0
    assert (ann["quota"], bob["quota"]) == (None, "floor=25%")
    assert report["num_blocks"] == NUM_BLOCKS
    assert report["block_bytes"] > 0


def test_block_seconds_go_on_while_blocks_are_cached(url: str) -> None:
    ask(url, "key-of-ann")
    report = usage(url, "key-of-the-house")["tenants"]
    [first] = [each for each in report if each["tenant"] == "ann"]
    began = time.monotonic()
    assert first["held_blocks"] == 0
    assert first["cached_blocks"] > 10
    time.sleep(0.2)
    report = usage(url, "key-of-the-house")["tenants"]
    [then] = [each for each in report if each["tenant"] == "ann"]
    seconds = time.monotonic() - began
    grown = then["cached_block_seconds"] - first["cached_block_seconds"]
    assert 0.2 * first["cached_blocks"] <= grown <= (seconds + 0.1) * first["cached_blocks"]
    assert then["held_block_seconds"] == first["held_block_seconds"] > 0


def test_a_tenant_sees_itself_alone(url: str) -> None:
    ask(url, "key-of-bob")
    nothing = usage(url, "key-of-ann")["tenants"]
    assert [each["tenant"] for each in nothing] == ["ann"]
    assert all(nothing[0][name] == 0 for name in TOTALS)
    assert httpx.get(f"{url}/usage").status_code == 401
    assert httpx.get(f"{url}/metrics", headers={"x-api-key": "key-of-ann"}).status_code == 403


def test_a_tenant_is_told_the_same_for_a_second(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 7.0
    monkeypatch.setattr(usage_routes, "monotonic", lambda: now)
    ask(url, "key-of-ann")
    first = usage(url, "key-of-ann")
    ask(url, "key-of-ann")
    now = 7.9
    assert usage(url, "key-of-ann") == first
    now = 8.0
    [then] = usage(url, "key-of-ann")["tenants"]
    assert then["requests"] == 2
    assert then["cached_block_seconds"] == int(then["cached_block_seconds"])


def test_metrics_tell_tenants_apart(url: str) -> None:
    told = ask(url, "key-of-ann")
    text = httpx.get(f"{url}/metrics", headers={"x-api-key": "key-of-the-house"}).text
    row = next(
        line
        for line in text.splitlines()
        if line.startswith("pagoda:tenant_tokens_total")
        and 'tenant="ann"' in line
        and 'kind="generated"' in line
    )
    assert float(row.rsplit(" ", 1)[1]) == told["completion_tokens"]
    assert "pagoda:tenant_kv_blocks{" in text
    assert "pagoda:tenant_kv_block_seconds_total{" in text


def test_without_keys_all_is_one_tenants(checkpoint: Path) -> None:
    with live_server(engine_of(checkpoint)) as url:
        told = ask(url, "")
        [only] = usage(url, "")["tenants"]
    assert (only["tenant"], only["prompt_tokens"]) == ("", told["prompt_tokens"])


def test_totals_outlast_a_start(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    options = ServerOptions(usage_file=str(file))
    totals = []
    for _ in range(2):
        with live_server(engine_of(checkpoint), options) as url:
            ask(url, "")
            report = usage(url, "")
            totals.append(report["tenants"][0])
    kept = json.loads(file.read_text())
    assert totals[1]["requests"] == kept["tenants"][""]["requests"] == 2
    assert totals[1]["held_block_seconds"] > totals[0]["held_block_seconds"] > 0
    assert kept["since"] == report["since"]
    assert {each.name for each in tmp_path.iterdir()} == {"usage.json", "usage.json.lock"}


def test_a_file_is_one_servers_until_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    first = UsageLedger(FakeEngine(), file)  # type: ignore[arg-type]
    other_name = tmp_path / "link.json"
    other_name.symlink_to(file)
    for begin in (require_usable, lambda path: UsageLedger(FakeEngine(), path)):
        for name in (file, other_name):
            told = f"usage_file=.*{name.name}.*: is in use by process {os.getpid()}: give each"
            with pytest.raises(InvalidOptionError, match=told):
                begin(name)
    first.close()
    before = file.read_text()
    first.save()  # it is another's from now on
    assert file.read_text() == before
    require_usable(file)
    UsageLedger(FakeEngine(), file).close()  # type: ignore[arg-type]


def test_a_file_of_a_server_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    script = (
        "import signal, sys; from pathlib import Path; from types import SimpleNamespace\n"
        "from pagoda.server.usage_ledger import UsageLedger\n"
        "ledger = UsageLedger(SimpleNamespace(usage=dict), Path(sys.argv[1]))\n"
        "print('kept', flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", script, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "kept\n"
            with pytest.raises(InvalidOptionError, match=f"is in use by process {server.pid}"):
                require_usable(file)
        finally:
            server.kill()
    since = json.loads(file.read_text())["since"]
    ledger = UsageLedger(FakeEngine(), file)  # type: ignore[arg-type]
    assert ledger.since == since
    ledger.close()


def test_a_write_that_breaks_off_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "usage.json"
    ledger = UsageLedger(FakeEngine(), file)  # type: ignore[arg-type]
    before = file.read_text()

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    ledger.save()
    assert file.read_text() == before
    ledger.close()


def test_a_start_without_room_for_totals_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "usage.json"

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        for call in ("os.fsync", "os.pwrite"):
            full.setattr(call, fail)
        ledger = UsageLedger(FakeEngine(), file)  # type: ignore[arg-type]
        assert "cannot be written: [Errno 28] No space left on device" in caplog.text
        with pytest.raises(InvalidOptionError, match="is in use by another process"):
            require_usable(file)
    ledger.close()
    assert json.loads(file.read_text())["since"] == ledger.since
    require_usable(file)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"tenants": {}}',
        '{"since": 1, "tenants": {"ann": {"requests": 1.5}}}',
        '{"since": 1, "tenants": {"ann": {"generated": 1}}}',
        '{"since": 1, "tenants": {"ann": {"requests": 1%s}}}' % ("0" * 400),
        "[" * 100_000,
        '{"since": 1, "tenants": {"ann": 3}}',
        '{"since": "1", "tenants": {}}',
    ],
)
def test_a_file_of_something_else_is_refused_and_left(tmp_path: Path, text: str) -> None:
    file = tmp_path / "usage.json"
    file.write_text(text)
    with pytest.raises(InvalidOptionError, match="usage_file"):
        UsageLedger(FakeEngine(), file)  # type: ignore[arg-type]
    assert file.read_text() == text


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="usage_file"):
        UsageLedger(FakeEngine(), tmp_path / "nowhere" / "usage.json")  # type: ignore[arg-type]


def test_quotas_are_a_mapping() -> None:
    with pytest.raises(InvalidOptionError, match="tenant_quotas"):
        EngineOptions(tenant_quotas="floor=10")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "quota",
    ["", "floor", "floor=", "floor=x", "floor=1.5", "floor=-1", "floor=101%", "flor=1", "weight=0",
     "weight=nan", "weight=inf", "weight=1e308", "floor=1e9", "floor=1,floor=2", "floor=1;cap=2",
     "cap=1/0"],
)  # fmt: skip
def test_a_quota_that_is_none_is_refused(quota: str) -> None:
    with pytest.raises(InvalidOptionError, match="tenant_quotas"):
        EngineOptions(tenant_quotas={"ann": quota})


@pytest.mark.parametrize(
    ("quotas", "named"),
    [
        ({"ann": "floor=60%", "bob": "floor=50%"}, "floor"),
        ({"ann": "cap=20"}, "cap=20: of 'ann', 20 blocks of .* at least 32"),  # of a request
        ({"ann": "cap=20%"}, r"cap=\d+: of 'ann', 20% of \d+, must be at least 32"),
        ({"ann": "floor=30,cap=40%"}, "'ann' must be at least its floor, 30"),
        ({"ann": "floor=1%"}, "floor=0: of 'ann' comes to no block"),
        ({"ann": "cap=0%"}, "cap=0: of 'ann' comes to no block"),
    ],
)
def test_quotas_that_leave_no_room_are_refused(
    checkpoint: Path, quotas: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidOptionError, match=named):
        engine_of(checkpoint, tenant_quotas=quotas)


def test_the_file_of_keys_has_quotas(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(
        "key-of-ann ann floor=10%,weight=2 # the first\nkey-of-bob bob\nkey-two-bob bob cap=50%\n"
    )
    keys = KeyRing.of(file=file)
    assert keys.quotas == {"ann": "floor=10%,weight=2", "bob": "cap=50%"}
    assert keys.with_quotas(["ann:cap=9"]).quotas == {"ann": "cap=9", "bob": "cap=50%"}
    for given in (["carol:cap=9"], ["ann"], [":cap=9"], ["ann:cap=9", "ann:cap=8"]):
        with pytest.raises(InvalidOptionError, match="tenant_quota"):
            keys.with_quotas(given)
    file.write_text("key-of-bob bob cap=9\nkey-two-bob bob cap=8\n")
    with pytest.raises(InvalidOptionError, match="line 2"):
        KeyRing.of(file=file)
