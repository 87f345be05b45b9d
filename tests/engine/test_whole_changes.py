"""A change of the engine that breaks off leaves it whole."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.cache import CacheManager
from pagoda.engine import core
from pagoda.engine.core import Engine
from pagoda.engine.runner import PaddedTables
from pagoda.errors import BlockTableError
from pagoda.request import SamplingParams
from pagoda.scheduling import Scheduler
from scheduling.fake_model import FakeModel, expected_output, request

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def failed(*_: object) -> None:
    raise RuntimeError("nobody is in hand")


@pytest.mark.parametrize("broken", ["Assembler", "arrived", "enter"])
def test_a_request_that_cannot_be_added_leaves_nothing(
    make_llm, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    engine = make_llm().engine
    engine.add(engine.intake.request("runs", "one two three", GREEDY))
    engine.step()
    before = engine.stats().scheduler

    def fail(*_: object) -> None:
        raise MemoryError

    owner = {"Assembler": core, "arrived": engine.timeline, "enter": engine.scheduler}[broken]
    with monkeypatch.context() as patch:
        patch.setattr(owner, broken, fail)
        with pytest.raises(MemoryError):
            engine.add(engine.intake.request("late", "four", SamplingParams(n=3)))
    assert engine.stats().scheduler == before
    assert list(engine._roster.assemblers) == ["runs"]
    assert len(engine._roster.choices) == 1
    assert not engine.timeline._waiting
    while engine.has_unfinished:
        outputs = engine.step()
    assert outputs[-1].finished
    engine.scheduler.cache.check_integrity()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["_runner.execute", "scheduler.update", "scheduler.schedule"])
def test_an_interrupt_leaves_an_llm_usable(
    make_llm, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException], where: str
) -> None:
    llm = make_llm()
    said = llm.generate("one two", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    room, name = where.split(".")

    def fail(*_: object) -> None:
        raise interrupt

    with monkeypatch.context() as patch:
        patch.setattr(getattr(llm.engine, room), name, fail)
        with pytest.raises(interrupt):
            llm.generate(["one two", "three"], GREEDY, use_tqdm=False)
    assert not llm.engine._roster.assemblers
    assert llm.engine.scheduler.cache.num_free_blocks == 256
    llm.engine.scheduler.cache.check_integrity()
    assert llm.generate("one two", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == said


class Two:
    """An engine with two requests, in the middle of their answers, and what they are to say."""

    def __init__(self, make_llm) -> None:
        self.llm = make_llm()
        self.engine: Engine = self.llm.engine
        self.alone = {
            name: self.llm.generate(name, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
            for name in ("a", "b")
        }
        for name in self.alone:
            self.engine.add(self.engine.intake.request(name, name, GREEDY))
        for _ in range(3):
            self.engine.step()

    def finish(self) -> tuple[dict[str, list[int]], set[str]]:
        """What everybody says in the end, and who was told an error instead."""
        said, failed = {}, set()
        while self.engine.has_unfinished:
            self.engine.advance()
            news = self.engine.news
            failed |= news.errors.keys()
            said |= {o.request_id: o.outputs[0].token_ids for o in news.outputs if o.finished}
            news.clear()
        self.engine.scheduler.cache.check_integrity()
        assert not self.engine._roster.assemblers
        return said, failed


@pytest.mark.parametrize("where", ["_runner.execute", "scheduler.schedule", "_follow_grammars"])
def test_an_interrupt_while_no_answer_changes_ends_nobody(
    make_llm, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    two = Two(make_llm)
    *rooms, name = where.split(".")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(two.engine, rooms[0]) if rooms else two.engine, name, interrupted)
        for _ in range(3):  # not after the second or the third either
            with pytest.raises(KeyboardInterrupt):
                two.engine.advance()
    assert two.finish() == (two.alone, set())


def test_an_interrupt_while_the_engine_starts_over(
    make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Two(make_llm)
    with monkeypatch.context() as patch:
        patch.setattr(two.engine._runner, "execute", interrupted)
        patch.setattr(two.engine.scheduler, "start_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            two.engine.advance()
    assert two.finish() == (two.alone, set())


def test_a_sequence_that_cannot_be_scheduled_ends_alone(
    make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Two(make_llm)
    reserve = two.engine.scheduler.cache.reserve
    [table] = [
        choice.sequence.table
        for choice in two.engine._roster.choices.values()
        if choice.sequence.request.request_id == "b"
    ]

    def fail(given, start, stop):
        if given is table:
            raise MemoryError
        return reserve(given, start, stop)

    monkeypatch.setattr(two.engine.scheduler.cache, "reserve", fail)
    assert two.finish() == ({"a": two.alone["a"]}, {"b"})


def test_whoever_has_finished_is_not_blamed(make_llm, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm()
    engine: Engine = llm.engine
    for name, max_tokens in (("short", 2), ("long", 9)):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        engine.add(engine.intake.request(name, "one", params), streams=False)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_tell", lambda: None)
        while "short" not in engine._due:
            engine.advance()
        patch.setattr(engine, "_tell", failed)
        engine.advance()
        patch.setattr(engine, "_follow_grammars", failed)
        engine.advance()
    assert engine.news.errors.keys() == {"long"}
    engine.advance()
    assert [output.request_id for output in engine.news.outputs] == ["short"]


def test_an_aborted_request_leaves_no_news(make_llm) -> None:
    two = Two(make_llm)
    while not two.engine.news.outputs:
        two.engine.advance()
    assert {output.request_id for output in two.engine.news.outputs} == {"a", "b"}
    two.engine.abort("a")
    assert {output.request_id for output in two.engine.news.outputs} == {"b"}
    assert {each.request.request_id for each in two.engine.scheduler._running} == {"b"}


def test_tables_that_were_written_in_part_are_written_again() -> None:
    class Unreadable:
        def __len__(self) -> int:
            return 2

        def __array__(self, *_: object, **__: object) -> None:
            raise MemoryError

    first, second, other = (np.array(ids, np.int32) for ids in ([1, 2], [3, 4], [5, 6]))
    tables = PaddedTables()
    tables.of([first, second])
    with pytest.raises(MemoryError):
        tables.of([other, Unreadable()])  # type: ignore[list-item]
    assert tables.of([first, second]).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("policy", ["lru", "slru"])
def test_a_cache_that_is_reset_is_empty_and_whole(policy: str) -> None:
    cache = CacheManager(8, 2, eviction=policy)
    held, freed = cache.open(), cache.open()
    for table, tokens in ((held, [1, 2, 3, 4]), (freed, [5, 6, 7, 8])):
        cache.acquire(table, tokens, cache.match(table, tokens))
        cache.reserve(table, 0, 4)
        cache.commit(table, tokens, 4)
    cache.free(freed)
    cache._blocks.pool._blank.pop()  # a call that broke off
    cache.reset()
    cache.check_integrity()
    assert cache.num_free_blocks == 8
    assert cache.match(cache.open(), [5, 6, 7, 8]).num_tokens == 0
    with pytest.raises(BlockTableError, match="freed"):
        cache.free(held)


def test_sequences_that_start_over_wait_in_their_order() -> None:
    scheduler = Scheduler(
        CacheManager(16, 2), max_num_batched_tokens=8, max_num_seqs=4, max_model_len=16
    )
    model = FakeModel(scheduler, 16)
    sequences = [
        *scheduler.add(request("a", [1, 2, 3], max_tokens=4, n=2)),
        *scheduler.add(request("b", [2, 2], max_tokens=4, arrival_time=1.0)),
    ]
    model.step()
    scheduler.start_over(sequences)
    assert scheduler.stats().num_waiting == 3
    assert scheduler.cache.num_free_blocks == 16
    while scheduler.has_unfinished:
        model.step()
    for sequence in sequences:
        prompt = sequence.request.prompt_token_ids
        assert sequence.output_token_ids == expected_output(prompt, 4, 16)
