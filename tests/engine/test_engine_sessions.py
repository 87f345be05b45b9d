"""Sessions: what an engine remembers, keeps in tiers, and reads out of files of whoever."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from planted_errors import require_nothing_left

from checkpoints import CASES, write_checkpoint
from pagoda.cache import block
from pagoda.cache.prefix import PrefixIndex, packed
from pagoda.cache.prefix_pool import PrefixPool
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.engine.sessions.blocks import SessionBlocks
from pagoda.engine.sessions.errors import (
    NothingCachedError,
    SessionFailedError,
    SessionFileError,
    UnknownSessionError,
)
from pagoda.engine.sessions.file import SessionFiles
from pagoda.engine.sessions.manifest import manifest_of, read_manifest
from pagoda.engine.sessions.session import Session, read_session
from pagoda.engine.sessions.sessions import MOST_TENANTS, Sessions
from pagoda.engine.transfers.incoming import IncomingPrefix
from pagoda.errors import InvalidRequestError, RefusedError
from pagoda.request import RequestOptions, SamplingParams
from pagoda.tiers.key_file import write_new_secret
from pagoda.tiers.names import BlockName
from tiers.fake_tier import FakeTier

BLOCK_SIZE = 4
NUM_BLOCKS = 64
NUM_MUTATIONS = 400
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
TEXT = "The pagoda has five floors, and the bells of evening"
Make = Callable[..., LLM]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("key") / "key"
    write_new_secret("file", file)
    return str(file)


@pytest.fixture(scope="module")
def make(tiny_model: Model, key_file: str) -> Iterator[Make]:
    made: list[LLM] = []

    def make(*tiers: FakeTier, model: Model = tiny_model, **options: object) -> LLM:
        given: dict[str, Any] = {
            "num_gpu_blocks_override": NUM_BLOCKS, "block_size": BLOCK_SIZE,
            "kv_tier": list(tiers) or None, "kv_tier_key_file": key_file,
        }  # fmt: skip
        made.append(LLM.from_engine(connect(model, EngineOptions(**(given | options)))))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def full(num_tokens: int) -> int:
    return num_tokens // BLOCK_SIZE * BLOCK_SIZE


def say(llm: LLM, prompt: Any = TEXT, **options: Any) -> list[int]:
    """The tokens of a prompt and its answer."""
    [output] = llm.generate([prompt], GREEDY, use_tqdm=False, **options)
    return [*output.prompt_token_ids, *output.outputs[0].token_ids]


def num_cached(llm: LLM, tokens: list[int], **options: Any) -> int:
    [output] = llm.generate([tokens], GREEDY, use_tqdm=False, **options)
    assert output.num_cached_tokens is not None
    return output.num_cached_tokens


def make_said(make: Make) -> LLM:
    """One that has a session."""
    llm = make()
    say(llm, session_id="tea")
    return llm


def exported(llm: LLM, session_id: str) -> bytes:
    told = llm.sessions.export("", session_id)
    with told.file:
        content = told.file.read()
    assert len(content) == told.num_bytes
    return content


# ---- what is remembered ----------------------------------------------------------------------


def test_the_last_request_of_a_session_is_what_it_knows(make: Make) -> None:
    llm = make()
    assert llm.sessions.known("") == []
    first = say(llm, session_id="tea")
    longer = say(llm, [*first, 7, 8], session_id="tea", cache_salt="milk")
    say(llm, "nobody's")
    [session] = llm.sessions.known("")
    assert (session.session_id, session.cache_salt) == ("tea", "milk")
    assert session.token_ids() == longer[:-1], "the last token is never put through the model"
    assert "milk" not in repr(session)
    engine = llm.engine
    engine.add(engine.intake.request("1", TEXT, GREEDY, RequestOptions(session_id="early")))
    engine.abort("1")
    assert len(llm.sessions.known("")) == 1, "nothing of it was computed"
    engine.add(engine.intake.request("1", TEXT, GREEDY, RequestOptions(session_id="early")))
    engine.step()
    engine.step()
    engine.abort("1")
    early, _ = llm.sessions.known("")
    assert (early.session_id, early.token_ids()[:4]) == ("early", first[:4])
    llm.sessions.forget("", "tea")
    with pytest.raises(UnknownSessionError):
        llm.sessions.forget("", "tea")


def test_bounds_are_each_tenants_own() -> None:
    sessions = Sessions(most=3, most_bytes=100)

    def put(tenant: str, name: str, num_tokens: int = 1) -> None:
        sessions.put(Session(tenant, name, packed([1] * num_tokens), 0.0))

    put("bob", "his")
    for name in "abcd":
        put("ann", name)
    assert [each.session_id for each in sessions.of("ann")] == ["d", "c", "b"]
    put("ann", "b", 25)
    assert [each.session_id for each in sessions.of("ann")] == ["b"], (
        "100 bytes are all it may have"
    )
    put("ann", "e", 500)
    assert [each.session_id for each in sessions.of("ann")] == ["e"]
    assert [each.session_id for each in sessions.of("bob")] == ["his"]
    for number in range(MOST_TENANTS + 5):
        put(f"made up {number}", "x")
    assert sessions.of("bob") == sessions.of("made up 4") == []
    assert sessions.forget("made up 9", "x")
    put("bob", "his")
    assert sessions.of("made up 5") != [], "a tenant without any takes nobody's place"
    assert sessions.of(f"made up {MOST_TENANTS + 4}")


@pytest.mark.parametrize("wrong", ["", "x" * 257, "a\nb", "\ud800", 7, b"x"])
def test_an_id_is_a_short_printable_text(make: Make, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="session_id"):
        RequestOptions(session_id=wrong)


# ---- in tiers --------------------------------------------------------------------------------


def test_what_was_saved_is_restored_in_another_engine(make: Make) -> None:
    near, far = FakeTier("near", is_shared=True), FakeTier("far", is_shared=True)
    first = make(near, far)
    tokens = say(first, session_id="tea", cache_salt="milk")
    whole = full(len(tokens) - 1)
    assert not near.frames, "shared tiers take what was found a second time"
    assert first.sessions.save("", "tea").num_saved_tokens == whole
    assert first.sessions.save("", "tea").num_saved_tokens == whole, "once more, nothing to store"
    for name in sorted(near.frames)[::2]:  # in part on one, in part on the other
        del near.frames[name]
    second = make(near, far)
    expected = say(first, tokens, cache_salt="milk")
    present = second.sessions.restore("", "tea")
    assert (present.num_tokens, present.num_cached_tokens) == (len(tokens) - 1, whole)
    assert present.reason is None
    second.engine.scheduler.cache.check_integrity()
    require_nothing_left(second.engine, NUM_BLOCKS)
    near.frames.clear()
    far.frames.clear()
    assert num_cached(second, tokens, cache_salt="milk") == whole
    assert say(second, tokens, cache_salt="milk") == expected
    assert num_cached(second, tokens) == 0, "without its salt nobody finds it"
    with pytest.raises(UnknownSessionError):
        second.sessions.restore("ann", "tea")


def test_a_tier_that_fails_costs_no_more_than_the_session(make: Make) -> None:
    tier = FakeTier(is_shared=True)
    llm = make(tier)
    tokens = say(llm, session_id="tea")
    tier.fault = "error"
    with pytest.raises(SessionFailedError, match="fake did not take it"):
        llm.sessions.save("", "tea")
    tier.fault = None
    assert llm.sessions.save("", "tea").num_saved_tokens == full(len(tokens) - 1)
    for fault in ("missing", "torn", "wrong", "half", "panic"):
        other = make(tier)
        kept = dict(tier.frames)
        tier.fault = fault
        with pytest.raises(UnknownSessionError):
            other.sessions.restore("", "tea")
        tier.fault, tier.frames = None, kept
    other = make(tier)
    names = list(tier.frames)
    del tier.frames[names[5]]  # a block in the middle
    present = other.sessions.restore("", "tea")
    assert (present.num_cached_tokens, present.reason) != (full(len(tokens) - 1), None)
    assert present.reason == "not_found"
    require_nothing_left(other.engine, NUM_BLOCKS)


def test_a_copy_that_fails_costs_nobody_anything_cached(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make(FakeTier())
    tokens = say(llm, session_id="tea")

    def no_memory(block_ids: Sequence[int]) -> None:
        raise MemoryError

    monkeypatch.setattr(llm.engine.sessions.blocks, "_begin_export", no_memory)
    for ask in (llm.sessions.save, llm.sessions.export):
        with pytest.raises(SessionFailedError, match="could not be copied"):
            ask("", "tea")
    assert num_cached(llm, tokens[:-1]) == full(len(tokens) - 2)


def test_without_prefix_caching_that_is_told_and_no_missing_key(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = make(enable_prefix_caching=False)
    assert "no block leaves the engine" in caplog.text
    say(llm, session_id="tea")
    (tmp_path / "tea").write_bytes(b"")
    with (tmp_path / "tea").open("rb") as file:
        for ask in (
            lambda: llm.sessions.save("", "tea"),
            lambda: llm.sessions.restore("", "tea"),
            lambda: llm.sessions.export("", "tea"),
            lambda: llm.sessions.import_file("", file),
        ):
            with pytest.raises(RefusedError, match="enable_prefix_caching=False: blocks are found"):
                ask()


def test_a_hole_ends_what_is_saved(make: Make) -> None:
    tier = FakeTier(is_shared=True)
    llm = make(tier)
    tokens = say(llm, session_id="tea")
    whole = full(len(tokens) - 1)
    assert llm.sessions.save("", "tea").num_saved_tokens == whole
    _, *names = tier.frames  # the first is the namespace's label
    llm.reset_prefix_cache()
    del tier.frames[names[3]]
    say(llm, tokens[:9])  # the first two are in the cache, the others in the tier alone
    num_stored = len(tier.frames)
    assert llm.sessions.save("", "tea").num_saved_tokens == 3 * BLOCK_SIZE
    assert len(tier.frames) == num_stored


def test_what_is_restored_takes_no_newer_ones_place() -> None:
    sessions = Sessions()
    for used_at, expected in ((5.0, 5.0), (4.0, 5.0), (6.0, 6.0)):
        sessions.put_unless_newer(Session("ann", "tea", packed([1]), used_at))
        assert sessions.get("ann", "tea").used_at == expected
    sessions.put(Session("ann", "tea", packed([1]), 1.0))
    assert sessions.get("ann", "tea").used_at == 1.0, "whoever imports one means it"


def test_a_session_that_goes_on_while_it_is_restored_is_kept(make: Make) -> None:
    tier = FakeTier()
    llm = make(tier)
    say(llm, session_id="tea")
    llm.sessions.save("", "tea")
    [saved] = llm.sessions.known("")
    newer = replace(saved, used_at=saved.used_at + 1)
    support = llm.engine.sessions
    llm.reset_prefix_cache()
    load = tier.load

    def load_late(names: Sequence[str], timeout_s: float) -> Iterator[Any]:
        support.known.put(newer)
        return load(names, timeout_s)

    tier.load = load_late  # type: ignore[method-assign]
    support.known.forget("", "tea")
    llm.sessions.restore("", "tea")
    assert llm.sessions.known("") == [newer]


def test_a_manifest_is_whole_or_none() -> None:
    session = Session("ann", "tea", packed(range(500)), 3.5, "milk", "window:64")
    parts = dict(manifest_of(session, 64))
    assert len(parts) > 30

    def read(tenant: str = "ann", session_id: str = "tea", most: int = 4096) -> Session | None:
        return read_manifest(tenant, session_id, parts.get, 64, most)

    assert read() == session
    assert read(tenant="bob") is read(session_id="te") is read(most=500) is None
    names = list(parts)
    for number in (0, 1, 17, len(parts) - 1):
        [kept] = [parts[names[number]]]
        for spoilt in (b"\0" * 64, kept[:-1] + bytes([kept[-1] ^ 1]), None):
            if spoilt is None:
                del parts[names[number]]
            elif spoilt == kept:
                continue
            else:
                parts[names[number]] = spoilt
            is_padding = number == len(parts) - 1 and spoilt is not None and kept[-1] == 0
            assert is_padding or read() is None
            parts[names[number]] = kept
    assert read() == session


def test_bytes_of_no_session_are_none() -> None:
    session = Session("ann", "tea", packed(range(50)), 3.5, "\ud800", "")
    told = session.to_bytes()
    assert read_session("ann", told) == session
    random = Random(1)
    for _ in range(300):
        spoilt = bytearray(told)
        spoilt[random.randrange(len(told) - 200)] = random.randrange(256)
        found = read_session("ann", bytes(spoilt[: random.choice([None, 3, 40])]))
        assert found is None or found.num_tokens == 50


# ---- in files --------------------------------------------------------------------------------


def test_a_pool_that_is_short_takes_the_first_part_and_nobody_gives_way(make: Make) -> None:
    llm = make()
    tokens = say(llm, session_id="tea")
    content = exported(llm, "tea")
    busy = make()
    engine = busy.engine
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    for number in range(2):
        prompt = f"{number} is busy with something else: {'x' * 70}"[:66]
        engine.add(engine.intake.request(str(number), prompt, long))
    for _ in range(60):
        engine.advance()
        cache = engine.scheduler.cache
        if cache.num_free_blocks <= 6:
            break
    room = cache.num_free_blocks
    assert 0 < room * BLOCK_SIZE < full(len(tokens) - 1)
    present = busy.sessions.import_file("", io.BytesIO(content))
    assert present.reason == "no_room"
    assert present.num_cached_tokens == room * BLOCK_SIZE
    assert cache.num_free_blocks == room
    assert engine.scheduler.stats().num_preemptions == 0
    while engine.has_unfinished:
        engine.advance()
        engine.news.clear()
    require_nothing_left(engine, NUM_BLOCKS)


def test_each_piece_costs_the_same_however_much_came_before(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are looked up or made, and references that are taken, a block."""
    llm, counts = make(num_gpu_blocks_override=128), Counter[str]()

    def count(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            counts[name] += 1
            return real(*given, **named)

        monkeypatch.setattr(owner, name, counted)

    content, num_rows = {}, {}
    for session_id, length in (("short", 36), ("long", 108)):
        tokens = say(llm, "x" * length, session_id=session_id)
        content[session_id], num_rows[session_id] = exported(llm, session_id), len(tokens) // 4
    assert num_rows["long"] > 2 * num_rows["short"]
    for owner, name in ((PrefixIndex, "find"), (PrefixPool, "acquire"), (block, "packed")):
        count(owner, name)
    monkeypatch.setattr(llm.engine.sessions.blocks, "piece_rows", 1)
    of_a_row = {}
    for session_id in content:
        llm.reset_prefix_cache()
        counts.clear()
        present = llm.sessions.import_file("", io.BytesIO(content[session_id]))
        assert present.reason is None
        of_a_row[session_id] = counts.total() / num_rows[session_id]
    assert of_a_row["long"] <= 1.1 * of_a_row["short"]


@pytest.mark.parametrize(("length", "is_waiting"), [(100, True), (80, False)])
def test_a_session_that_comes_gives_way_to_whoever_needs_its_room(
    make: Make, monkeypatch: pytest.MonkeyPatch, length: int, is_waiting: bool
) -> None:
    content = exported(make_said(make), "tea")
    llm = make(num_gpu_blocks_override=32)
    engine, rows, passes = llm.engine, SessionFiles.rows, Counter[str]()
    answers = SamplingParams(temperature=0, max_tokens=28, ignore_eos=True)
    monkeypatch.setattr(engine.sessions.blocks, "piece_rows", 1)

    def meanwhile() -> None:
        engine.add(engine.intake.request("1", [7] * length, answers))
        engine.advance()
        assert engine.scheduler.stats().num_running == 1
        assert (len(engine.scheduler.loads.sessions) == 0) == is_waiting
        while engine.scheduler.loads.sessions:
            engine.advance()
            assert engine.scheduler.has_unfinished
        engine.scheduler.cache.check_integrity()

    def interrupted(self: SessionFiles, *given: Any) -> Iterator[Any]:
        passes["all"] += 1
        for number, row in enumerate(rows(self, *given)):
            if (passes["all"], number) == (2, 10):
                meanwhile()
            yield row

    monkeypatch.setattr(SessionFiles, "rows", interrupted)
    present = llm.sessions.import_file("", io.BytesIO(content))
    assert present.reason == "no_room"
    assert present.num_cached_tokens < full(present.num_tokens)
    outputs = engine.news.take()
    while engine.has_unfinished:
        engine.advance()
        outputs += engine.news.take()
    assert sum(each.finished for each in outputs) == 1
    assert engine.scheduler.stats().num_preemptions == 0
    require_nothing_left(engine, 32)


@pytest.mark.parametrize("starts_over", [False, True])
def test_nothing_more_comes_once_the_cache_was_reset(
    make: Make, monkeypatch: pytest.MonkeyPatch, starts_over: bool
) -> None:
    content = exported(make_said(make), "tea")
    llm = make()
    monkeypatch.setattr(llm.engine.sessions.blocks, "piece_rows", 4)
    put = SessionBlocks.put

    def put_late(self: SessionBlocks, prefix: IncomingPrefix, start: int, rows: Any) -> int:
        if start == 8 and starts_over:
            llm.engine.scheduler.start_over(())
        elif start == 8:
            llm.engine.reset_prefix_cache()
        return put(self, prefix, start, rows)

    monkeypatch.setattr(SessionBlocks, "put", put_late)
    present = llm.sessions.import_file("", io.BytesIO(content))
    assert (present.num_cached_tokens, present.reason) == (0, "no_room")
    require_nothing_left(llm.engine, NUM_BLOCKS)


def test_what_is_computed_or_cached_meanwhile_is_not_brought_twice(make: Make) -> None:
    llm = make()
    tokens = say(llm, session_id="tea")
    content, whole = exported(llm, "tea"), full(len(tokens) - 1)
    other = make()
    engine = other.engine
    engine.add(engine.intake.request("1", tokens[:30], GREEDY))
    engine.advance()
    half = other.sessions.import_file("", io.BytesIO(content), "half")
    assert half.num_cached_tokens in (whole, 28)
    engine.abort("1")
    assert other.sessions.import_file("", io.BytesIO(content)).num_cached_tokens == whole
    stats = engine.scheduler.cache.stats()
    again = other.sessions.import_file("", io.BytesIO(content))
    assert (again.num_cached_tokens, again.reason) == (whole, None)
    assert engine.scheduler.cache.stats().num_cached_blocks == stats.num_cached_blocks
    require_nothing_left(engine, NUM_BLOCKS)


def test_blocks_that_are_gone_are_left_out_and_said(make: Make) -> None:
    llm = make()
    whole = full(len(say(llm, session_id="tea")) - 1)
    for number in range(20):
        say(llm, f"{number} go!")
        told = llm.sessions.export("", "tea")
        if told.num_exported_tokens < whole:
            break
        told.file.close()
    with told.file:
        present = make().sessions.import_file("", told.file)
    assert present.num_cached_tokens == told.num_exported_tokens
    assert present.reason == "not_in_file"
    assert 0 < present.num_cached_tokens < whole
    llm.reset_prefix_cache()
    with pytest.raises(NothingCachedError):
        llm.sessions.export("", "tea")


def test_windows_and_retention_travel_too(
    make: Make, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_checkpoint(tmp_path_factory.mktemp("windows"), CASES["gemma3"])
    model = load_model(EngineOptions(model=str(folder), max_model_len=128))
    tier = FakeTier()
    blocks = 512
    options: dict[str, Any] = {
        "model": model, "request_kv_retention": True, "num_gpu_blocks_override": blocks,
    }  # fmt: skip
    first = make(tier, **options)
    kept = {"kv_retention": "streaming:sinks=4,window=32"}
    for session_id, how in (("imported", {}), ("restored", kept)):
        tokens = say(first, session_id=session_id, **how)
        whole, expected = full(len(tokens) - 1), say(first, tokens, **how)
        assert first.sessions.save("", session_id).num_saved_tokens == whole
        second = make(tier, **options)
        if session_id == "imported":
            tier.fault = "missing"
            content = io.BytesIO(exported(first, session_id))
            present = second.sessions.import_file("", content)
        else:
            present = second.sessions.restore("", session_id)
        assert (present.num_cached_tokens, present.reason) == (whole, None)
        tier.fault = "missing"  # what is found now is there
        [output] = second.generate([tokens], GREEDY, use_tqdm=False, **how)
        assert output.num_cached_tokens == whole
        assert output.outputs[0].token_ids == expected[len(tokens) :]
        tier.fault = None
        require_nothing_left(second.engine, blocks)


def test_a_file_that_was_changed_anywhere_is_refused_whole(make: Make) -> None:
    llm = make()
    tokens = say(llm, session_id="tea")
    say(llm, "another one of as many tokens, " + TEXT[31:], session_id="other")
    whole, other = exported(llm, "tea"), exported(llm, "other")
    target = make()
    random, reasons = Random(3), set[str]()
    for number in range(NUM_MUTATIONS):
        spoilt = mutated(random, whole, other, number)
        # Noise of a byte may be what was there, and a file's prefix and label be the other's.
        if spoilt in (whole, other):
            continue
        with pytest.raises(SessionFileError) as told:
            target.sessions.import_file("", io.BytesIO(spoilt))
        reasons.add(told.value.value)  # type: ignore[arg-type]
        assert target.sessions.known("") == []
    assert reasons == {"torn", "form", "version", "num_tokens", "length", "seal", "block"}
    assert target.engine.scheduler.cache.stats().num_cached_blocks == 0
    assert target.sessions.import_file("", io.BytesIO(whole)).reason is None
    assert num_cached(target, tokens) == full(len(tokens) - 1)


def mutated(random: Random, whole: bytes, other: bytes, number: int) -> bytes:
    """What becomes of a file on a bad way, or in bad hands."""
    at = random.randrange(len(whole)) if number % 2 else random.randrange(1500)
    length = random.choice([1, 2, 16, 500, 5000])
    way = number // 2 % 7
    if way == 0:
        return whole[:at] + bytes([whole[at] ^ (1 << random.randrange(8))]) + whole[at + 1 :]
    if way == 1:
        return whole[:at]
    if way == 2:
        noise = random.randbytes(len(whole[at : at + length]))
        return whole[:at] + noise + whole[at + len(noise) :]
    if way == 3:
        return whole + random.randbytes(length)
    if way == 4:
        return whole[:at] + random.randbytes(length) + whole[at:]
    if way == 5:  # another file's parts
        return whole[:at] + other[at:] if at > 40 else other[:at] + whole[at:] + b"x"
    field, value = random.randrange(7), random.choice([0, 1, 2**31, 2**32 - 1])
    fields = list(struct.unpack_from("<HIIIIII", whole, 8))
    fields[field] = value % 2**16 if field == 0 else value
    return whole[:8] + struct.pack("<HIIIIII", *fields) + whole[34:] + b"y"


def test_nothing_is_allocated_by_what_a_file_claims(make: Make) -> None:
    llm = make()
    say(llm, session_id="tea")
    whole = exported(llm, "tea")
    claims = [struct.pack("<8sHIIIIII", whole[:8], 1, *[2**32 - 1] * 6)]
    for field in range(6):
        fields = list(struct.unpack_from("<IIIIII", whole, 10))
        fields[field] = 2**32 - 1
        claims.append(whole[:10] + struct.pack("<IIIIII", *fields) + whole[34:])
    for _ in range(2):  # the first time something is imported
        tracemalloc.start()
        for claim in claims:
            with pytest.raises(SessionFileError):
                llm.sessions.import_file("", io.BytesIO(claim))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("given", ["/data/tea", Path("/data/tea"), 5, None, io.StringIO("tea")])
def test_what_is_no_file_of_bytes_is_refused_by_name(make: Make, given: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be a file, opened as by") as refused:
        make().sessions.import_file("", given)
    assert refused.value.field == "file"


def test_where_no_tier_is_in_use_that_is_told(make: Make) -> None:
    llm = make(kv_tier="host:size=1MiB")
    with pytest.raises(RefusedError, match=r"kv_tier='none in use': sessions .* host is none"):
        llm.sessions.save("", "tea")


def test_a_file_for_disk_is_gone_when_it_is_closed(make: Make, tmp_path: Path) -> None:
    llm = make()
    say(llm, session_id="tea")
    told = llm.sessions.export("", "tea")
    assert not Path(str(told.file.name)).exists()
    told.file.close()


def test_names_of_manifests_are_their_tenants() -> None:
    from pagoda.engine.sessions.manifest import manifest_name

    names = {
        manifest_name(tenant, session_id, number)
        for tenant, session_id in (("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"))
        for number in range(3)
    }
    assert len(names) == 12
    assert all(isinstance(name, BlockName) for name in names)
