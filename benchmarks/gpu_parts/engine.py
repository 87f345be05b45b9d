"""The engine with models of random weights: one stream, batches, and whole workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gpu_parts.engine_rig import check_lengths, engine, generate, release, run
from gpu_parts.random_model import random_model
from gpu_parts.results import Job
from gpu_parts.setting import Limits, Setting
from gpu_parts.shapes import Shape, shape_of
from gpu_parts.transformers_peer import TransformersPeer
from gpu_parts.workload import NAMES, NANO, prompts, work_of
from pagoda.engine.build import Model
from pagoda.engine.llm import LLM
from pagoda.roofline import Work, WorkItem, roofline_seconds
from pagoda.roofline.least_time import step_costs

_MAX_MODEL_LEN = 8192
_ROOM_BYTES = 6 * 2**30
"""For activations, libraries and a useful cache, beside the weights."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_QUICK_BATCHES = (256, 64, 8)
_GENERATE_SHARE = 0.35
"""Share of free memory for the cache of `generate`, which is copied when it grows."""
_QUICK_GENERATE = ("single", "mixed", "longbatch")
_TINY_PAGED = {"num_blocks": 16, "max_batch_tokens": 64}


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Decode is timed as a difference: more output tokens less fewer, after the same prompts."""

    prompt: int
    fewer: int
    more: int

    def works(self, count: int, vocab_size: int) -> tuple[Work, Work]:
        """The same prompts twice."""
        ids = [tuple(each) for each in prompts(count, self.prompt, vocab_size)]
        return (
            [WorkItem(each, self.fewer) for each in ids],
            [WorkItem(each, self.more) for each in ids],
        )


_STREAM = DecodePlan(128, 32, 288)
_BATCH = DecodePlan(512, 16, 80)
_TINY_PLAN = DecodePlan(6, 2, 4)


def measure_engine(name: str, setting: Setting, job: Job, limits: Limits) -> None:
    """All figures of one model, Pagoda's first."""
    shape = shape_of(name)
    wanted = shape.num_weights * setting.dtype.itemsize + (0 if setting.tiny else _ROOM_BYTES)
    if wanted > setting.free_bytes():
        job.left_out(name, f"it takes {wanted / 2**30:.0f} GiB, more than is free")
        return
    started = time.perf_counter()
    model = random_model(setting, shape, setting.dtype_name, _MAX_MODEL_LEN)
    made = time.perf_counter()
    own = _Own(setting, job, limits, model)
    with engine(setting, job, model) as llm:
        ready, stats = time.perf_counter(), llm.stats()
        capacity = stats.num_blocks * stats.block_size
        job.add(
            f"weights took {made - started:.1f} s, the engine {ready - made:.1f} s; "
            f"the cache has {capacity:,} tokens",
            kind="start",
            model=name,
            weights_bytes=model.weights.size_bytes,
            weights_seconds=made - started,
            engine_seconds=ready - made,
            cache_tokens=capacity,
        )
        own.stream(llm)
        own.batches(llm, capacity)
        own.workloads(llm)
    _measure_transformers(setting, job, shape, model)


class _Own:
    """Pagoda's figures of one model."""

    def __init__(self, setting: Setting, job: Job, limits: Limits, model: Model) -> None:
        self._setting, self._job, self._limits, self._model = setting, job, limits, model

    def stream(self, llm: LLM) -> None:
        """Tokens a second of one sequence, and weights ÷ bandwidth."""
        plan = _TINY_PLAN if self._setting.tiny else _STREAM
        with self._job.attempt("one stream"):
            step_s, _ = self._decode(llm, plan, 1)
            read_bytes = self._model.held.read_bytes
            share = read_bytes / self._limits.copy_bandwidth / step_s
            self._job.add(
                f"one stream: {1 / step_s:,.1f} tokens/s, {share:.0%} of weights ÷ bandwidth",
                kind="stream",
                model=self._model.name,
                tokens_per_second=1 / step_s,
                step_seconds=step_s,
                weights_bytes=read_bytes,
                share=share,
            )

    def batches(self, llm: LLM, capacity: int) -> None:
        """Tokens a second of so many sequences, and the limit of each step."""
        plan = _TINY_PLAN if self._setting.tiny else _BATCH
        sizes = _QUICK_BATCHES if self._setting.quick else _BATCHES
        for size in (1, 2) if self._setting.tiny else sizes:
            what = f"batch of {size}"
            if size * (plan.prompt + plan.more + 16) > capacity:
                self._job.left_out(what, f"the cache has {capacity:,} tokens")
                continue
            with self._job.attempt(what):
                step_s, limit_s = self._decode(llm, plan, size)
                self._job.add(
                    f"{what}: {size / step_s:,.0f} tokens/s, {limit_s / step_s:.0%} of the limit",
                    kind="batch",
                    model=self._model.name,
                    batch=size,
                    context=plan.prompt + (plan.fewer + plan.more) // 2,
                    tokens_per_second=size / step_s,
                    step_seconds=step_s,
                    limit_seconds=limit_s,
                    share=limit_s / step_s,
                )

    def workloads(self, llm: LLM) -> None:
        """Whole workloads, with an empty prefix cache, and the least a device would take."""
        for name in NAMES:
            with self._job.attempt(f"workload {name}"):
                work = self._work(name)
                model = self._model
                roofline_s = roofline_seconds(
                    *(model.spec, model.dtype, model.held.step_bytes),
                    work,
                    self._limits.for_roofline,
                )
                rounds = 1 if name == NANO else self._setting.rounds
                _time_workload(
                    self._job, "pagoda", self._model.name, name, work, roofline_s,
                    [self._round(llm, work) for _ in range(rounds)],
                )  # fmt: skip

    def _round(self, llm: LLM, work: Work) -> float:
        llm.reset_prefix_cache()
        outputs: list[list[int]] = []
        seconds = self._setting.clock.wall(lambda: outputs.extend(run(llm, work)))
        check_lengths(outputs, work)
        return seconds

    def _work(self, name: str) -> Work:
        return work_of(name, 0, self._model.spec.vocab_size, tiny=self._setting.tiny)

    def _decode(self, llm: LLM, plan: DecodePlan, size: int) -> tuple[float, float]:
        """Seconds of a decode step of `size` sequences, and what the device's limits allow.

        Prompts are in the prefix cache before, so that little but decoding is timed, and the
        difference leaves that out as well.
        """
        fewer, more = plan.works(size, self._model.spec.vocab_size)
        generate(llm, [list(item.prompt_token_ids) for item in fewer], [1] * size)
        num_steps = plan.more - plan.fewer
        wall = self._setting.clock.wall
        seconds = [
            (wall(lambda: run(llm, fewer)), wall(lambda: run(llm, more)))
            for _ in range(self._setting.rounds)
        ]
        short, long = (min(times) for times in zip(*seconds, strict=True))
        # In the interpreter the longer may seem the shorter.
        step_s = max(long - short, 1e-9) / num_steps
        model = self._model
        costs = step_costs(model.spec, model.dtype, model.held.step_bytes, more)
        limit = self._limits.for_roofline
        wanted = islice(costs, plan.fewer, plan.more)
        return step_s, sum(cost.seconds(limit) for cost in wanted) / num_steps


def _time_workload(
    job: Job, engine_name: str, model: str, name: str, work: Work, roofline_s: float | None,
    seconds: Sequence[float],
) -> None:  # fmt: skip
    best = min(seconds)
    made = sum(item.num_output_tokens for item in work)
    read = sum(len(item.prompt_token_ids) for item in work)
    share = None if roofline_s is None else roofline_s / best
    said = "" if share is None else f", {share:.0%} of the limit"
    job.add(
        f"{name}: {engine_name} {best:.2f} s, {made / best:,.0f} tokens/s{said}",
        kind="workload",
        model=model,
        workload=name,
        engine=engine_name,
        prompt_tokens=read,
        output_tokens=made,
        best_seconds=best,
        seconds=list(seconds),
        tokens_per_second=made / best,
        roofline_seconds=roofline_s,
        share=share,
    )


def _measure_transformers(setting: Setting, job: Job, shape: Shape, model: Model) -> None:
    """The same work by transformers, over the same weights."""
    release(setting)
    with job.attempt("transformers"):
        paged = _TINY_PAGED if setting.tiny else {}
        peer = TransformersPeer(shape.values, shape.spec, model.weights, paged)
        kv_bytes = shape.spec.cache_spec(1, setting.dtype_name).block_bytes
        most = int(_GENERATE_SHARE * setting.free_bytes() / kv_bytes)
        for name, make in _transformers_ways(setting, peer, most).items():
            with job.attempt(f"transformers, {name}"):
                for workload, seconds in make():
                    work = work_of(workload, 0, shape.spec.vocab_size, tiny=setting.tiny)
                    _time_workload(
                        job, f"transformers {name}", shape.name, workload, work, None, [seconds]
                    )
            release(setting)


Timed = Callable[[], Iterator[tuple[str, float]]]
"""Workloads and their seconds, as they come."""


def _transformers_ways(
    setting: Setting, peer: TransformersPeer, most_tokens: int
) -> dict[str, Timed]:
    """Continuous batching first: it is the stronger one."""
    vocab_size = peer.vocab_size

    def work(name: str, seed: int) -> Work:
        return work_of(name, seed, vocab_size, tiny=setting.tiny)

    def timed(answer: Callable[[Work], list[list[int]]], names: Sequence[str]):
        for name in names:
            if name != NANO:  # which is long, and comes when all is compiled
                answer(work(name, 1))  # other prompts, so that no prefix cache knows the real ones
            outputs: list[list[int]] = []
            todo = work(name, 0)
            seconds = setting.clock.wall(lambda: outputs.extend(answer(todo)))  # noqa: B023
            check_lengths(outputs, todo)
            yield name, seconds

    def continuous() -> Iterator[tuple[str, float]]:
        with peer.continuous_batching() as batching:
            yield from timed(batching.run, NAMES)

    def static_batches() -> Iterator[tuple[str, float]]:
        names = _QUICK_GENERATE if setting.quick else NAMES
        yield from timed(lambda todo: peer.generate(todo, most_tokens), names)

    def compiled() -> Iterator[tuple[str, float]]:
        yield from timed(lambda todo: peer.generate(todo, most_tokens, static=True), ["single"])

    ways = {"continuous batching": continuous, "generate": static_batches}
    return ways if setting.quick else {**ways, "generate, compiled": compiled}
