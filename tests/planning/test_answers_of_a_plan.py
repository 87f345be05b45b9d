"""The plan as a whole: figures that the field passes around, monotony, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.engine.devices.cpu_backend import CPUBackend
from pagoda.errors import CapacityError, InvalidOptionError, ModelError, RefusedError
from pagoda.models.config import ModelConfig
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.capability import product_rate
from pagoda.planning.plan import make_plan
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.subject import read_subject
from pagoda.planning.tables import accelerators, find_accelerator, nearest_models
from planning.plans import GIB, LLAMA_3_8B, facts, plan

LLAMA_2_7B = "meta-llama/Llama-2-7b-hf"
LLAMA_2_70B = "meta-llama/Llama-2-70b-hf"
LLAMA_3_70B = "meta-llama/Llama-3.1-70B-Instruct"


# What people copy from one another


def test_llama_2_7b_keeps_one_gib_for_2048_tokens() -> None:
    """A widely copied table says 0.5: it forgets that K and V are two."""
    assert plan(LLAMA_2_7B, max_model_len=2048, dtype="float16").sequence_bytes == GIB


def test_70b_with_grouped_queries_needs_less_a_token_than_7b_without() -> None:
    assert plan(LLAMA_2_70B).token_bytes == 327_680
    assert plan(LLAMA_2_7B).token_bytes == 524_288


def test_llama_3_70b_at_128k_is_about_40_gb() -> None:
    sequence = plan(LLAMA_3_70B, max_model_len=131_072).sequence_bytes
    assert sequence == 40 * GIB


def test_643_232_tokens_at_40_960_are_15_70() -> None:
    told = plan("Qwen/Qwen3-14B", num_gpu_blocks_override=643_232 // 16, max_model_len=40_960)
    assert told.high is not None
    assert told.high.lines[-1] == (
        "GPU KV cache size: 643,232 tokens, Maximum concurrency for 40,960 tokens per request: "
        "15.70x"
    )


def test_an_80_gb_card_with_14_gb_of_weights_and_6_of_activations_holds_60_sequences() -> None:
    """80 - 14 - 6 GB over 1 GiB a sequence of Llama-2-7B at 2,048 tokens: 55, in GiB 60."""
    told = plan(
        LLAMA_2_7B, kv_cache_memory_bytes=(80 - 14 - 6) * GIB, max_model_len=2048, dtype="float16"
    )
    assert told.is_exact
    assert told.high is not None
    assert told.high.concurrency == 60
    assert told.high.users == 59  # one block is never handed out


def test_a_known_start_up_lies_between_the_ends() -> None:
    """Llama-3.1-8B on an H100 at 0.95 under vLLM 0.19: 58.11 GiB and 476,016 tokens."""
    told = plan(
        LLAMA_3_8B, gpu="H100", engine="vllm@0.19.0", gpu_memory_utilization=0.95,
        max_model_len=8192,
    )  # fmt: skip
    assert told.low is not None
    assert told.high is not None
    assert told.low.num_tokens < 476_016 < told.high.num_tokens
    assert told.low.available_bytes < 58.11 * GIB < told.high.available_bytes
    assert told.low.lines[1].endswith(" tokens")  # tokens and concurrency on lines of their own
    assert len(told.low.lines) == 3


@pytest.mark.parametrize(
    ("engine", "blocks", "tokens"),
    [
        ("vllm", 21_110, int(21_110 / (512 + 513) * 8192)),  # requests × their length
        ("vllm@0.19.0", 21_110, 21_110 // 2 * 16),  # the posted 168,880
        ("vllm@0.8.5", 10_555, 10_555 * 16),  # windows freed nothing: all 42 layers in a block
    ],
)
def test_a_mixed_model_prints_other_tokens_in_other_releases(
    engine: str, blocks: int, tokens: int
) -> None:
    """Gemma 2 9B, half of its 42 layers with windows, in the same memory."""
    told = plan(
        "google/gemma-2-9b-it", engine=engine, gpu="H100", max_model_len=8192,
        kv_cache_memory_bytes=21_110 * 21 * 16 * 8192,
    )  # fmt: skip
    assert told.high is not None
    assert (told.high.num_blocks, told.high.num_tokens) == (blocks, tokens)


# Starts of vLLM 0.32 on a CPU, made for this: what it printed


SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
STARTS: list[tuple[dict[str, Any], str]] = [
    (
        {"kv_cache_memory_bytes": GIB, "block_size": 32, "max_model_len": 4096},
        "CPU KV cache size: 46,592 tokens, Maximum concurrency for 4,096 tokens per request: "
        "11.38x",
    ),
    (
        {
            "kv_cache_memory_bytes": 3 * GIB // 2, "block_size": 64, "max_model_len": 2000,
            "dtype": "float32",
        },
        "CPU KV cache size: 34,125 tokens, Maximum concurrency for 2,000 tokens per request: "
        "17.06x",
    ),
    (
        {"kv_cache_memory_bytes": 2 * GIB, "max_model_len": 8192},
        "CPU KV cache size: 93,184 tokens, Maximum concurrency for 8,192 tokens per request: "
        "11.38x",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "line"), STARTS)
def test_the_line_is_what_vllm_printed_on_a_cpu(options: dict[str, Any], line: str) -> None:
    told = plan(SMOLLM2, gpu="CPU", **options)
    assert told.is_exact
    assert told.high is not None
    assert told.high.lines == (line,)


def test_the_line_is_what_vllm_printed_for_windows_on_a_cpu() -> None:
    """Gemma 3's layers, 13 of them and small, random weights: 2 full, 11 with a window of 512."""
    config = {
        "model_type": "gemma3_text", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 13, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 49_152,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    }  # fmt: skip
    request = PlanRequest(
        gpu="CPU", kv_cache_memory_bytes=GIB // 2, block_size=32, max_model_len=4096,
        max_num_batched_tokens=1024,
    )  # fmt: skip
    told = make_plan(ModelFacts("small", "here", ModelConfig(config)), request)
    assert told.high is not None
    assert told.high.lines == (
        "CPU KV cache size: 159,025 tokens, Maximum concurrency for 4,096 tokens per request: "
        "38.82x",
    )


# What must hold whatever is asked


MODELS = [
    LLAMA_3_8B, "google/gemma-3-27b-it", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "meta-llama/Llama-4-Scout-17B-16E-Instruct",
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS), st.integers(20, 400), st.integers(1, 200), st.sampled_from([1, 2, 4])
)
def test_more_memory_never_gives_less(name: str, memory: int, more: int, size: int) -> None:
    options = {"max_model_len": 4096, "tensor_parallel_size": size}
    try:
        small = plan(name, memory=memory * GIB, **options)
    except CapacityError:
        return
    large = plan(name, memory=(memory + more) * GIB, **options)
    for one, other in ((small.low, large.low), (small.high, large.high)):
        assert one is not None
        assert other is not None
        assert one.num_tokens <= other.num_tokens
        assert one.users <= other.users
        assert one.longest_context is not None
        assert other.longest_context is not None
        assert one.longest_context <= other.longest_context
        assert one.size_bytes <= one.available_bytes
    assert small.low is not None
    assert small.high is not None
    assert small.low.num_blocks <= small.high.num_blocks


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 100), st.integers(16, 4096))
def test_fewer_bits_never_give_less(name: str, gibs: int, context: int) -> None:
    options = {"kv_cache_memory_bytes": gibs * GIB, "max_model_len": 4096, "context": context}
    try:
        plain = plan(name, **options)
    except CapacityError:
        return
    packed = plan(name, kv_cache_dtype="fp8", **options)
    assert plain.high is not None
    assert packed.high is not None
    assert plain.high.num_tokens <= packed.high.num_tokens
    assert plain.high.users <= packed.high.users


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("users", [1, 3, 17])
def test_the_longest_context_is_the_longest(name: str, users: int) -> None:
    """So many fit at that length, and not with a token more."""
    subject = read_subject(facts(name), PlanRequest(), None)
    pool, num_blocks = subject.pool, 20_000
    longest = pool.longest_context(num_blocks, users)
    assert 0 < longest < pool.longest
    assert pool.num_users(num_blocks, longest) >= users
    assert pool.num_users(num_blocks, longest + 1) < users
    most = min(pool.longest_request(num_blocks), subject.max_model_len)
    told = plan(name, num_gpu_blocks_override=num_blocks, max_model_len=most, users=users)
    assert told.high is not None
    assert told.high.longest_context == min(longest, most)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (LLAMA_3_8B, {}),
        ("google/gemma-3-27b-it", {"pipeline_parallel_size": 3}),
        (LLAMA_3_70B, {"pipeline_parallel_size": 4, "max_model_len": 8192}),
        (LLAMA_3_8B, {"engine": "pagoda", "gpu_memory_utilization": 1.0}),
    ],
)
def test_the_parts_of_the_memory_add_up(name: str, options: dict[str, Any]) -> None:
    told = plan(name, gpu="H100", **options)
    low_cache = next(part for part in told.memory if part.name == "KV cache").low
    others = sum(part.high for part in told.memory if part.name != "KV cache")
    assert told.device_bytes is not None
    assert 0 <= told.device_bytes - others - low_cache < told.block_bytes


@pytest.mark.parametrize(
    "options", [{"kv_cache_memory_bytes": 60 * GIB}, {"num_gpu_blocks_override": 30_000}]
)
def test_a_stated_cache_is_a_part_that_no_utilization_bounds(options: dict[str, Any]) -> None:
    told = plan(LLAMA_3_8B, gpu="H100", **options)
    assert told.device_bytes is not None
    assert sum(part.low for part in told.memory) <= told.device_bytes
    assert "left by utilization" not in {part.name for part in told.memory}


@pytest.mark.parametrize("engine", ["vllm", "pagoda"])
def test_a_number_of_blocks_goes_before_bytes_as_in_the_engine(engine: str) -> None:
    blocks: dict[str, Any] = {"engine": engine, "gpu": "H100", "num_gpu_blocks_override": 30_000}
    both = plan(LLAMA_3_8B, **blocks, kv_cache_memory_bytes=2 * GIB)
    assert both.high is not None
    assert both.high.num_blocks == 30_000
    assert both == plan(LLAMA_3_8B, **blocks)


def test_a_plan_is_json() -> None:
    told = plan_with_alternatives(facts(LLAMA_3_8B), PlanRequest(gpu="H100", price=2.0))
    again = json.loads(json.dumps(told.as_json()))
    assert again["high"]["num_tokens"] == told.high.num_tokens  # type: ignore[union-attr]
    assert {"weights", "KV cache"} <= {part["name"] for part in again["memory"]}
    assert len(again["alternatives"]) >= 6
    assert None not in {other["gain"] for other in again["alternatives"]}


def test_what_a_change_would_buy() -> None:
    told = plan_with_alternatives(
        facts(LLAMA_3_8B), PlanRequest(gpu="H100", kv_cache_memory_bytes=16 * GIB, context=8192)
    )
    gains = {other.name: other.gain for other in told.alternatives}
    assert gains["fp8 cache"] == pytest.approx(2, rel=0.1)
    assert gains["int4 cache"] == pytest.approx(4 * 128 / (128 + 8), rel=0.1)
    assert gains["half the context"] == pytest.approx(2, rel=0.1)
    assert gains["half of each prompt shared"] > 1.7  # type: ignore[operator]
    assert gains["1 more device"] == pytest.approx(2, rel=0.1)
    assert "fp8 weights" not in gains  # the cache's memory was said: it would buy nothing


def test_latents_are_not_split_over_ranks() -> None:
    one = plan("deepseek-ai/DeepSeek-V3", tensor_parallel_size=1)
    eight = plan("deepseek-ai/DeepSeek-V3", tensor_parallel_size=8)
    assert one.token_bytes == eight.token_bytes == 61 * 1152
    heads = [plan("Qwen/Qwen3-235B-A22B", tensor_parallel_size=n).token_bytes for n in (1, 4, 8)]
    assert heads[0] == 4 * heads[1] == 4 * heads[2]  # 4 KV heads: replicated beyond 4 ranks


def test_stages_take_the_layers_apart() -> None:
    whole = plan(LLAMA_3_70B, gpu="H100", tensor_parallel_size=4, max_model_len=8192)
    staged = plan(
        LLAMA_3_70B, gpu="H100", tensor_parallel_size=2, pipeline_parallel_size=2,
        max_model_len=8192,
    )  # fmt: skip
    assert staged.block_bytes == whole.block_bytes  # half the layers, twice the heads
    assert staged.num_devices == whole.num_devices == 4


def test_the_speed_is_bound_by_what_is_read() -> None:
    """Llama-3.1-8B on an H100, one user, no context to speak of: 15.0 GB over 3.35 TB/s."""
    told = plan(LLAMA_3_8B, gpu="H100", users=1, context=16)
    assert told.speed is not None
    assert told.speed.weight_read_bytes == 2 * 7_504_920_576
    assert told.speed.tokens_per_s == pytest.approx(3352e9 / (2 * 7_504_920_576), rel=0.001)
    experts = plan("Qwen/Qwen3-30B-A3B", gpu="H100", users=1, context=16).speed
    many = plan("Qwen/Qwen3-30B-A3B", gpu="H100", users=64, context=16).speed
    assert experts is not None
    assert many is not None
    assert experts.weight_read_bytes < 8e9 < 50e9 < many.weight_read_bytes < 61e9


@pytest.mark.parametrize("engine", ["vllm", "pagoda"])
def test_more_users_read_more_of_the_experts(engine: str) -> None:
    """Qwen3-30B-A3B: 8 of 128 experts a token, each of 3 × 2,048 × 768 numbers in 48 layers."""
    speeds = [
        plan("Qwen/Qwen3-30B-A3B", gpu="H200", engine=engine, users=users, context=16).speed
        for users in (1, 8, 64)
    ]
    for users, speed in zip((1, 8, 64), speeds, strict=True):
        assert speed is not None
        share = 1 - (120 / 128) ** users
        assert speed.experts_read == pytest.approx(share)
        of_experts = 48 * 128 * 3 * 2048 * 768
        others = 30_532_122_624 - of_experts - 151_936 * 2048  # the embedding is looked up
        assert speed.weight_read_bytes == pytest.approx(2 * (of_experts * share + others), rel=1e-3)
        assert speed.step_s >= speed.weight_read_bytes / 4.8e12
    assert plan(LLAMA_3_8B, gpu="H100", users=8).speed.experts_read is None  # type: ignore[union-attr]


def test_many_short_requests_are_bound_by_arithmetic() -> None:
    """Llama-3.1-8B on an A100: 2 operations for each of 7.5 billion numbers, and the attention."""
    told = plan(LLAMA_3_8B, gpu="A100-80GB", context=100, users=250, price=2.0).speed
    assert told is not None
    attention = 32 * 4 * 32 * 128 * 100
    own = 2 * 7_504_920_576 + attention
    assert told.total_tokens_per_s == pytest.approx(312e12 / own, rel=0.001)
    alone = plan(LLAMA_3_8B, gpu="A100-80GB", context=100, users=1).speed
    assert alone is not None
    assert alone.total_tokens_per_s < 140  # still bound by what is read


def test_no_rate_of_fewer_bits_is_below_that_of_more() -> None:
    for device in accelerators():
        plain, fp8, nvfp4 = (product_rate(device, name) for name in (None, "fp8", "nvfp4"))
        assert plain <= min(fp8, nvfp4, product_rate(device, "int8"))
        assert product_rate(device, "awq") == plain
    assert product_rate(find_accelerator("B200"), "nvfp4") >= 9e15


def test_the_attention_to_latents_counts_in_a_prompt() -> None:
    """DeepSeek-V3 at 163,840 tokens on 8 H200, in fp8: 61 layers of 128 heads, 320 a pair."""
    told = plan("deepseek-ai/DeepSeek-V3", gpu="H200", tensor_parallel_size=8, users=1).speed
    assert told is not None
    assert told.context == 163_840
    pairs = 163_840**2 / 2
    attention = 61 * 128 * 2 * 320 * pairs
    rate = 8 * 1978.9e12
    assert attention / rate < told.prefill_s < attention / rate + 1.0


def test_a_price_is_spread_over_users() -> None:
    told = plan(LLAMA_3_8B, gpu="H100", price=3.0, context=8192, users=10)
    assert told.cost_per_user == (pytest.approx(0.3), pytest.approx(0.3))
    assert told.speed is not None
    assert told.cost_per_million_tokens == pytest.approx(
        3.0 / 3600 / told.speed.total_tokens_per_s * 1e6
    )


def test_users_that_do_not_fit_are_told_with_what_is_missing() -> None:
    """60 requests of 1 GiB in 40 GiB, one block of 2 MiB reserved."""
    told = plan(
        LLAMA_3_8B, kv_cache_memory_bytes=40 * GIB, max_model_len=8192, context=8192, users=60
    )
    assert told.warnings == (
        "60 users of 8,192 tokens do not fit: 20.00 GiB are missing on each device",
    )
    unsure = plan(LLAMA_3_8B, gpu="H100", max_model_len=8192, users=55)
    assert unsure.low is not None
    assert unsure.high is not None
    assert unsure.low.users < 55 <= unsure.high.users
    assert "55 users of 8,192 tokens may not fit: up to " in unsure.warnings[0]


def test_a_draft_model_takes_memory_and_cache() -> None:
    alone = plan(LLAMA_3_8B, gpu="H100")
    request = PlanRequest(gpu="H100")
    beside = make_plan(facts(LLAMA_3_8B), request, facts("meta-llama/Llama-3.2-1B-Instruct"))
    assert beside.token_bytes == alone.token_bytes + 16 * 8 * 128 * 2
    assert beside.memory[0].low - alone.memory[0].low == 2 * 1_235_814_400


@pytest.mark.parametrize(
    ("name", "scheme", "gib"),
    [
        (LLAMA_3_70B, None, 131.42),
        (LLAMA_3_70B, "fp8", 67.7),
        (LLAMA_3_70B, "awq", 37.1),  # 39.8 GB on the hub
        ("openai/gpt-oss-20b", None, 12.8),  # 13.8 GB on the hub
    ],
)
def test_weights_under_a_scheme(name: str, scheme: str | None, gib: float) -> None:
    assert plan(name, quantization=scheme).weights_bytes / GIB == pytest.approx(gib, rel=0.02)


# What cannot be


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"tensor_parallel_size": 3}, "must divide the model's 32 attention heads"),
    "gpu": ({"gpu": "H1000"}, "the nearest are"),
    "both": ({"gpu": "H100", "memory": GIB}, "the GPU H100 is named as well"),
    "length": ({"max_model_len": 200_000}, "at most 131072, the positions"),
    "context": ({"max_model_len": 100, "context": 200}, "at most max_model_len, 100"),
    "context too": ({"context": 200_000}, "at most max_model_len, 131072"),
    "prefix": ({"context": 100, "shared_prefix": 200}, "at most the context, 100"),
    "share": ({"gpu_memory_utilization": 1.5}, "above 0 and at most 1"),
    "stages": ({"pipeline_parallel_size": 64}, "the model has 32 layers"),
    "dtype": ({"dtype": "int3"}, "one of auto"),
    "cache": ({"kv_cache_dtype": "fp9"}, "one of auto, fp8, float32"),
    "eight bits": ({"kv_cache_dtype": "int8"}, "none of this name: int8_per_token_head stores"),
    "calibrated": ({"kv_cache_dtype": "int4"}, "is Pagoda's own"),
    "latent": ({"kv_cache_dtype": "fp8_ds_mla"}, "is for latent attention"),
    "scheme": ({"quantization": "zip"}, "one of none, fp8"),
    "engine": ({"engine": "sglang"}, "vllm, vllm@VERSION or pagoda"),
    "version": ({"engine": "vllm@new"}, "a version such as vllm@0.19.1"),
    "word before": ({"engine": "vllm@abc0.19.1"}, "a version such as vllm@0.19.1"),
    "word after": ({"engine": "vllm@0.19.1abc"}, "a version such as vllm@0.19.1"),
    "no version": ({"engine": "vllm@"}, "a version such as vllm@0.19.1"),
    "ranks": ({"engine": "pagoda", "tensor_parallel_size": 2}, "Pagoda runs on one device"),
    "price": ({"price": float("nan")}, "must be a number of at least 0"),
    "users": ({"users": 0}, "must be at least 1"),
    "no stages": ({"pipeline_parallel_size": 0}, "must be at least 1"),
    "state": ({"mamba_ssm_cache_dtype": "int4"}, "mamba_ssm_cache_dtype='int4': one of"),
    "too much": ({"gpu": "L4", "kv_cache_memory_bytes": 20 * GIB}, "GiB too much"),
    "weights": ({"gpu": "T4"}, "does not fit on 1 × T4"),
    "cache alone": ({"kv_cache_memory_bytes": GIB}, "16.0 GiB KV cache is needed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str) -> None:
    options, words = REFUSED[name]
    with pytest.raises(RefusedError) as caught:
        plan(LLAMA_3_8B, **options)
    assert words in str(caught.value)


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would_help() -> None:
    with pytest.raises(CapacityError) as caught:
        plan_with_alternatives(facts(LLAMA_3_70B), PlanRequest(gpu="H100"))
    told = str(caught.value)
    assert "132" in told  # GiB of weights and the least beside them
    assert "72.85 GiB may be used, so 59.54 GiB are missing" in told
    assert told.endswith("It certainly fits with --tensor-parallel-size 4")
    with pytest.raises(
        CapacityError, match=r"-size 4 \(perhaps with 2\) or a checkpoint in 4 bits"
    ):
        plan_with_alternatives(facts(LLAMA_3_70B), PlanRequest(gpu="H100", max_model_len=8192))


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_config_without_a_needed_field_is_refused_by_its_name(field: str) -> None:
    own = facts(LLAMA_3_8B)
    config = {name: value for name, value in own.config.values.items() if name != field}
    with pytest.raises(ModelError) as caught:
        make_plan(replace(own, config=ModelConfig(config)), PlanRequest())
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_key_value_heads": 5}, "must divide the 32 attention heads"),
        ({"num_hidden_layers": "32"}, "must be a whole number"),
        ({"layer_types": ["full_attention"]}, "must have at least 32 items"),
        ({"layer_types": ["odd_attention"] * 32}, "known are"),
        ({"layer_types": ["mamba"] * 32}, "is not known for this model type"),
        ({"torch_dtype": "int4"}, "one of float32"),
        ({"head_dim": 0}, "must be a whole number of at least 1"),
        ({"quantization_config": {"quant_method": "odd"}}, "known are"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(change: dict[str, Any], words: str) -> None:
    own = facts(LLAMA_3_8B)
    config = ModelConfig({**own.config.values, **change})
    with pytest.raises(ModelError, match=words):
        make_plan(replace(own, config=config), PlanRequest())


def test_an_unknown_model_type_is_named_with_what_is_assumed() -> None:
    own = facts(LLAMA_3_8B)
    config = ModelConfig({**own.config.values, "model_type": "brandnew"})
    told = make_plan(replace(own, config=config), PlanRequest())
    assert len(told.warnings) == 1
    assert "'brandnew' is not known" in told.warnings[0]
    assert told.token_bytes == plan(LLAMA_3_8B).token_bytes


def test_accelerators_are_found_by_any_of_their_names() -> None:
    assert find_accelerator("h100").name == find_accelerator("NVIDIA H100 80GB HBM3").name
    assert find_accelerator("rtx 4090").name == find_accelerator("RTX-4090").name
    with pytest.raises(InvalidOptionError, match=r"the nearest are .*RTX-4090"):
        find_accelerator("RTX 4091")


@pytest.mark.parametrize(
    ("short", "nearest"),
    [
        ("llama-8b", ["meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3-8B"]),
        ("qwen3-4", ["Qwen/Qwen3-4B", "Qwen/Qwen3-4B-Instruct-2507"]),
        ("Qwen/qwen-7b", ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2-7B-Instruct"]),
        ("lama3-8b-instuct", ["meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3.1-8B-Instruct"]),
        ("gpt-oss-20", ["openai/gpt-oss-20b", "openai/gpt-oss-120b"]),
        ("nothing", []),
        ("-", []),
    ],
)
def test_the_likeliest_models_are_named_first(short: str, nearest: list[str]) -> None:
    assert nearest_models(short)[:2] == nearest


# Users, speed and cost go together


def test_no_more_users_run_than_sequences_in_a_step() -> None:
    few = plan(LLAMA_3_8B, gpu="H100", max_num_seqs=4, context=512)
    assert few.low is not None
    assert few.high is not None
    assert (few.low.users, few.high.users) == (4, 4)
    assert few.speed is not None
    assert few.speed.users == 4
    asked = plan(LLAMA_3_8B, gpu="H100", max_num_seqs=4, context=512, users=5)
    assert asked.warnings == ("5 users do not run at once: max_num_seqs is 4",)
    unsaid = plan(SMOLLM2, gpu="H100", context=16)
    assert unsaid.high is not None
    assert unsaid.high.users == 1024
    assert unsaid.warnings == ("users are bound by max_num_seqs, 1,024 where nothing is said",)


def test_no_more_users_run_than_a_step_has_tokens() -> None:
    few = plan(SMOLLM2, engine="pagoda", gpu="H100", context=16, max_num_batched_tokens=8)
    assert few.high is not None
    assert few.high.users == 8
    assert few.warnings == ()
    both: dict[str, Any] = {"max_num_batched_tokens": 8, "max_num_seqs": 16, "context": 16}
    asked = plan(SMOLLM2, engine="pagoda", gpu="H100", users=9, **both)
    assert asked.warnings == ("9 users do not run at once: max_num_batched_tokens is 8",)
    unsaid = plan(SMOLLM2, gpu="H100", context=16, max_num_batched_tokens=8)
    assert unsaid.high is not None
    assert unsaid.high.users == 8, "vLLM's default of max_num_seqs makes way"
    with pytest.raises(InvalidOptionError, match="no more than max_num_batched_tokens, 8") as told:
        plan(SMOLLM2, gpu="H100", **both)
    assert (told.value.field, told.value.value) == ("max_num_seqs", 16)


def test_users_that_do_not_fit_are_not_priced() -> None:
    told = plan(LLAMA_3_8B, gpu="H100", price=3.0, max_model_len=8192, users=5000)
    assert told.low is not None
    assert told.high is not None
    assert told.speed is not None
    assert told.speed.users == told.high.users < 100
    assert told.cost_per_user == (3.0 / told.low.users, 3.0 / told.high.users)


def test_the_cost_of_users_that_may_fit_is_no_less_than_theirs() -> None:
    told = plan(LLAMA_3_8B, gpu="H100", price=3.0, max_model_len=8192, users=55)
    assert told.low is not None
    assert told.high is not None
    assert told.low.users < 55 < told.high.users
    assert told.cost_per_user == (3.0 / told.low.users, 3.0 / 55)


def test_pagoda_s_batch_is_its_engine_s() -> None:
    told = read_subject(facts(SMOLLM2), PlanRequest(engine="pagoda"), None)
    assert told.batch == CPUBackend.policy.default_limits


@pytest.mark.parametrize("engine", ["vllm", "pagoda"])
def test_blocks_that_were_named_print_no_memory_that_is_not_known(engine: str) -> None:
    """vLLM prints what it found free, and takes the number of blocks only then."""
    told = plan(SMOLLM2, engine=engine, num_gpu_blocks_override=1000)
    assert told.high is not None
    assert [line[:9] for line in told.high.lines[:-1]] == ["Available"] * (engine == "pagoda")


def test_blocks_that_no_device_holds_are_refused_by_their_name() -> None:
    with pytest.raises(InvalidOptionError, match=r"num_gpu_blocks_override=100000: .*too much"):
        plan(LLAMA_3_8B, gpu="L4", num_gpu_blocks_override=100_000)


def test_a_stage_may_keep_no_cache() -> None:
    """The upper half of Gemma 3n uses the caches of lower layers."""
    told = plan("google/gemma-3n-E4B-it", gpu="H100", pipeline_parallel_size=8, max_model_len=4096)
    assert told.low is not None
    assert told.low.num_blocks > 0


def test_a_config_that_leaves_out_what_its_family_takes_is_planned_for_on_a_device() -> None:
    """As Gemma 3 4B was published: the text part names what differs from the family alone."""
    given = facts("google/gemma-3-4b-it")
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240,
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }  # fmt: skip
    config = ModelConfig({"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"})
    request = PlanRequest(gpu="H100", max_model_len=8192)
    told = make_plan(replace(given, config=config), request)
    assert told.memory == plan("google/gemma-3-4b-it", gpu="H100", max_model_len=8192).memory


def test_a_prompt_needs_the_output_head_once() -> None:
    """Llama-3.1-8B at 1,000 tokens: its layers for each, its head for the last, the attention."""
    told = plan(LLAMA_3_8B, gpu="H100", context=1000).speed
    assert told is not None
    layers, head, tokens = 6_979_584_000 + 64 * 4096, 128_256 * 4096, 1000
    attention = 32 * 4 * 32 * 128 * tokens * tokens / 2
    operations = 2 * (layers * tokens + head) + attention
    rate = find_accelerator("H100").bf16_rate
    assert told.prefill_s == pytest.approx(operations / rate, rel=1e-4)


def test_no_speed_is_told_where_a_draft_may_give_several_tokens_a_step() -> None:
    request = PlanRequest(gpu="H100", max_model_len=8192, price=2.0)
    told = make_plan(facts(LLAMA_3_8B), request, facts("meta-llama/Llama-3.2-1B-Instruct"))
    assert told.speed is None
    assert told.cost_per_million_tokens is None
    assert told.cost_per_user is not None
    assert any("a step may give several tokens" in warning for warning in told.warnings)


def test_states_alone_hold_any_length() -> None:
    told = plan("mistralai/Mamba-Codestral-7B-v0.1", gpu="H100", max_model_len=8192)
    assert told.high is not None
    assert told.high.longest_context is None


def test_a_release_that_is_not_known_is_a_warning() -> None:
    told = plan(LLAMA_3_8B, engine="vllm@7.5")
    words = "vllm 7.5 is not known: planned for by the rules of 0.32"
    assert words in told.warnings
    for known in ("vllm@0.32.1", "vllm@v0.19.1rc2.dev7+cu128", "vllm@0.9.x", "vllm"):
        assert "is not known" not in str(plan(LLAMA_3_8B, engine=known).warnings)


def test_no_flag_is_offered_that_the_engine_refuses() -> None:
    def offered(name: str, **options: Any) -> dict[str, str]:
        request = PlanRequest(gpu="H100", max_model_len=8192, **options)
        told = plan_with_alternatives(facts(name), request)
        return {other.name: other.flags for other in told.alternatives}

    plain = offered(LLAMA_3_8B)
    assert plain["a checkpoint in 4 bits"] == ""
    assert plain["int4 cache"] == "--kv-cache-dtype int4_per_token_head"
    assert "int4 cache" not in offered(LLAMA_3_8B, engine="vllm@0.8.0")
    assert "fp8 cache" not in offered("mistralai/Mamba-Codestral-7B-v0.1")


@pytest.mark.parametrize("form", ["nvfp4", "turboquant_4bit_nc", "int4_per_token_head"])
def test_a_form_that_a_release_may_not_know_is_a_warning(form: str) -> None:
    old = plan(LLAMA_3_8B, engine="vllm@0.10.2", kv_cache_dtype=form)
    assert any("0.10.2 may refuse it" in warning for warning in old.warnings)
    assert plan(LLAMA_3_8B, kv_cache_dtype=form).warnings == ()


def test_a_draft_beside_a_pipeline_is_refused() -> None:
    request = PlanRequest(gpu="H100", pipeline_parallel_size=2)
    with pytest.raises(InvalidOptionError, match="a draft model beside a pipeline"):
        make_plan(facts(LLAMA_3_8B), request, facts("meta-llama/Llama-3.2-1B-Instruct"))
