"""The promises on random models of families that differ most: whatever the cache does, the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints import CASES, write_checkpoint
from pagoda.engine.llm import LLM
from pagoda.models.load import load_spec
from pagoda.models.locate import locate
from pagoda.request import SamplingParams

FAMILIES = ("gemma3", "cohere2", "olmo2", "gpt-oss", "qwen2-moe", "granite-moe")
"""Four norms a layer; both halves at once; norms of what is added; experts with and without one
that is shared, with clamped gates, stacked."""
NUM_TOKENS = 20
MOST_TOKENS = 256
Answers = list[tuple[list[int], list[dict[int, float]]]]


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("family")
    return write_checkpoint(target, CASES[request.param], dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def make(directory: Path) -> Callable[..., LLM]:
    def make(**options: object) -> LLM:
        defaults = {"max_model_len": MOST_TOKENS, "num_gpu_blocks_override": 700, "block_size": 8}
        return LLM(str(directory), dtype="bfloat16", **{**defaults, **options})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """One beginning, and ends of their own."""
    rng = np.random.default_rng(1)
    common = rng.integers(0, 250, 70).tolist()
    return [common + rng.integers(0, 250, count).tolist() for count in (3, 40, 90, 1, 17)]


def answers(llm: LLM, prompts: list[list[int]], num_tokens: int = NUM_TOKENS) -> Answers:
    """How answers of so many tokens begin."""
    greedy = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=2)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return [
        (
            output.outputs[0].token_ids[:NUM_TOKENS],
            [
                {token: each.logprob for token, each in place.items()}
                for place in (output.outputs[0].logprobs or ())[:NUM_TOKENS]
            ],
        )
        for output in outputs
    ]


def test_hit_miss_chunks_companions_and_preemption_change_no_bit(
    directory: Path, make: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    llm = make()
    missed = answers(llm, prompts)
    assert len({tuple(tokens) for tokens, _ in missed}) > 1, "all say the same: nothing is shown"
    assert answers(llm, prompts) == missed
    narrow = make(enable_prefix_caching=False, max_num_batched_tokens=13, max_num_seqs=13)
    assert [answers(narrow, [prompt])[0] for prompt in prompts] == missed
    cache = load_spec(locate(str(directory))).cache_spec(8, "bfloat16", under_way_tokens=64)
    tight = make(
        num_gpu_blocks_override=cache.num_blocks(MOST_TOKENS),
        enable_prefix_caching=False,
        max_num_batched_tokens=64,
    )
    assert answers(tight, prompts, 60) == missed
    # layers that slide let go of so much that all fit
    assert tight.stats().num_preemptions > 0 or len(cache.groups) > 1
