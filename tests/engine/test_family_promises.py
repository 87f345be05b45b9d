"""The promises on random models of families that differ most: whatever the cache does, the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from preempting import preempt_every_fourth

from checkpoints import CASES, write_checkpoint
from pagoda.engine.llm import LLM
from pagoda.request import SamplingParams

FAMILIES = ("gemma3", "cohere2", "olmo2", "gpt-oss", "qwen2-moe", "granite-moe")
"""Four norms a layer; both halves at once; norms of what is added; experts with and without one
that is shared, with clamped gates, stacked."""
NUM_TOKENS = 20
Answers = list[tuple[list[int], list[dict[int, float]]]]


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("family")
    return write_checkpoint(target, CASES[request.param], dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def make(directory: Path) -> Callable[..., LLM]:
    def make(**options: object) -> LLM:
        defaults = {"max_model_len": 256, "num_gpu_blocks_override": 700, "block_size": 8}
        return LLM(str(directory), dtype="bfloat16", **{**defaults, **options})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """One beginning, and ends of their own."""
    rng = np.random.default_rng(1)
    common = rng.integers(0, 250, 70).tolist()
    return [common + rng.integers(0, 250, count).tolist() for count in (3, 40, 90, 1, 17)]


def answers(llm: LLM, prompts: list[list[int]]) -> Answers:
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return [
        (
            output.outputs[0].token_ids,
            [
                {token: each.logprob for token, each in place.items()}
                for place in output.outputs[0].logprobs or ()
            ],
        )
        for output in outputs
    ]


def test_hit_miss_chunks_companions_and_preemption_change_no_bit(
    make: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    llm = make()
    missed = answers(llm, prompts)
    assert len({tuple(tokens) for tokens, _ in missed}) > 1, "all say the same: nothing is shown"
    assert answers(llm, prompts) == missed
    narrow = make(enable_prefix_caching=False, max_num_batched_tokens=13, max_num_seqs=13)
    assert [answers(narrow, [prompt])[0] for prompt in prompts] == missed
    # with room for all: where layers slide, a pool for one sequence lets none run beside it
    preempted = make(enable_prefix_caching=False, max_num_batched_tokens=64)
    preempt_every_fourth(preempted)
    assert answers(preempted, prompts) == missed
    assert preempted.stats().num_preemptions > 0
