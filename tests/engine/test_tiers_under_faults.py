"""Engines with real tiers under each fault that these can have: no answer changes, none fails.

Eight concurrent greedy requests, four of them behind one prefix, against an engine without tiers.
The model is tiny, so engines are told that it computes slowly: else no tier would be worth asking.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from planted_errors import require_nothing_left
from tier_benches import BENCHES, HURRIED_S, READS, WRITES, Bench, Trouble, quick_clocks

from pagoda.engine.build import Model, connect
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.prefill_rate import PrefillRate
from pagoda.request import SamplingParams
from pagoda.tiers.breaker import NUM_FAILURES, Breaker
from pagoda.tiers.shelf import Shelf

GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
BLOCK_SIZE, NUM_BLOCKS = 16, 256
TOKEN_S = 0.05
"""What a token of a prompt takes to compute, as engines are told."""
PATIENCE_S = 20.0
SHARED = "The pagoda has five floors, and "
PROMPTS = [SHARED + end for end in ("one roof", "two lifts", "a stair", "no lift at all")] + [
    "a wholly other prompt, which nobody else has",
    "one that is short",
    "x" * 49,
    "y" * 32,
]
CASES = [
    pytest.param(kind, name, marks=[pytest.mark.redis] if kind == "redis" else [])
    for kind, names in {
        "disk": (
            *("input and output errors", "hang", "slow", "torn", "full", "no permission"),
            *("read-only", "is gone"),
        ),
        "redis": (
            *("refused", "hang", "slow", "reset in mid-body", "full", "no permission"),
            *("may only read", "dies and comes back"),
        ),
        "s3": (
            *("refused", "hang", "slow", "reset in mid-body", "5xx", "full", "no permission"),
            "dies and comes back",
        ),
    }.items()
    for name in names
]
KINDS = ["disk", pytest.param("redis", marks=pytest.mark.redis), "s3"]


class SlowPrefill(PrefillRate):
    """Of a machine on which any tier is worth asking."""

    def note(self, num_tokens: int, num_sequences: int, seconds: float) -> None:
        pass

    def seconds(self, num_tokens: int) -> float:
        return TOKEN_S * num_tokens


class Subject:
    """An engine with one tier."""

    def __init__(self, bench: Bench | None, llm: LLM) -> None:
        self.bench = bench
        self.llm = llm
        self._mover = llm.engine.transfers._mover  # type: ignore[attr-defined]
        self.shelf: Shelf = self._mover._places[0].shelf
        self.loads: Any = llm.engine.transfers.loads  # type: ignore[attr-defined]
        self.loads._prefill_rate = SlowPrefill()
        self.is_full = False
        """The tier has all blocks: nothing has happened to it since it was filled."""

    def hurry(self, timeout_s: float) -> None:
        """What a call of the tier may take."""
        self.shelf.timeout_s = self._mover.timeout_s = timeout_s

    def answers(self, salt: str = "") -> list[RequestOutput]:
        """Of a cache that has nothing. With a salt of their own, nor has the tier."""
        self.llm.reset_prefix_cache()
        return answers(self.llm, salt=salt)

    def settle(self) -> None:
        """Until all that is to be stored is, or was given up."""
        while self.llm.engine.transfers.has_stores:
            self.llm.engine.transfers.hand_out(is_idle=False)
        assert self._mover.wait_until_stored(PATIENCE_S)

    def breaker(self, what: str) -> Breaker:
        return {READS: self.shelf.reading, WRITES: self.shelf.writing}[what]

    def is_measured(self) -> bool:
        """It is known what loading takes, without which nothing is loaded."""
        return self.shelf.rates.bytes_per_s is not None

    def is_well(self) -> bool:
        return self.shelf.reading.is_closed and self.shelf.writing.is_closed

    def close(self) -> None:
        self.llm.engine.close()


def eventually(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < until, "it never comes"
        time.sleep(0.01)


def answers(llm: LLM, prompts: list[str] = PROMPTS, salt: str = "") -> list[RequestOutput]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False, cache_salt=salt)
    require_nothing_left(llm.engine, NUM_BLOCKS)
    return outputs


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def make(tiny_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    key = tmp_path_factory.mktemp("key") / "secret"
    key.write_text(os.urandom(32).hex())
    key.chmod(0o600)

    def make(*tiers: str, **options: Any) -> LLM:
        given = {"num_gpu_blocks_override": NUM_BLOCKS, "block_size": BLOCK_SIZE, "threads": 1}
        wanted = EngineOptions(
            kv_tier=list(tiers) or None,
            kv_tier_key_file=str(key) if tiers else None,
            **(given | options),
        )
        return LLM.from_engine(connect(tiny_model, wanted))

    logging.getLogger("pagoda").setLevel(logging.CRITICAL + 1)  # faults are meant
    with quick_clocks():
        yield make
    logging.getLogger("pagoda").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def expected(make: Any) -> list[list[int]]:
    return tokens_of(answers(make()))


@pytest.fixture(scope="module")
def subjects(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One of each kind, made when it is first asked for."""
    made: dict[str, Subject] = {}

    def subject(kind: str) -> Subject:
        if kind not in made:
            bench = BENCHES[kind](tmp_path_factory.mktemp(kind))
            made[kind] = Subject(bench, make(bench.option))
        return made[kind]

    yield subject
    for each in made.values():
        each.close()
        each.bench.close()


class Borne(Counter[int]):
    """How many failures a breaker has borne until it opened first, by its id. It may close again
    when a probe comes through, and bear others."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = set[int]()

    def clear(self) -> None:
        super().clear()
        self.opened.clear()


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Borne:
    borne = Borne()
    one_by_one, failed = threading.Lock(), Breaker.failed

    def take_down(breaker: Breaker, kind: str = "") -> None:
        with one_by_one:
            if id(breaker) not in borne.opened:
                borne[id(breaker)] += breaker.is_closed
            failed(breaker, kind)
            if not breaker.is_closed:
                borne.opened.add(id(breaker))

    monkeypatch.setattr(Breaker, "failed", take_down)
    return borne


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_no_fault_changes_an_answer(
    kind: str,
    name: str,
    subjects: Callable[[str], Subject],
    expected: list[list[int]],
    failures: Borne,
) -> None:
    subject = subjects(kind)
    if not subject.is_full:
        refill(subject, expected)
    subject.is_full = False
    trouble = subject.bench.troubles[name]
    failures.clear()
    trouble.begin(subject.bench)
    try:
        if trouble.is_hurried:
            subject.hurry(HURRIED_S)
        suffer(subject, trouble, expected)
        if trouble.opens:
            assert 0 < failures[id(subject.breaker(trouble.opens))] <= NUM_FAILURES
    finally:
        trouble.end(subject.bench)
        subject.hurry(5.0)
    refill(subject, expected)


def suffer(subject: Subject, trouble: Trouble, expected: list[list[int]]) -> None:
    """Until the breaker that is to open has, and once more."""

    def has_opened() -> bool:
        return trouble.opens != "" and not subject.breaker(trouble.opens).is_closed

    for number in range(2 + 2 * NUM_FAILURES):
        is_new = trouble.opens == WRITES and number % 2
        assert tokens_of(subject.answers(f"{time.monotonic()}" if is_new else "")) == expected
        subject.settle()
        if has_opened():
            break
    assert has_opened() == (trouble.opens != "")
    assert tokens_of(subject.answers()) == expected


def refill(subject: Subject, expected: list[list[int]]) -> None:
    """Run until the tier has all blocks, and all come from it."""

    def is_full() -> bool:
        outputs = subject.answers()
        assert tokens_of(outputs) == expected
        subject.settle()
        return num_cached(outputs) == num_whole(subject.llm, PROMPTS)

    eventually(subject.is_well)
    eventually(is_full)
    subject.is_full = True


def num_cached(outputs: list[RequestOutput]) -> list[int]:
    return [output.num_cached_tokens for output in outputs]


def num_whole(llm: LLM, prompts: list[str]) -> list[int]:
    """Tokens of whole blocks of each, but for the last token, which is always computed."""
    lengths = [len(llm.get_tokenizer().encode(prompt)) for prompt in prompts]
    return [min(length // BLOCK_SIZE * BLOCK_SIZE, length - 1) for length in lengths]


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prefix_whose_load_fails_is_right_for_all_four(
    kind: str, subjects: Callable[[str], Subject], expected: list[list[int]]
) -> None:
    """In the middle: its first block comes, the others do not."""
    subject = subjects(kind)
    if not subject.is_full:
        refill(subject, expected)
    subject.is_full = False
    num_loaded = subject.loads.num_tokens_loaded
    name = "torn" if kind == "disk" else "reset in mid-body"
    subject.bench.troubles[name].begin(subject.bench)
    try:
        subject.llm.reset_prefix_cache()
        outputs = answers(subject.llm, PROMPTS[:4])
    finally:
        subject.bench.troubles[name].end(subject.bench)
    assert tokens_of(outputs) == expected[:4]
    assert subject.loads.num_tokens_loaded == num_loaded
    assert sum(num >= BLOCK_SIZE for num in num_cached(outputs)) == 3, "computed once for all"


def test_a_restart_with_a_warm_disk_finds_thirty_eight_of_thirty_eight(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing hangs here, and on busy cores a thread may not get its turn for longer than this.
    monkeypatch.setattr("pagoda.engine.transfers.tier_loads._LEAST_DEADLINE_S", 5.0)
    draw = random.Random(5)
    prompts = [
        SHARED * (number % 3 == 0) + "".join(draw.choices("abcdefgh ", k=draw.randint(30, 80)))
        for number in range(38)
    ]
    tier = f"disk:{tmp_path / 'tier'},size=64MiB,timeout=5"
    right = tokens_of(answers(make(), prompts))
    first = Subject(None, make(tier))
    assert tokens_of(answers(first.llm, prompts)) == right
    first.settle()
    first.close()
    second = Subject(None, make(tier))
    eventually(second.is_measured)
    outputs = answers(second.llm, prompts)
    second.close()
    assert tokens_of(outputs) == right
    assert num_cached(outputs) == num_whole(second.llm, prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tier_that_is_dead_at_the_start_is_used_once_it_is_there(
    kind: str, make: Any, expected: list[list[int]], tmp_path: Path
) -> None:
    bench = BENCHES[kind](tmp_path)
    dead = bench.troubles["no permission" if kind == "disk" else "refused"]
    dead.begin(bench)
    subject = Subject(bench, make(bench.option))
    eventually(lambda: not subject.shelf.reading.is_closed)
    assert tokens_of(subject.answers()) == expected
    dead.end(bench)
    refill(subject, expected)
    subject.close()
    bench.close()


def test_two_hundred_aborts_leave_nothing(make: Any, tmp_path: Path) -> None:
    """In the queue, while a prefix is asked for or loaded, in the middle of a prompt and of an
    answer; of a disk that hangs now and then."""
    bench = BENCHES["disk"](tmp_path)
    subject = Subject(bench, make(bench.option, max_num_seqs=3, max_num_batched_tokens=16))
    engine, draw, aborted = subject.llm.engine, random.Random(3), Counter[str]()
    long = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [prompt + "z" * 40 for prompt in PROMPTS]
    for prompt in prompts[::2]:
        subject.llm.generate([prompt], GREEDY, use_tqdm=False)
    subject.settle()
    eventually(subject.is_measured)
    for number in range(MOST_ROUNDS):
        if aborted.total() >= 200 and all(aborted[state] >= 6 for state in STATES):
            break
        hangs = bench.troubles["hang"] if number % 5 == 4 else None
        if hangs is not None:
            hangs.begin(bench)
        subject.llm.reset_prefix_cache()
        for each, prompt in enumerate(prompts):
            engine.add(engine.intake.request(str(each), prompt, long))
        wanted = STATES[number % len(STATES)]
        for _ in range(MOST_TURNS):
            if wanted in map(state_of, engine._roster.unfinished()):
                break
            engine.advance()
        sequences = {each.request.request_id: each for each in engine._roster.unfinished()}
        for each in sorted(sequences, key=lambda _: draw.random()):
            aborted[state_of(sequences[each])] += 1
            engine.abort(each)
            if draw.random() < 0.3:
                engine.advance()
        engine.news.clear()
        assert subject.loads.num_under_way == 0
        require_nothing_left(engine, NUM_BLOCKS)
        if hangs is not None:
            hangs.end(bench)
            eventually(subject.is_well)
    subject.close()
    bench.close()
    assert aborted.total() >= 200
    assert min(aborted[state] for state in STATES) >= 6, aborted


STATES = ("queued", "loading", "prompt", "answer")
MOST_ROUNDS = 100
MOST_TURNS = 1000


def state_of(sequence: Any) -> str:
    load = sequence.awaited_load
    if load is not None and not load.is_done:
        return "loading"
    if sequence.num_computed_tokens == 0:
        return "queued"
    return "answer" if sequence.output_token_ids else "prompt"
