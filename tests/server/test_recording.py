"""A day of a server, recorded: it tells nothing that was said, and replays as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.cache import CacheManager
from pagoda.cli.main import run
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.replay import recorder
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.trace_file import TraceFile
from pagoda.replay.trace_writer import NUM_OLDER, TraceWriter
from pagoda.scheduling import Scheduler
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from pagoda.server.recording import recorded, setting_of
from scheduling.fake_model import request
from server.live import live_server
from tiers.fake_tier import FakeTier

SECRET = "the password of the day is swordfish, "
HINTS = [None, "session", "pin", "none"]
KEYS = {"key-of-ann": "ann", "key-of-bob": "bob"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])


@contextmanager
def serving(checkpoint: Path, trace: Path) -> Iterator[tuple[str, AsyncEngine]]:
    options = EngineOptions(
        str(checkpoint), max_model_len=128, num_gpu_blocks_override=33, block_size=4,
        max_num_seqs=6, max_num_batched_tokens=32,
    )  # fmt: skip
    engine = AsyncEngine.load(options)
    asked = ServerOptions(record_trace=str(trace))
    with recorded(engine, options, asked), live_server(engine, asked, KeyRing(KEYS)) as url:
        yield url, engine


def ask(url: str, number: int) -> int:
    """A completion; every seventh client leaves in the middle of its answer."""
    body: dict[str, Any] = {
        "prompt": SECRET[: 8 + 4 * (number % 6)] + str(number % 3) * (number % 11),
        "max_tokens": 2 + 9 * (number % 9),
        "temperature": 0,
        "ignore_eos": True,
        "stream": number % 7 == 6,
        "cache_hint": HINTS[number % len(HINTS)],
    }
    headers = {"authorization": f"Bearer {sorted(KEYS)[number % 2]}"}
    with (
        httpx.Client(base_url=url, headers=headers, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        for _ in response.iter_lines():
            if body["stream"]:
                break
        return response.status_code


@pytest.fixture(scope="module")
def day(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The trace of 60 requests, and what the server says it has done."""
    trace = tmp_path_factory.mktemp("day") / "day.jsonl"
    with serving(checkpoint, trace) as (url, engine):
        with ThreadPoolExecutor(8) as clients:
            assert set(clients.map(lambda number: ask(url, number), range(60))) == {200}
        while engine.stats().num_requests_running or engine.stats().num_requests_waiting:
            pass
        told = engine.stats().figures()
    return trace, told


def test_a_recorded_day_replays_exactly(
    day: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, told = day
    assert told["num_preemptions"] > 0
    assert told["num_evicted_blocks"] > 0
    assert run(["replay", str(trace), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["requests"] == 60
    assert again["hit_tokens"] == told["prefix_cache_hits"]
    assert again["evictions"] == told["num_evicted_blocks"]
    assert again["preemptions"] == told["num_preemptions"]


def test_nothing_that_was_said_is_in_it(day: tuple[Path, dict[str, Any]]) -> None:
    content = day[0].read_text()
    header, *rows = map(json.loads, content.splitlines())
    assert header["server"]["num_blocks"] == 33
    assert len(rows) == 60
    for word in ("password", "swordfish", "ann", "bob", "key-of"):
        assert word not in content
    assert len({row["tenant"] for row in rows}) == 2
    known = {
        "number", "arrival_s", "step", "turn", "prompt_tokens", "output_tokens", "finish_reason",
        "tenant", "salt", "hashes", "end_step", "cache_hint",
    }  # fmt: skip
    assert {name for row in rows for name in row} <= known
    assert any(0 < row["step"] - row["turn"] < 1 for row in rows), "during a step"
    assert sum(row.get("end_step") is not None for row in rows) > 0, "somebody left"
    assert {row.get("cache_hint") for row in rows} == set(HINTS)


def test_hashes_of_two_starts_cannot_be_compared(
    checkpoint: Path, day: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    trace = tmp_path / "again.jsonl"
    with serving(checkpoint, trace) as (url, _):
        ask(url, 0)

    def hashes(path: Path) -> set[str]:
        rows = map(json.loads, path.read_text().splitlines()[1:])
        return {row["hashes"][place : place + 16] for row in rows for place in (0, 16)}

    assert hashes(trace).isdisjoint(hashes(day[0]))


def test_a_server_with_tiers_says_so(checkpoint: Path) -> None:
    options = EngineOptions(str(checkpoint), max_model_len=128, num_gpu_blocks_override=33)
    engine = AsyncEngine.load(options)
    assert not setting_of(engine, options).has_tiers
    assert setting_of(engine, replace(options, kv_tier=[FakeTier()])).has_tiers


def test_files_take_no_more_than_they_may(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    writer = TraceWriter(path, "header\n", 4000)
    for number in range(300):
        writer.write(f"{number} {'x' * 90}\n")
    writer.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + NUM_OLDER
    assert sum(file.stat().st_size for file in files) <= 4000
    assert all(file.read_text().startswith("header\n") for file in files)
    newest = path.read_text().splitlines()
    assert newest[-1].startswith("299 ")
    older = path.with_name("day.jsonl.1").read_text().splitlines()
    assert int(older[-1].split()[0]) == int(newest[1].split()[0]) - 1
    for _ in range(5):  # starts without a request push nothing out
        TraceWriter(path, "new\n", 4000).close()
    assert path.read_text() == "new\n"
    assert path.with_name("day.jsonl.1").read_text().splitlines() == newest


def test_a_row_that_a_crash_cut_off_is_left_out(
    day: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(day[0].read_bytes()[:-20])
    trace = TraceFile(torn)
    assert sum(1 for _ in trace) == 59
    assert trace.faults.examples == []


@pytest.mark.parametrize("place", ["/no/such/folder/day.jsonl", "/"])
def test_a_file_that_cannot_be_written_is_refused_by_name(place: str) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be written") as refusal:
        TraceWriter(Path(place), "header\n", 4000)
    assert refusal.value.field == "record_trace"


def test_serving_goes_on_where_the_disk_fails(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(self: TraceWriter, line: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(TraceWriter, "write", fail)
    with serving(checkpoint, tmp_path / "day.jsonl") as (url, _):
        assert [ask(url, number) for number in range(3)] == [200] * 3
    assert caplog.text.count("no space left") == 1


def test_a_disk_that_hangs_holds_no_end_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk_is_asked, disk_answers = Event(), Event()

    def write(self: TraceWriter, line: str) -> None:
        disk_is_asked.set()
        disk_answers.wait()

    monkeypatch.setattr(TraceWriter, "write", write)
    monkeypatch.setattr(recorder, "MOST_QUEUED", 2)
    monkeypatch.setattr(recorder, "_LAST_WORDS_S", 0.05)
    scheduler = Scheduler(
        CacheManager(8, 4), max_num_batched_tokens=16, max_num_seqs=4, max_model_len=32
    )
    setting = RecordedSetting(8, 4, "lru", True, 16, 4, 32)
    recording = recorder.Recorder(tmp_path / "day.jsonl", setting, 4000)
    for number in range(5):
        sequences = scheduler.add(request(str(number), [1, 2]))
        recording.came(sequences, number)
        recording.went(sequences, number)
        assert disk_is_asked.wait(5)
    end = Thread(target=recording.close, daemon=True)
    end.start()
    end.join(5)
    assert not end.is_alive()
    assert "the disk hangs" in caplog.text
    disk_answers.set()
