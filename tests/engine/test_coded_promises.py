"""The promises under every codec: attention reads what was stored, so whatever the cache does, not
a bit of an answer changes; and every byte of the pool is accounted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from few_layers import with_layers
from preempting import preempt_every_fourth

from checkpoints import Case, write_checkpoint
from pagoda.cli.plan_model import find_facts
from pagoda.codecs import CODECS
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.devices import cpu_backend
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.planning.plan import make_plan
from pagoda.planning.request import PlanRequest
from pagoda.request import SamplingParams
from prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = 4
"""Of each answer, which begins two places before a block ends."""
BLOCK_SIZE = 16
MIXED = [
    {"kv_cache_dtype": "int4_per_token_head", "kv_cache_dtype_skip_layers": (0, 2, 5)},
    {"kv_cache_dtype": "float32", "kv_cache_dtype_skip_layers": (3,)},
    {"kv_cache_dtype": "levels5-float16-norm-hadamard/levels4-float16-offset"},
]
MIXES = [
    *({"kv_cache_dtype": name} for name in (*CODECS, "int4")),
    *MIXED,
]
SPOKEN = [
    *({"kv_cache_dtype": name} for name in ("fp8", "int4", "turboquant_k3v4_nc")),
    *MIXED,
]
"""Each kind of numbers, scales and turns, and all mixes; `test_coded_crowds.py` has every codec and
compares more, by a model that is small."""
Tokens = list[list[int]]
Told = list[tuple[int, float]]
"""Of an answer: its tokens, and how likely each was."""


@pytest.fixture(scope="module")
def short_model(default_model: Model) -> Model:
    """Every fifth layer of it: six, of which TurboQuant leaves two at each end as they are."""
    return with_layers(default_model, range(0, len(default_model.spec.layers), 5))


def engine_of(model: Model, max_model_len: int = 256, **options: object) -> LLM:
    defaults: dict[str, object] = {"num_gpu_blocks_override": 64, "block_size": BLOCK_SIZE}
    own = replace(model, max_model_len=max_model_len)
    engine_options = EngineOptions(**(defaults | options))  # type: ignore[arg-type]
    return LLM.from_engine(connect(own, engine_options))


def told(llm: LLM, prompts: Tokens) -> list[Told]:
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    llm.engine.scheduler.cache.check_integrity()
    return [_told(output.outputs[0]) for output in outputs]


def _told(choice: Any) -> Told:
    return [
        (token_id, entry[token_id].logprob)
        for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


@pytest.mark.parametrize("mix", SPOKEN, ids=lambda mix: "-".join(map(str, mix.values())))
def test_hit_miss_chunks_crowd_and_preemption_agree(
    short_model: Model, mix: dict[str, object]
) -> None:
    texts = (first + second for first, second in zip(PROMPTS[:4], PROMPTS[6:10], strict=True))
    whole = [short_model.tokenizer.encode(text)[:48] for text in texts]
    prompts = [each[: len(each) // BLOCK_SIZE * BLOCK_SIZE - 2] for each in whole]
    alone = engine_of(short_model, enable_prefix_caching=False, **mix)
    expected = [told(alone, [prompt])[0] for prompt in prompts]

    crowd = engine_of(short_model, max_num_batched_tokens=7 * len(prompts), **mix)
    assert told(crowd, prompts) == expected
    assert told(crowd, prompts) == expected
    assert crowd.stats().prefix_cache_hits > 0

    short = engine_of(short_model, 64, **mix)
    preempt_every_fourth(short)
    assert told(short, prompts) == expected
    assert short.stats().num_preemptions > 0


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(map(str, mix.values())))
def test_the_plan_tells_the_tokens_that_the_engine_has(
    default_model: Model, mix: dict[str, object]
) -> None:
    memory, longest = 2**26, default_model.max_model_len
    sized = default_model.loaded.size(
        EngineOptions(kv_cache_memory_bytes=memory, **mix),  # type: ignore[arg-type]
        longest,
    )
    request = PlanRequest(
        engine="pagoda", memory=2**32, kv_cache_memory_bytes=memory, max_model_len=longest, **mix
    )  # type: ignore[arg-type]
    plan = make_plan(find_facts("smollm2"), request)
    assert plan.low is not None
    assert plan.low == plan.high
    assert plan.low.num_tokens == sized.capacity.num_tokens
    assert memory - sized.capacity.size_bytes < sized.capacity.spec.block_bytes


def test_int8_holds_187_and_int4_35_times_as_many_tokens(default_model: Model) -> None:
    def tokens(name: str) -> int:
        options = EngineOptions(kv_cache_memory_bytes=2**31, kv_cache_dtype=name)
        size = default_model.loaded.size(options, default_model.max_model_len)
        return size.capacity.num_tokens

    whole = tokens("auto")
    assert tokens("int8_per_token_head") >= 1.87 * whole
    assert tokens("int4_per_token_head") >= 3.5 * whole


def test_the_log_says_how_keys_and_values_are_stored(
    default_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="pagoda"):
        options = {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 2**25}
        coding = {"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": (0, 7)}
        llm = engine_of(default_model, **coding, **options)
    token_bytes = (28 + 2 * 2) * 2 * 3 * 64
    plain, coded = (2**25 // (16 * each) * 16 for each in (30 * 768, token_bytes))
    assert coded == llm.stats().num_blocks * 16
    assert caplog.messages[2] == (
        f"keys and values: fp8, bfloat16 in layers 0, 7: {token_bytes:,} bytes a token, "
        f"{coded:,} tokens where bfloat16 would hold {plain:,}"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"kv_cache_dtype": "int5"},
            "kv_cache_dtype=.int5.: one of auto, float32, float16, bfloat16",
        ),
        ({"kv_cache_dtype": "levels7-float16-norm/e4m3"}, "is no codec: KEYS/VALUES"),
        ({"kv_cache_dtype": "float16"}, "one of auto, .* on a CPU"),
        ({"kv_cache_dtype_skip_layers": (30,)}, "layers=30: the model has layers 0 to 29"),
    ],
)
def test_what_a_cache_cannot_be_is_refused_by_name(
    default_model: Model, options: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidOptionError, match=told):
        engine_of(default_model, **options)


def test_heads_that_a_codec_cannot_cut_are_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, Case("llama", {"head_dim": 24}))
    options = {"model": str(tmp_path), "device": "cpu", "kv_cache_dtype": "int8_per_token_head"}

    def read(*args: object, **options: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(cpu_backend, "load_weights", read)
    with pytest.raises(InvalidOptionError, match=r"multiple of 16 numbers, and these have 24"):
        load_model(EngineOptions(**options))  # type: ignore[arg-type]
    facts = find_facts(str(tmp_path))
    request = PlanRequest(engine="pagoda", memory=2**30, kv_cache_dtype="int8_per_token_head")
    with pytest.raises(InvalidOptionError, match=r"multiple of 16 numbers, and these have 24"):
        make_plan(facts, request)
    assert make_plan(facts, replace(request, kv_cache_dtype="auto")).low is not None
