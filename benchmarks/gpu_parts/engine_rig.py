"""Pagoda's engine over a model in memory, and what is asked of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpu_parts.results import Job
from gpu_parts.setting import Setting
from pagoda import SamplingParams
from pagoda.engine.build import Model, connect
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.roofline import Work

MAX_NUM_SEQS = 256
_TINY_OPTIONS: dict[str, Any] = {
    "max_num_seqs": 4, "max_num_batched_tokens": 32, "cudagraph_capture_sizes": (1, 4)
}  # fmt: skip
_SIZED_SHARE = 0.6
"""Share of free memory, where the engine cannot find out by itself what it may take."""


@contextmanager
def engine(
    setting: Setting, job: Job, model: Model, *, insist: bool = False, **more: Any
) -> Iterator[LLM]:
    """An engine until the block ends; its memory is free after it.

    Unless `insist`, one that does not start by itself is told what to take, and after that goes
    without graphs: each failure is noted, and figures of what is left are better than none.
    """
    options = {"max_num_seqs": MAX_NUM_SEQS, **(_TINY_OPTIONS if setting.tiny else {}), **more}
    sized = {"kv_cache_memory_bytes": int(_SIZED_SHARE * setting.free_bytes())}
    llm: LLM | None = None
    for extra in ({},) if insist else ({}, sized, {**sized, "enforce_eager": True}):
        with job.attempt(f"engine of {model.name} with {sorted({**more, **extra}) or 'defaults'}"):
            llm = LLM.from_engine(connect(model, EngineOptions(**{**extra, **options})))
            break
        release(setting)
    if llm is None:
        raise RuntimeError("no engine started")
    try:
        yield llm
    finally:
        llm.engine = None  # type: ignore[assignment]  # whoever keeps the LLM keeps no memory
        release(setting)


def release(setting: Setting) -> None:
    """Give back all memory that nobody refers to."""
    setting.clock.release()
    gc.collect()
    if setting.is_gpu:
        torch.cuda.empty_cache()


def run(llm: LLM, work: Work) -> list[list[int]]:
    """Greedy outputs, each of its forced length."""
    return generate(
        llm,
        [list(item.prompt_token_ids) for item in work],
        [item.num_output_tokens for item in work],
    )


def generate(llm: LLM, prompts: Sequence[list[int]], num_tokens: Sequence[int]) -> list[list[int]]:
    """The same, of prompts."""
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in num_tokens]
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def check_lengths(outputs: Sequence[Sequence[int]], work: Work) -> int:
    """Tokens in all. Raises RuntimeError unless every output has its length."""
    for output, item in zip(outputs, work, strict=True):
        if len(output) != item.num_output_tokens:
            raise RuntimeError(f"{len(output)} tokens were made of {item.num_output_tokens}")
    return sum(map(len, outputs))
