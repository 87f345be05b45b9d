"""Long prompts, crowds, forks and short pools under every codec: not a bit of an answer changes.

Each answer is held, with its log-probabilities, against that of an engine that shares nothing and
computes each prompt at once, and every fifth one against that of the same request alone; larger
chunks, which differ in nothing that a format knows of, and short pools take turns. The model
is small and random: what it says rests on everything that it has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from few_layers import with_layers

from checkpoints import Case, write_checkpoint
from pagoda.cache.formats import CODED_FORMATS
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams

BLOCK_SIZE = 16
NUM_TOKENS = 9
"""Every other answer completes a block."""
SHAPE = {"head_dim": 64, "num_hidden_layers": 6, "max_position_embeddings": 1024}
"""TurboQuant leaves two layers at each end as they are. Formats that know of none have three."""
MIXES = [
    *({"kv_cache_dtype": name} for name in CODED_FORMATS),
    {"kv_cache_dtype": "levels5-float16-norm-hadamard/levels4-float16-offset"},
    {"kv_cache_dtype": "turboquant_k3v4_nc", "kv_cache_dtype_skip_layers": (3,)},
    {"kv_cache_dtype": "int4_per_token_head", "kv_cache_dtype_skip_layers": (0, 2, 5)},
]
Told = list[list[tuple[int, float]]]
"""Of each choice: its tokens, and how likely each was."""
RNG = np.random.default_rng(5)


def drawn(count: int) -> list[int]:
    return RNG.integers(256, size=count).tolist()


LONG = [drawn(530), drawn(280)]
SHORT = [drawn(int(count)) for count in RNG.integers(4, 60, size=14)]
STEM = drawn(6 * BLOCK_SIZE + 5)
"""It ends in the middle of a block."""
BRANCHES = [
    [*STEM, *drawn(9)],
    [*STEM, *drawn(40)],
    STEM[: 6 * BLOCK_SIZE],
    [*STEM[: 6 * BLOCK_SIZE - 3], *drawn(3)],
    [*STEM[:70], *drawn(20)],
    STEM,
]


@dataclass(frozen=True)
class Asked:
    """A request, by what the model sees of it."""

    prompt: Sequence[int]
    n: int = 1

    @property
    def params(self) -> SamplingParams:
        common = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "logprobs": 0}
        if self.n == 1:
            return SamplingParams(temperature=0, **common)  # type: ignore[arg-type]
        return SamplingParams(n=self.n, seed=7, **common)  # type: ignore[arg-type]


CROWD = [
    *(Asked(prompt) for prompt in (*SHORT, *BRANCHES, *LONG)),
    *(Asked(prompt, n=3) for prompt in (*SHORT[:4], *BRANCHES[:2], SHORT[0][:1])),
    *(Asked(prompt) for prompt in (SHORT[0], BRANCHES[0], STEM[:-1])),
]
SHORT_CROWD = [asked for asked in CROWD if len(asked.prompt) < 150]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = write_checkpoint(tmp_path_factory.mktemp("six"), Case("llama", SHAPE))
    return load_model(EngineOptions(model=str(directory), dtype="bfloat16"))


def engine_of(model: Model, mix: Mapping[str, object], **options: object) -> LLM:
    defaults: dict[str, object] = {
        "num_gpu_blocks_override": 512,
        "block_size": BLOCK_SIZE,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "threads": 1,
    }
    engine_options = EngineOptions(**(defaults | mix | options))  # type: ignore[arg-type]
    return LLM.from_engine(connect(model, engine_options))


def told(llm: LLM, crowd: Sequence[Asked]) -> list[Told]:
    prompts, params = [list(one.prompt) for one in crowd], [one.params for one in crowd]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return [[_told(choice) for choice in output.outputs] for output in outputs]


def _told(choice: object) -> list[tuple[int, float]]:
    return [
        (token_id, entry[token_id].logprob)
        for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


def layers_for(model: Model, mix: Mapping[str, object]) -> Model:
    """As few as show the mix."""
    has_own = str(mix["kv_cache_dtype"]).startswith("turboquant") or len(mix) > 1
    return model if has_own else with_layers(model, range(3))


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(map(str, mix.values())))
def test_whatever_the_cache_does_not_a_bit_changes(model: Model, mix: dict[str, object]) -> None:
    model = layers_for(model, mix)
    assert len(CROWD) == 32
    assert sum(len(asked.prompt) for asked in CROWD) <= 8192
    unshared = engine_of(model, mix, enable_prefix_caching=False, max_num_batched_tokens=8192)
    expected = told(unshared, CROWD)
    assert len({tuple(tokens) for answer in expected for tokens in answer}) > 32
    number = MIXES.index(mix)  # the next format takes the next fifth
    for asked, answer in list(zip(CROWD, expected, strict=True))[number % 5 :: 5]:
        assert told(unshared, [asked]) == [answer], "alone"

    crowd = engine_of(model, mix, max_num_batched_tokens=512 if number % 2 else 2048)
    assert told(crowd, CROWD) == expected
    shared = crowd.stats().cache
    assert shared.prefix_hits > 6 * BLOCK_SIZE
    assert shared.copies_on_write > 12
    chunked = engine_of(model, mix, max_num_batched_tokens=64)
    assert told(chunked, CROWD) == expected, "chunks of 64"
    assert told(chunked, CROWD) == expected, "found after chunks of 64"
    if number % 2:
        return

    demand = sum(one.n * -(-(len(one.prompt) + NUM_TOKENS) // BLOCK_SIZE) for one in SHORT_CROWD)
    short = engine_of(replace(model, max_model_len=176), mix, num_gpu_blocks_override=demand // 5)
    assert told(short, SHORT_CROWD) == [
        answer for one, answer in zip(CROWD, expected, strict=True) if one in SHORT_CROWD
    ]
    assert short.stats().num_preemptions > 0


@pytest.mark.parametrize("name", CODED_FORMATS)
def test_choices_are_as_likely_as_the_same_text_in_a_prompt(model: Model, name: str) -> None:
    """Forks share their prompt's last block and part in it; here nobody shares anything."""
    mix = {"kv_cache_dtype": name}
    llm = engine_of(layers_for(model, mix), mix)
    for prompt in (STEM, SHORT[1]):
        [choices] = told(llm, [Asked(prompt, n=4)])
        assert len({tuple(choice) for choice in choices}) == 4
        whole = [[*prompt, *(token for token, _ in choice)] for choice in choices]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = llm.generate(whole, params, use_tqdm=False)
        for choice, output in zip(choices, outputs, strict=True):
            entries = (output.prompt_logprobs or [])[len(prompt) :]
            found = [(token, entry[token].logprob) for entry in entries if entry for token in entry]
            assert found == choice
