"""Engines with tiers: whatever these do, answers are those of an engine without any."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ahead import let_run_ahead
from planted_errors import require_nothing_left

from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.request import SamplingParams
from pagoda.tiers.segment import Segment
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


def all_rows(segments: tuple[Segment, ...], row_s: float | None) -> int:
    """A gate that says yes: tiny models compute quicker than anything loads."""
    return sum(each.num_rows for each in segments)


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
            engine.transfers.loads._gate = all_rows  # type: ignore[attr-defined]
        return LLM.from_engine(let_run_ahead(engine) if request.param == "ahead" else engine)

    logging.getLogger("pagoda").setLevel(logging.CRITICAL + 1)  # faults are meant
    yield make
    logging.getLogger("pagoda").setLevel(logging.NOTSET)
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def expected(make: Any) -> list[list[int]]:
    return tokens_of(answers(make()))


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


def stocked(make: Any, *tiers: FakeTier, **options: object) -> None:
    """Let an engine fill tiers, and end."""
    llm = make(*tiers, **options)
    answers(llm)
    settle(llm)


def test_what_comes_from_a_tier_is_what_was_computed_to_the_last_bit(
    make: Any, expected: list[list[int]]
) -> None:
    tier = FakeTier()
    first = make(tier)
    assert tokens_of(answers(first)) == expected
    settle(first)
    second = make(tier)
    outputs = answers(second)
    assert tokens_of(outputs) == expected
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        num_tokens = len(second.get_tokenizer().encode(prompt))
        whole = num_tokens // BLOCK_SIZE * BLOCK_SIZE
        assert output.num_cached_tokens == min(whole, num_tokens - 1), prompt
    assert blocks_of(second).items() <= blocks_of(first).items()
    assert second.engine.scheduler.cache.num_free_blocks == NUM_BLOCKS
    loads = second.engine.transfers.loads
    assert loads.num_tokens_loaded <= loads.num_tokens_asked
    assert set(loads.endings) <= {"whole", "not_found"}


def blocks_of(llm: LLM) -> dict[bytes, bytes]:
    """What every published block of whole prompts holds."""
    engine = llm.engine
    prompts = {
        key.hash
        for prompt in PROMPTS
        for key in engine.scheduler.cache.open().keys_of(
            llm.get_tokenizer().encode(prompt), BLOCK_SIZE
        )
    }
    storage = engine._runner._executor.storage
    return {
        key.hash: storage.export_block(block_id).tobytes()
        for block_id, key in engine.scheduler.cache._blocks.index.items().items()
        if key.hash in prompts
    }


@pytest.mark.parametrize("fault", [*FAULTS, "hang", "short"])
def test_with_every_fault_of_a_tier_answers_are_those_without_tiers(
    make: Any, expected: list[list[int]], fault: str
) -> None:
    tier, far = FakeTier(), FakeTier("far")
    stocked(make, tier, far)
    for name in sorted(tier.frames)[::3]:
        del tier.frames[name]
    llm = make(tier, far)
    tier.fault = None if fault == "short" else fault
    for _ in range(2):
        assert tokens_of(answers(llm)) == expected
        llm.reset_prefix_cache()
    tier.fault = None
    tier.released.set()
    assert tokens_of(answers(llm)) == expected
    require_nothing_left(llm.engine, NUM_BLOCKS)


@pytest.mark.parametrize("fault", ["half", "wrong", "hang"])
def test_a_shared_prefix_whose_load_fails_is_computed_once_for_all(
    make: Any, expected: list[list[int]], fault: str
) -> None:
    tier = FakeTier()
    stocked(make, tier)
    llm = make(tier, max_num_seqs=4)
    tier.fault = fault
    outputs = answers(llm, PROMPTS[:4])
    tier.released.set()
    assert tokens_of(outputs) == expected[:4]
    assert sum(output.num_cached_tokens > 0 for output in outputs) >= 3


def test_aborts_leave_nothing_wherever_a_load_is(make: Any, expected: list[list[int]]) -> None:
    tier = FakeTier()
    stocked(make, tier)
    llm = make(tier)
    engine = llm.engine
    for turns in range(6):
        tier.released.clear()
        tier.fault = "hang" if turns % 2 else None
        for number, prompt in enumerate(PROMPTS):
            engine.add(engine.intake.request(str(number), prompt, GREEDY))
        for _ in range(turns):
            engine.advance()
        for number in range(len(PROMPTS)):
            engine.abort(str(number))
        assert engine.transfers.loads.num_under_way == 0
        require_nothing_left(engine, NUM_BLOCKS)
        engine.news.clear()
        llm.reset_prefix_cache()
        tier.released.set()
    tier.fault = None
    assert tokens_of(answers(llm)) == expected


def test_a_pool_that_is_too_small_for_all_loads_answers_all(
    make: Any, tiny_model: Model, expected: list[list[int]]
) -> None:
    tier = FakeTier()
    stocked(make, tier)
    from dataclasses import replace

    short = replace(tiny_model, max_model_len=80)
    llm = make(tier, model=short, num_gpu_blocks_override=24)
    assert tokens_of(answers(llm)) == expected
    assert llm.engine.transfers.loads.num_tokens_loaded > 0


@pytest.mark.parametrize("options", [{"block_size": 8}, {"kv_cache_dtype": "int8_per_token_head"}])
def test_what_is_stored_otherwise_is_not_found(make: Any, options: dict[str, object]) -> None:
    tier = FakeTier()
    stocked(make, tier)
    num_frames = len(tier.frames)
    other = make(tier, **options)
    alone = make(**options)
    outputs = answers(other)
    assert tokens_of(outputs) == tokens_of(answers(alone))
    assert other.engine.transfers.loads.num_tokens_loaded == 0
    settle(other)
    assert len(tier.frames) > num_frames, "it has frames of its own"


def test_another_model_finds_nothing(make: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    from checkpoints import CASES, write_checkpoint

    tier = FakeTier()
    stocked(make, tier)
    folder = write_checkpoint(tmp_path_factory.mktemp("other"), CASES["llama-gqa"], seed=5)
    model = load_model(EngineOptions(model=str(folder), max_model_len=128))
    llm = make(tier, model=model)
    assert tokens_of(answers(llm)) == tokens_of(answers(make(model=model)))
    assert llm.engine.transfers.loads.num_tokens_loaded == 0


def test_nothing_of_an_engine_waits_for_a_tier_that_hangs(
    make: Any, expected: list[list[int]]
) -> None:
    tier = FakeTier()
    stocked(make, tier)
    tier.fault = "hang"
    llm = make(tier)
    engine, turns = llm.engine, 0
    engine.transfers.loads._allowance_s = lambda compute_s: 60.0  # nobody gives up
    engine.add(engine.intake.request("waits", PROMPTS[0], GREEDY))
    engine.advance()
    engine.add(engine.intake.request("other", "12", GREEDY))
    while not any(output.finished for output in engine.news.outputs):
        engine.advance()
        turns += 1
    assert {output.request_id for output in engine.news.outputs} == {"other"}
    assert turns < 20
    engine.abort("waits")
    tier.released.set()
    require_nothing_left(engine, NUM_BLOCKS)


def test_closing_stores_what_is_left_and_ends_all_threads(make: Any) -> None:
    tier = FakeTier("closing")
    llm = make(tier)
    answers(llm)
    llm.close()
    assert tier.frames
    assert tier.is_closed
    llm.close()
    names = [thread.name for thread in threading.enumerate()]
    assert sum(name.startswith("pagoda-closing-probe") for name in names) <= 1
