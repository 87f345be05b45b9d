"""Engines in processes that were forked, where the threads of kernels are missing."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
from collections.abc import Callable

import pytest

from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.engine_thread import Order
from pagoda.engine.llm import LLM
from pagoda.errors import EngineError
from pagoda.request import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
FRESH = """
import multiprocessing, sys
from pagoda import LLM, SamplingParams

def ask(model):
    [output] = LLM(model, max_model_len=64, kv_cache_memory_bytes=2**22).generate(
        [[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False
    )
    print("tokens", len(output.outputs[0].token_ids))

try:
    LLM("/there/is/none")
except ValueError:
    pass  # nothing was run
process = multiprocessing.get_context("fork").Process(target=ask, args=(sys.argv[1],))
process.start()
process.join(120)
print("code", process.exitcode)
"""


def told_in_fork(do: Callable[[], object]) -> str:
    """What a process that is forked now is told when it does something."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            do()
            sender.send("it was done")
        except EngineError as error:
            sender.send(str(error))

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        assert receiver.poll(60), "nothing was told"
        return str(receiver.recv())
    finally:
        process.kill()
        process.join()


@pytest.fixture
def llm(make_llm) -> LLM:
    llm = make_llm()
    llm.generate("used", GREEDY, use_tqdm=False)
    return llm


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.generate("forked", GREEDY, use_tqdm=False),
        lambda llm: list(llm.stream("forked", GREEDY)),
        lambda llm: llm.reset_prefix_cache(),
        lambda llm: llm.close(),
    ],
)
def test_an_engine_of_another_process_says_how_to_start_processes(
    use: Callable[[LLM], object], llm: LLM
) -> None:
    assert 'get_context("spawn")' in told_in_fork(lambda: use(llm))
    [output] = llm.generate("used", GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4


def test_nor_does_its_thread_begin_or_take_orders(llm: LLM) -> None:
    started, waiting = AsyncEngine(llm.engine), AsyncEngine(llm.engine)
    started.start()
    order = Order(lambda: None, lambda error: None)
    for use in (waiting.start, started._thread.stop, lambda: started._thread.submit(order)):
        assert 'get_context("spawn")' in told_in_fork(use)
    assert started.is_alive
    asyncio.run(started.shutdown())


def test_a_new_engine_behind_one_of_another_process_says_it_too(
    llm: LLM, tiny_directory: str, tiny_model
) -> None:
    assert 'get_context("spawn")' in told_in_fork(lambda: LLM(tiny_directory, max_model_len=64))


def test_a_new_engine_in_a_fork_of_a_process_that_ran_none_answers(tiny_directory: str) -> None:
    command = [sys.executable, "-c", FRESH, tiny_directory]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert told.stdout.split() == ["tokens", "4", "code", "0"], told.stderr
