"""Engines with tiers: whatever these do, answers are those of an engine without any."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ahead import let_run_ahead
from planted_errors import require_nothing_left
from tiered import let_load

from checkpoints import CASES, write_checkpoint
from pagoda.cache import block
from pagoda.cache.prefix import BlockKey, block_key
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.request import SamplingParams
from tiers.fake_tier import FAULTS, FakeTier

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
NUM_BLOCKS = 128
BLOCK_SIZE = 4
SHARED = "The pagoda has five floors, "
PROMPTS = [SHARED + end for end in ("one roof", "two", "a stair", "no lift at all")] + [
    "a wholly other prompt, which nobody else has",
    "and one that is short",
    "x" * 61,
    "y" * 60,
]


@pytest.fixture(scope="module", params=["in step", "ahead"])
def make(tiny_model: Model, request: pytest.FixtureRequest) -> Iterator[Any]:
    engines: list[Engine] = []

    def make(*tiers: FakeTier | str, model: Model = tiny_model, **options: object) -> LLM:
        given: dict[str, object] = {
            "num_gpu_blocks_override": NUM_BLOCKS, "block_size": BLOCK_SIZE,
            "kv_tier": list(tiers) or None,
        }  # fmt: skip
        engine = connect(model, EngineOptions(**(given | options)))  # type: ignore[arg-type]
        engines.append(engine)
        if tiers:
            let_load(engine)
        return LLM.from_engine(let_run_ahead(engine) if request.param == "ahead" else engine)

    logging.getLogger("pagoda").setLevel(logging.CRITICAL + 1)  # faults are meant
    yield make
    logging.getLogger("pagoda").setLevel(logging.NOTSET)
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def expected(make: Any) -> list[list[int]]:
    """What an engine without tiers answers."""
    return tokens_of(answers(make()))


@pytest.fixture(scope="module")
def frames(make: Any) -> dict[str, bytes]:
    """Those of all prompts and answers."""
    tier = FakeTier()
    stocking = make(tier)
    answers(stocking)
    settle(stocking)
    return tier.frames


@pytest.fixture(scope="module")
def tiered(make: Any) -> LLM:
    """An engine with two tiers, for several tests."""
    return make(FakeTier("near"), FakeTier("far"))


@pytest.fixture
def tiers(tiered: LLM, frames: dict[str, bytes]) -> tuple[FakeTier, FakeTier]:
    """Its tiers: the near one has all frames, the far one none. The pool has nothing."""
    tiered.reset_prefix_cache()
    settle(tiered)
    shelves = [place.shelf for place in tiered.engine.transfers._mover._places]
    for shelf in shelves:
        shelf.known.clear()
    let_load(tiered.engine)
    near, far = (shelf.tier for shelf in shelves)
    near.fault = far.fault = None
    near.frames, far.frames = dict(frames), {}
    return near, far


def answers(llm: LLM, prompts: list[str] = PROMPTS) -> list[RequestOutput]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return outputs


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def settle(llm: LLM) -> None:
    """Until all that is to be stored is."""
    transfers: Any = llm.engine.transfers
    assert not transfers.has_stores
    assert transfers._mover.wait_until_stored(10)


def num_loaded(llm: LLM) -> int:
    transfers: Any = llm.engine.transfers
    return int(transfers.loads.num_tokens_loaded)


def mend(tier: FakeTier, llm: LLM) -> None:
    """The tier is well, and known to be."""
    tier.fault = None
    tier.released.set()
    for place in llm.engine.transfers._mover._places:  # type: ignore[attr-defined]
        while place.readers.num_overdue(0.0):
            time.sleep(0.001)
        place.shelf.reading.succeeded()
        place.shelf.writing.succeeded()
    tier.released.clear()


def test_what_comes_from_a_tier_is_what_was_computed_to_the_last_bit(
    make: Any, expected: list[list[int]]
) -> None:
    tier = FakeTier()
    first, second = make(tier), make(tier)
    assert tokens_of(answers(first)) == expected
    settle(first)
    outputs = answers(second)
    assert tokens_of(outputs) == expected
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        num_tokens = len(second.get_tokenizer().encode(prompt))
        whole = num_tokens // BLOCK_SIZE * BLOCK_SIZE
        assert output.num_cached_tokens == min(whole, num_tokens - 1), prompt
    assert blocks_of(second) == blocks_of(first)
    assert second.engine.scheduler.cache.num_free_blocks == NUM_BLOCKS
    loads = second.engine.transfers.loads
    assert 0 < loads.num_tokens_loaded <= loads.num_tokens_asked
    assert set(loads.endings) <= {"whole", "not_found"}


def test_a_prompt_is_hashed_once_whoever_is_asked_for_it(
    tiered: LLM, tiers: tuple[FakeTier, FakeTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = list[tuple[bytes, tuple[int, ...]]]()

    def noted(parent: bytes, tokens: Sequence[int]) -> BlockKey:
        hashed.append((parent, tuple(tokens)))
        return block_key(parent, tokens)

    monkeypatch.setattr(block, "block_key", noted)
    near, _ = tiers
    kept = len(near.frames) // 2  # so that some prompts are loaded in part
    near.frames = dict(list(near.frames.items())[:kept])
    for prompt in PROMPTS:
        hashed.clear()
        answers(tiered, [prompt])
        assert len(hashed) == len(set(hashed)) > 0


def blocks_of(llm: LLM) -> dict[bytes, bytes]:
    """What the published blocks of whole prompts hold."""
    cache, encode = llm.engine.scheduler.cache, llm.get_tokenizer().encode
    keys = {
        key.hash for prompt in PROMPTS for key in cache.open().keys_of(encode(prompt), BLOCK_SIZE)
    }
    storage = llm.engine._runner._executor.storage
    if hasattr(storage, "executor"):
        storage = storage.executor.storage
    found = {
        key.hash: storage.export_block(block_id).tobytes()
        for block_id, key in cache._blocks.index.items().items()
        if key.hash in keys
    }
    assert len(found) == len(keys)
    return found


@pytest.mark.parametrize("fault", [*FAULTS, "hang", "holes"])
def test_with_every_fault_of_a_tier_answers_are_those_without_tiers(
    tiered: LLM, tiers: tuple[FakeTier, FakeTier], expected: list[list[int]], fault: str
) -> None:
    near, _ = tiers
    if fault == "holes":
        for name in sorted(near.frames)[::3]:
            del near.frames[name]
    else:
        near.fault = fault
    if fault == "hang":
        let_load(tiered.engine, compute_s=0.1)
    assert tokens_of(answers(tiered)) == expected
    before = num_loaded(tiered)
    mend(near, tiered)
    tiered.reset_prefix_cache()
    let_load(tiered.engine)
    assert tokens_of(answers(tiered)) == expected
    assert num_loaded(tiered) > before
    require_nothing_left(tiered.engine, NUM_BLOCKS)


@pytest.mark.parametrize("fault", ["half", "wrong", "hang"])
def test_a_shared_prefix_whose_load_fails_is_computed_once_for_all(
    tiered: LLM, tiers: tuple[FakeTier, FakeTier], expected: list[list[int]], fault: str
) -> None:
    tiers[0].fault = fault
    if fault == "hang":
        let_load(tiered.engine, compute_s=0.1)
    outputs = answers(tiered, PROMPTS[:4])
    mend(tiers[0], tiered)
    assert tokens_of(outputs) == expected[:4]
    assert sum(output.num_cached_tokens > 0 for output in outputs) >= 3


def test_a_prefix_lies_on_two_tiers_and_goes_from_one_to_the_other(
    tiered: LLM, tiers: tuple[FakeTier, FakeTier], expected: list[list[int]]
) -> None:
    near, far = tiers
    far.frames = dict(near.frames)
    for number, name in enumerate(sorted(near.frames)):
        if number % 2:
            del near.frames[name]
    before = num_loaded(tiered)
    assert tokens_of(answers(tiered)) == expected
    assert num_loaded(tiered) > before
    settle(tiered)
    assert near.frames.keys() >= far.frames.keys(), "what is computed or loaded is stored again"


def test_aborts_leave_nothing_wherever_a_load_is(
    tiered: LLM, tiers: tuple[FakeTier, FakeTier], expected: list[list[int]]
) -> None:
    near, engine = tiers[0], tiered.engine
    for turns in range(6):
        near.fault = "hang" if turns % 2 else None
        for number, prompt in enumerate(PROMPTS):
            engine.add(engine.intake.request(str(number), prompt, GREEDY))
        for _ in range(turns):
            engine.advance()
        for number in range(len(PROMPTS)):
            engine.abort(str(number))
        assert engine.transfers.loads.num_under_way == 0
        require_nothing_left(engine, NUM_BLOCKS)
        tiered.reset_prefix_cache()
        mend(near, tiered)
    assert tokens_of(answers(tiered)) == expected


def test_nothing_of_an_engine_waits_for_a_tier_that_hangs(
    tiered: LLM, tiers: tuple[FakeTier, FakeTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers[0].fault = "hang"
    engine, turns = tiered.engine, 0
    for name in ("_allowance_s", "_answer_s"):
        monkeypatch.setattr(engine.transfers.loads, name, lambda *given: 60.0)
    engine.add(engine.intake.request("waits", PROMPTS[0], GREEDY))
    engine.advance()
    engine.add(engine.intake.request("other", "12", GREEDY))
    while not any(output.finished for output in engine.news.outputs):
        engine.advance()
        turns += 1
    assert {output.request_id for output in engine.news.outputs} == {"other"}
    assert turns < 20
    engine.abort("waits")
    engine.news.clear()
    mend(tiers[0], tiered)
    require_nothing_left(engine, NUM_BLOCKS)


def test_a_request_that_starts_over_is_computed_and_asks_nobody(
    tiered: LLM, tiers: tuple[FakeTier, FakeTier], expected: list[list[int]]
) -> None:
    engine, near = tiered.engine, tiers[0]
    near.fault = "hang"
    engine.add(engine.intake.request("0", PROMPTS[0], GREEDY))
    engine.advance()
    assert engine.transfers.loads.num_under_way == 1
    with engine._recovery:
        raise RuntimeError("a change that broke off")
    assert engine.transfers.loads.num_under_way == 0
    mend(near, tiered)
    num_calls = len(near.calls)
    while engine.has_unfinished:
        [*_, output] = engine.step() or [None]
    assert output.outputs[0].token_ids == expected[0]
    assert "load" not in [call for call, _ in near.calls[num_calls:]]


def test_a_pool_that_is_too_small_for_all_loads_answers_all(
    make: Any, tiny_model: Model, frames: dict[str, bytes], expected: list[list[int]]
) -> None:
    tier = FakeTier()
    tier.frames = dict(frames)
    llm = make(tier, model=replace(tiny_model, max_model_len=80), num_gpu_blocks_override=24)
    assert tokens_of(answers(llm)) == expected
    assert num_loaded(llm) > 0


@pytest.mark.parametrize("options", [{"block_size": 8}, {"kv_cache_dtype": "int8_per_token_head"}])
def test_what_is_stored_otherwise_is_not_found(
    make: Any, frames: dict[str, bytes], options: dict[str, object]
) -> None:
    tier = FakeTier()
    tier.frames = dict(frames)
    llm = make(tier, **options)
    told = tokens_of(answers(llm))
    assert num_loaded(llm) == 0
    settle(llm)
    assert len(tier.frames) > len(frames), "it has frames of its own"
    llm.reset_prefix_cache()
    assert tokens_of(answers(llm)) == told
    assert num_loaded(llm) > 0


def test_another_model_finds_nothing(
    make: Any, frames: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tier = FakeTier()
    tier.frames = dict(frames)
    folder = write_checkpoint(tmp_path_factory.mktemp("other"), CASES["llama-gqa"], seed=5)
    llm = make(tier, model=load_model(EngineOptions(model=str(folder), max_model_len=128)))
    answers(llm)
    assert num_loaded(llm) == 0


def test_closing_stores_what_is_left_and_ends_all_threads(make: Any) -> None:
    tier = FakeTier("closing")
    llm = make(tier)
    answers(llm)
    llm.close()
    assert tier.frames
    assert tier.is_closed
    llm.close()
