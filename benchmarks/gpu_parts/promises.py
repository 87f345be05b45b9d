"""Greedy answers that should be the same, however they were come by; differences are counted.

miss    | batched, with CUDA graphs, an empty prefix cache: what all others are compared with
again   | the very same once more: is the device itself the same twice?
hit     | with what `again` left in the prefix cache
alone   | one request after the other, an empty prefix cache
eager   | as `miss`, without CUDA graphs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from gpu_parts.engine_rig import engine, generate, release
from gpu_parts.random_model import default_model, random_model
from gpu_parts.results import Job
from gpu_parts.setting import Limits, Setting
from gpu_parts.shapes import shape_of
from gpu_parts.workload import prompts
from pagoda.engine.build import Model
from pagoda.engine.llm import LLM

_MAX_MODEL_LEN, _TINY_MAX_MODEL_LEN = 1024, 64
_NUM_TOKENS, _TINY_NUM_TOKENS = 96, 2
_OPTIONS = {"kv_cache_memory_bytes": 2 * 2**30, "cudagraph_capture_sizes": (1, 2, 4, 8)}
_TINY_OPTIONS = {"num_gpu_blocks_override": 64}
_BEGINNING = "You are a careful assistant who answers briefly and never makes anything up. "
_QUESTIONS = (
    "What is the capital of France, and which river runs through it?",
    "Explain to a child why the sky is blue in the day and red in the evening.",
    "Write a function in Python that returns the n-th Fibonacci number without recursion.",
    "Name three rivers in South America and say into which sea each of them flows.",
    "How does a refrigerator keep food cold? Answer in a few short steps.",
    "Translate into German: the early bird catches the worm, but the second mouse gets the cheese.",
    "What is the difference between weather and climate? Give an example of each.",
    "A train leaves at nine and goes two hundred miles at fifty miles an hour. When is it there?",
)

Answers = list[list[int]]


def measure_promises(setting: Setting, job: Job, limits: Limits) -> None:
    """The default model with real text, and a random one; in the device's dtype and in float32."""
    dtypes = ["float32"] if setting.tiny else [setting.dtype_name, "float32"]
    shape = shape_of("tiny-qwen3" if setting.tiny else "qwen3-0.6b")
    longest = _TINY_MAX_MODEL_LEN if setting.tiny else _MAX_MODEL_LEN
    for dtype in dict.fromkeys(dtypes):
        with job.attempt(f"promises of the default model in {dtype}"):
            model = default_model(setting, dtype, longest)
            _compare(setting, job, model, _texts(setting, model))
        release(setting)
        with job.attempt(f"promises of {shape.name} in {dtype}"):
            model = random_model(setting, shape, dtype, longest)
            _compare(setting, job, model, _random_prompts(setting, model))
        release(setting)


def _texts(setting: Setting, model: Model) -> Answers:
    """Chats behind one system prompt, as token ids."""
    questions = _QUESTIONS[:2] if setting.tiny else _QUESTIONS
    ids = [model.tokenizer.encode(_BEGINNING + question) for question in questions]
    return [each[:20] for each in ids] if setting.tiny else ids


def _random_prompts(setting: Setting, model: Model) -> Answers:
    """Prompts whose lengths are near multiples of a block, and past them."""
    lengths = (17, 20) if setting.tiny else (16, 17, 33, 64, 100, 255, 300, 511)
    longest = prompts(len(lengths), max(lengths), model.spec.vocab_size)
    return [ids[:length] for ids, length in zip(longest, lengths, strict=True)]


def _compare(setting: Setting, job: Job, model: Model, asked: Answers) -> None:
    num_tokens = [_TINY_NUM_TOKENS if setting.tiny else _NUM_TOKENS] * len(asked)
    options = _TINY_OPTIONS if setting.tiny else _OPTIONS

    def all_at_once(llm: LLM) -> Answers:
        return generate(llm, asked, num_tokens)

    def emptied(llm: LLM) -> Answers:
        llm.reset_prefix_cache()
        return all_at_once(llm)

    def alone(llm: LLM) -> Answers:
        llm.reset_prefix_cache()
        return [generate(llm, [ids], num_tokens[:1])[0] for ids in asked]

    ways: dict[str, Callable[[LLM], Answers]] = {
        "again": emptied, "hit": all_at_once, "alone": alone
    }  # fmt: skip
    with engine(setting, job, model, insist=True, **options) as llm:
        expected = emptied(llm)
        for way, answer in ways.items():
            with job.attempt(f"{model.name}, {model.dtype}, {way}"):
                before = llm.stats().prefix_cache_hits
                found = answer(llm)
                hits = llm.stats().prefix_cache_hits - before
                _add(job, model, way, expected, found, hits)
    with engine(setting, job, model, insist=True, enforce_eager=True, **options) as llm:
        _add(job, model, "eager", expected, emptied(llm), 0)


def _add(job: Job, model: Model, way: str, expected: Answers, found: Answers, hits: int) -> None:
    agreed = sum(map(num_agreed, expected, found))
    total = sum(map(len, expected))
    different = sum(one != other for one, other in zip(expected, found, strict=True))
    job.add(
        f"{model.name}, {model.dtype}, {way}: {total - agreed} of {total} tokens in {different} of "
        f"{len(expected)} answers differ",
        kind="promise",
        model=model.name,
        dtype=model.dtype,
        way=way,
        answers=len(expected),
        different_answers=different,
        tokens=total,
        different_tokens=total - agreed,
        distinct_tokens=len(set().union(*expected)),
        prefix_cache_hits=hits,
    )


def num_agreed(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens before the first that differs: those after it answer another question."""
    pairs = zip(one, other, strict=True)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
