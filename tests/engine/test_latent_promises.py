"""The promises of models that keep latents: whatever the cache does, the same tokens; the bytes
that plan and log say; and what is not covered with them, refused by name."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from preempting import preempt_every_fourth

from checkpoints import Case, write_checkpoint
from latent_cases import LATENT_CASES
from pagoda.cache import AttentionWindow
from pagoda.cache.formats import LATENT_FORMATS
from pagoda.cli.plan_model import find_facts
from pagoda.engine.build import Model, assemble, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.lab.subject import Subject
from pagoda.planning.plan import make_plan
from pagoda.planning.request import PlanRequest
from pagoda.request import SamplingParams

BLOCK_SIZE = 16
NARROW = "streaming:sinks=4,window=28"
PROMPTS = [[(place * place * step) % 251 for place in range(60)] for step in range(3, 7)]
SIZES = {
    "max_position_embeddings": 512, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 32,
}  # fmt: skip
LATENTS = {
    "minicpm3": Case("minicpm3", {**LATENT_CASES["minicpm3"].config, **SIZES}),
    "deepseek_v3": Case("deepseek_v3", {**LATENT_CASES["deepseek_v3"].config, **SIZES}),
    "with-experts": Case("deepseek_v3", {**LATENT_CASES["deepseek_v3-experts"].config, **SIZES}),
}
CODES: dict[str, dict[str, Any]] = {
    "minicpm3": {"kv_cache_dtype": "int8_per_group"},
    "deepseek_v3": {"kv_cache_dtype": "fp8"},
    "with-experts": {"kv_cache_dtype": "fp8_ds_mla", "kv_cache_dtype_skip_layers": (1,)},
}
"""What each stores its latents in beside bfloat16: with each of these all promises hold as well."""
Told = list[list[tuple[int, float]]]
"""Of each answer: its tokens, and how likely each was."""


@pytest.fixture(scope="module", params=LATENTS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def directory(name: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("latent"), LATENTS[name]))


@pytest.fixture(scope="module")
def model(directory: str) -> Model:
    return load_model(EngineOptions(model=directory, dtype="bfloat16"))


def engine_of(model: Model, max_model_len: int = 128, **options: Any) -> LLM:
    defaults = {"num_gpu_blocks_override": 100, "block_size": BLOCK_SIZE}
    own = replace(model, max_model_len=max_model_len)
    return LLM.from_engine(connect(own, EngineOptions(**(defaults | options))))


def told(llm: LLM, prompts: list[list[int]], **options: Any) -> Told:
    greedy = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=0)
    outputs = llm.generate(prompts, greedy, use_tqdm=False, **options)
    answers = [output.outputs[0] for output in outputs]
    llm.engine.scheduler.cache.check_integrity()
    return [
        [
            (token, entry[token].logprob)
            for token, entry in zip(a.token_ids, a.logprobs, strict=True)
        ]
        for a in answers
    ]


def test_hit_miss_chunks_crowd_and_preemption_agree(model: Model) -> None:
    """Not a bit of an answer changes, log-probabilities too."""
    alone = engine_of(model, enable_prefix_caching=False)
    expected = [told(alone, [prompt])[0] for prompt in PROMPTS]
    crowd = engine_of(model, max_num_batched_tokens=7 * len(PROMPTS))
    assert told(crowd, PROMPTS) == expected
    assert told(crowd, PROMPTS) == expected
    assert crowd.stats().prefix_cache_hits > 0
    short = engine_of(model, 96, max_num_batched_tokens=16)
    preempt_every_fourth(short)
    assert told(short, PROMPTS) == expected
    assert short.stats().num_preemptions > 0


def test_codes_keep_the_promises(model: Model, name: str) -> None:
    """One engine does all at once: misses, hits, chunks, a crowd, preemption."""
    plain = told(engine_of(model), PROMPTS)
    alone = engine_of(model, enable_prefix_caching=False, **CODES[name])
    expected = [told(alone, [prompt])[0] for prompt in PROMPTS]
    assert expected != plain
    crowd = engine_of(model, max_num_batched_tokens=7 * len(PROMPTS), **CODES[name])
    preempt_every_fourth(crowd)
    assert told(crowd, PROMPTS) == told(crowd, PROMPTS) == expected
    stats = crowd.stats()
    assert min(stats.num_preemptions, stats.prefix_cache_hits) > 0


def test_windows_keep_the_promises(model: Model, name: str, directory: str) -> None:
    """One engine does all at once, in codes too, in as many blocks as the plan says."""
    options = {**CODES[name], "kv_retention": NARROW}
    alone = engine_of(model, enable_prefix_caching=False, **options)
    expected = [told(alone, [prompt])[0] for prompt in PROMPTS]
    assert expected != told(engine_of(model, **CODES[name]), PROMPTS)
    crowd = engine_of(model, max_num_batched_tokens=7 * len(PROMPTS), **options)
    preempt_every_fourth(crowd)
    assert told(crowd, PROMPTS) == told(crowd, PROMPTS) == expected
    stats = crowd.stats()
    assert min(stats.num_preemptions, stats.prefix_cache_hits) > 0
    request = PlanRequest(
        engine="pagoda", dtype="bfloat16", block_size=BLOCK_SIZE, memory=2**34, max_model_len=10**5,
        max_num_batched_tokens=64, **options,
    )  # fmt: skip
    plan = make_plan(find_facts(directory), request)
    kept = AttentionWindow(28, 4).num_blocks(10**5, BLOCK_SIZE, 64)
    assert [(each.window, each.sinks) for each in plan.groups] == [(28, 4)]
    assert plan.groups[0].blocks_per_request == kept
    held = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": kept}
    stream = engine_of(model, 10**4, **options, **held)
    greedy = SamplingParams(temperature=0, max_tokens=160, ignore_eos=True)
    [answer] = stream.generate(PROMPTS[:1], greedy, use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 160


def test_requests_choose_what_stays_of_latents(model: Model) -> None:
    llm = engine_of(model, request_kv_retention=True)
    whole, kept = told(llm, PROMPTS[:1]), told(llm, PROMPTS[:1], kv_retention=NARROW)
    assert kept != whole
    assert llm.stats().prefix_cache_hits == 0
    assert told(engine_of(model, kv_retention=NARROW), PROMPTS[:1]) == kept
    assert told(llm, PROMPTS[:1]) == whole


@pytest.mark.parametrize("is_coded", [False, True])
def test_plan_log_and_memory_say_the_same_bytes(
    model: Model, name: str, directory: str, caplog: pytest.LogCaptureFixture, is_coded: bool
) -> None:
    stored = CODES[name] if is_coded else {}
    num_plain = len(stored.get("kv_cache_dtype_skip_layers", ()))
    num_layers = len(model.spec.layers)
    token_bytes = num_layers * 1152
    if is_coded:
        token_bytes = num_plain * 1152 + (num_layers - num_plain) * 656
    options = EngineOptions(num_gpu_blocks_override=100, block_size=BLOCK_SIZE, **stored)
    with caplog.at_level(logging.INFO, "pagoda"):
        _, running = assemble(replace(model, max_model_len=128), options)
    left_out = ", bfloat16 in layers 1" if num_plain else ""
    form = stored.get("kv_cache_dtype", "bfloat16") + left_out
    assert f"keys and values: {form}: {token_bytes:,} bytes a token" in caplog.text
    assert running.storage.size_bytes == 100 * BLOCK_SIZE * token_bytes
    request = PlanRequest(
        engine="pagoda", dtype="bfloat16", block_size=BLOCK_SIZE, memory=2**34, max_model_len=128,
        **stored,
    )  # fmt: skip
    plan = make_plan(find_facts(directory), request)
    assert plan.block_bytes == BLOCK_SIZE * token_bytes
    assert plan.weights_bytes == model.held.total_bytes == model.loaded.weights.size_bytes


@pytest.mark.parametrize("activations", ["auto", "int8"])
def test_quantised_weights_keep_the_promises(directory: str, activations: str) -> None:
    """All but what is turned for the heads is quantised; the bytes are those that the plan says."""
    options: Any = {"quantization": "q8_0", "activation_dtype": activations}
    model = load_model(EngineOptions(model=directory, dtype="bfloat16", **options))
    alone = engine_of(model, enable_prefix_caching=False, **options)
    expected = [told(alone, [prompt])[0] for prompt in PROMPTS]
    crowd = engine_of(model, max_num_batched_tokens=7 * len(PROMPTS), **options)
    assert told(crowd, PROMPTS) == told(crowd, PROMPTS) == expected
    assert crowd.stats().prefix_cache_hits > 0
    request = PlanRequest(
        engine="pagoda", dtype="bfloat16", memory=2**34, max_model_len=128, **options
    )
    plan = make_plan(find_facts(directory), request)
    assert plan.weights_bytes == model.held.total_bytes == model.loaded.weights.size_bytes


REFUSED = [
    ("kv_cache_dtype", "int8_per_token_head"),
    ("kv_cache_dtype", "fp8_e5m2"),
    ("kv_cache_dtype", "int4"),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_what_is_not_covered_is_refused_by_engine_and_plan(
    model: Model, directory: str, field: str, value: object
) -> None:
    options = {field: value}
    with pytest.raises(InvalidOptionError, match="latent") as by_engine:
        engine_of(model, **options)
    with pytest.raises(InvalidOptionError, match="latent"):
        load_model(EngineOptions(model=directory, dtype="bfloat16", **options))  # before weights
    request: Any = {"engine": "pagoda", "memory": 2**34, "dtype": "bfloat16", **options}
    with pytest.raises(InvalidOptionError, match="latent") as by_plan:
        make_plan(find_facts(directory), PlanRequest(**request))
    assert by_engine.value.field == by_plan.value.field == field


def test_the_lab_tries_what_latents_can_be_stored_in(model: Model) -> None:
    methods = Subject(model, EngineOptions(block_size=BLOCK_SIZE)).methods()
    names = [method.kv_cache_dtype for method in methods]
    others = [name for name in names if "turboquant" not in name]  # which guard all four layers
    assert others == ["auto", "float32", "fp8_e4m3", "int8_per_group"]


def test_a_plan_for_a_gpu_has_latents(directory: str, model: Model) -> None:
    machine: Any = {"engine": "pagoda", "gpu": "H100", "dtype": "bfloat16"}
    for stored, token_bytes in (({}, 1152), ({"kv_cache_dtype": "fp8"}, 656)):
        plan = make_plan(find_facts(directory), PlanRequest(**machine, **stored))
        assert plan.block_bytes == plan.block_size * len(model.spec.layers) * token_bytes


@pytest.mark.parametrize("asked", [{"kv_retention": NARROW}, {"request_kv_retention": True}])
def test_a_plan_for_a_gpu_keeps_all_latents(directory: str, asked: Any) -> None:
    request = PlanRequest(engine="pagoda", gpu="H100", dtype="bfloat16", **asked)
    with pytest.raises(InvalidOptionError, match="on a GPU a model of latent") as refusal:
        make_plan(find_facts(directory), request)
    assert refusal.value.field == next(iter(asked))


def test_a_plan_for_vllm_goes_by_its_own_rules(directory: str, model: Model) -> None:
    """It caches MiniCPM3's heads, all of them, and DeepSeek's latents."""
    plan = make_plan(find_facts(directory), PlanRequest(gpu="H100", max_model_len=128))
    heads = 2 * model.spec.layers[0].attention.num_heads * (24 + 64) * 2
    of_layer = heads if model.spec.architecture.startswith("MiniCPM3") else 1152
    assert plan.block_bytes == plan.block_size * len(model.spec.layers) * of_layer


def test_formats_of_latents_are_for_latents_and_for_pagoda_alone(directory: str) -> None:
    for form in ("fp8_ds_mla", "int8_per_group"):
        request: Any = {"engine": "pagoda", "memory": 2**34, "kv_cache_dtype": form}
        with pytest.raises(InvalidOptionError, match="is for latent attention"):
            make_plan(find_facts("smollm2"), PlanRequest(**request))
    for form in LATENT_FORMATS:
        with pytest.raises(InvalidOptionError, match="is Pagoda's own"):
            make_plan(find_facts(directory), PlanRequest(gpu="H100", kv_cache_dtype=form))
