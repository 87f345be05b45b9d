"""Files of requests: each format, what is broken in them, and what is still being written."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from pagoda.errors import InvalidOptionError, shorten
from pagoda.replay.faults import MOST_EXAMPLES
from pagoda.replay.formats.pagoda_rows import header_line, row_line
from pagoda.replay.formats.request_log import by_words
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.trace import TracedRequest
from pagoda.replay.trace_file import TraceFile
from replay.traces import mooncake_row

SETTING = RecordedSetting(64, 16, "lru", True, 512, 8, 1024)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def written(path: Path, *lines: str) -> TraceFile:
    path.write_text("".join(line if line.endswith("\n") else line + "\n" for line in lines))
    return TraceFile(path)


def own_row(number: int, *, prompt: int = 40, output: int = 9, step: int = 0) -> str:
    request = TracedRequest(
        arrival_s=number / 10,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        unit_ids=[],
        unit_size=16,
        num_known_tokens=0,
        tenant="abc",
        arrival_step=step,
    )
    hashes = [bytes([number, at] * 4) for at in range((prompt + output) // 16)]
    return row_line(number, request, hashes, "length")


def test_mooncakes_rows(path: Path) -> None:
    trace = written(path, mooncake_row([7, 8], 600, 5, 1500), mooncake_row([7, 8, 9], 600, 500))
    first, second = trace
    assert (first.arrival_s, first.num_prompt_tokens, first.num_output_tokens) == (1.5, 600, 5)
    assert (list(first.unit_ids), first.unit_size, first.num_known_tokens) == ([7, 8], 512, 600)
    assert second.num_known_tokens == 1100  # an id more than the prompt has: of the answer
    assert second.arrival_s == 1.5  # times never go back
    assert (trace.name, trace.unit_size, trace.recorded) == ("trace.jsonl", 512, None)
    assert len(list(trace)) == 2  # and again


def test_a_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(gzip.compress(mooncake_row([1], 512).encode() * 3))
    assert len(list(TraceFile(path))) == 3
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InvalidOptionError, match=r"trace='.*trace.bin': cannot be read"):
        list(TraceFile(path))


BROKEN = {
    "{": "row='{': must be JSON",
    "[1]": r"row=\[1\]: must be a JSON object",
    mooncake_row([1], -5): "input_length=-5: must be a whole number from 1",
    mooncake_row([1, 2, 3], 512): r"hash_ids=\[1, 2, 3\]: must be a list of at most 2",
    mooncake_row([1.5], 512): r"hash_ids=\[1.5\]: must be whole numbers of 64 bits",
    mooncake_row([-1], 512): r"hash_ids=\[-1\]: must be whole numbers",
    mooncake_row([1], 512, True): "output_length=True",
    mooncake_row([1], 512, at_ms=float("nan")): "timestamp=nan: must be a number",
    mooncake_row([1], 512).replace("512", '"512"'): "input_length='512'",
    "{}": "input_length=None",
}


@pytest.mark.parametrize("row", BROKEN)
def test_a_broken_row_is_told_and_the_rest_is_read(path: Path, row: str) -> None:
    trace = written(path, mooncake_row([1], 512), row, mooncake_row([1], 512))
    assert len(list(trace)) == 2
    assert trace.faults.count == 1
    assert re.match(f"line 2: {BROKEN[row]}", trace.faults.examples[0])


def test_many_broken_rows_are_counted(path: Path) -> None:
    trace = written(path, *["no"] * 30, mooncake_row([1], 512))
    for _ in range(2):
        assert len(list(trace)) == 1
        assert (trace.faults.count, len(trace.faults.examples)) == (30, MOST_EXAMPLES)


def test_pagodas_own_rows(path: Path) -> None:
    rows = [own_row(number, step=3 * number) for number in range(40)]
    random.Random(1).shuffle(rows)
    trace = written(path, header_line(SETTING), *rows)
    assert trace.recorded == SETTING
    requests = list(trace)
    assert [each.arrival_step for each in requests] == [3 * number for number in range(40)]
    assert (requests[5].tenant, requests[5].num_known_tokens) == ("abc", 48)
    assert list(requests[0].unit_ids) == [0x0000, 0x0100010001000100, 0x0200020002000200]
    assert trace.faults.count == 0


def test_a_trace_that_is_being_written(path: Path) -> None:
    path.write_text(header_line(SETTING) + own_row(1) + own_row(0)[:30])
    trace = TraceFile(path)
    assert len(list(trace)) == 1
    with path.open("a") as file:
        file.write(own_row(0)[30:])
    assert [each.arrival_s for each in trace] == [0.0, 0.1]
    assert trace.faults.count == 0
    path.write_text(header_line(SETTING) + own_row(0)[:30] + "\n" + own_row(1))
    assert len(list(trace)) == 1
    assert trace.faults.count == 1  # in the middle it is a fault


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hashes", "abc", "hashes='abc': must be 16 hexadecimal digits for each of at most 3"),
        ("hashes", "00" * 32, "must be 16 hexadecimal digits for each of at most 3"),
        ("number", None, "number=None"),
        ("tenant", 5, "tenant=5: must be a text"),
        ("cache_hint", "keep", "cache_hint='keep': must be one of pin, session, none"),
        ("cache_hint", ["pin"], "cache_hint=['pin']: must be one of"),
        ("step", -1, "step=-1"),
        ("turn", -0.5, "turn=-0.5: must be a number from 0 to"),
        ("turn", 1e9, "turn=1000000000.0: must be a number from 0 to"),
        ("turn", float("nan"), "turn=nan"),
        ("turn", True, "turn=True"),
    ],
)
def test_broken_rows_of_pagodas_own(path: Path, field: str, value: object, message: str) -> None:
    row = json.dumps(json.loads(own_row(0)) | {field: value})
    trace = written(path, header_line(SETTING), row)
    assert list(trace) == []
    assert message in trace.faults.examples[0]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"pagoda_trace": 2}, "pagoda_trace=2: must be 1"),
        ({"pagoda_trace": 1}, "block_size=None"),
        ({"pagoda_trace": 1, "block_size": 16, "server": {"x": 1}}, "must map some of block_size"),
        ({"pagoda_trace": 1, "block_size": 16, "server": {}}, "num_blocks=None: must be a whole"),
    ],
)
def test_a_broken_header_is_refused(path: Path, header: object, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        written(path, json.dumps(header))


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("max_model_len", "abc", "must be a whole number from 1"),
        ("max_num_seqs", None, "must be a whole number from 1"),
        ("num_blocks", 0, "must be a whole number from 1"),
        ("block_size", True, "must be a whole number from 1"),
        ("long_prefill_token_threshold", 1.5, "must be a whole number from 0"),
        ("steps_ahead", "q", "must be a whole number from 0"),
        ("steps_ahead", -1, "must be a whole number from 0"),
        ("streams_step_aside", "no", "must be true or false"),
        ("enable_prefix_caching", 3, "must be true or false"),
        ("eviction_policy", 3, "must be a text"),
        ("scheduling_policy", None, "must be a text"),
        ("tenant_quotas", 3, "must be a list of quotas, one a tenant"),
        ("tenant_quotas", [{"tenant": "a", "floor": -1}], "must be a list of quotas"),
        ("tenant_quotas", [{"tenant": "a"}] * 2, "must be a list of quotas"),
    ],
)
def test_a_broken_setting_is_told_by_its_field(
    path: Path, field: str, value: object, limit: str
) -> None:
    header = json.loads(header_line(SETTING))
    header["server"][field] = value
    with pytest.raises(InvalidOptionError, match=re.escape(f"{field}={shorten(value)}: {limit}")):
        written(path, json.dumps(header))


def test_a_setting_that_an_older_server_did_not_have_is_the_usual_one(path: Path) -> None:
    header = json.loads(header_line(SETTING))
    del header["server"]["streams_step_aside"], header["server"]["tenant_quotas"]
    assert written(path, json.dumps(header)).recorded == SETTING


def test_a_log_of_requests(path: Path) -> None:
    turns = [{"role": "user", "content": "a" * 400}]
    longer = [*turns, {"role": "assistant", "content": "b" * 40}]
    trace = written(
        path,
        json.dumps({"messages": turns, "timestamp": 1000.0, "max_tokens": 7}),
        json.dumps({"body": {"messages": longer}, "timestamp": 1002.5}),
        json.dumps({"prompt": list(range(40)), "usage": {"completion_tokens": 3}}),
        json.dumps({"prompt": list(range(35)), "response": {"usage": {"output_tokens": 4}}}),
        json.dumps({"prompt": "c" * 59, "tenant": "t"}),
        json.dumps({"prompt": [1, -1]}),
        json.dumps({"messages": [1]}),
        json.dumps({"prompt": ""}),
    )
    first, second, third, fourth, fifth = trace
    assert [each.num_output_tokens for each in (first, third, fourth, second)] == [7, 3, 4, 16]
    assert (first.arrival_s, second.arrival_s) == (0, 2.5)
    assert first.num_prompt_tokens == 102  # 405 characters in pieces of four
    assert list(second.unit_ids[:6]) == list(first.unit_ids)
    assert list(third.unit_ids) == list(fourth.unit_ids)
    assert (third.num_prompt_tokens, len(third.unit_ids)) == (40, 2)
    assert (fifth.tenant, fifth.num_known_tokens) == ("t", 0)
    assert trace.faults.count == 3


def test_a_log_by_words(path: Path) -> None:
    path.write_text(json.dumps({"prompt": "one two  three\n" * 20}))
    [request] = TraceFile(path, "requests-by-words")
    assert (request.num_prompt_tokens, len(request.unit_ids)) == (60, 3)


def test_words_take_the_space_before_them_and_blanks_behind_the_last_one_take_no_time() -> None:
    assert by_words(" one two\u3000\n three \n") == [b" one", b" two", "\u3000\n three".encode()]
    assert by_words("") == by_words(" \n") == []
    assert by_words("one" + " " * 2_000_000) == [b"one"]  # hours, if each blank is tried anew


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"prompt": "hi", "timestamp": 1_700_000_000_000},
            "timestamp=1700000000000: must be a number of seconds from 0 to 1,000,000,000,000",
        ),
        (
            {"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []},
            "timestamp=-1: must be a number of milliseconds from 0 to 1,000,000,000,000,000",
        ),
    ],
)
def test_a_time_that_cannot_be_is_told_its_unit_and_its_limits(
    row: dict[str, object], told: str, path: Path
) -> None:
    trace = written(path, json.dumps(row))
    assert list(trace) == []
    [example] = trace.faults.examples
    assert example == f"line 1: {told}"


@pytest.mark.parametrize("text", ["", "\n\n", "no json\n", '{"a": 1}\n', "[]\n", "\xff"])
def test_a_file_of_no_known_format_is_refused(path: Path, text: str) -> None:
    path.write_text(text, "latin-1")
    with pytest.raises(InvalidOptionError, match="has no row of a known format"):
        TraceFile(path)


def test_other_files_and_formats_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be read: No such file"):
        TraceFile(path)
    with pytest.raises(InvalidOptionError, match="cannot be read: Is a directory"):
        TraceFile(tmp_path)
    path.write_text(mooncake_row([1], 512))
    with pytest.raises(InvalidOptionError, match="format='csv': one of mooncake, pagoda"):
        TraceFile(path, "csv")
    with pytest.raises(InvalidOptionError, match=r"no row of a known format \(pagoda\)"):
        TraceFile(path, "pagoda")
