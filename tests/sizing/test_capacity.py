"""What fits, in the figures that vLLM prints."""

import pytest

from pagoda.cache import CacheSpec
from pagoda.errors import CapacityError
from pagoda.sizing import format_gib, plan_capacity

GIB = 2**30


def spec(block_size: int = 128, layers: int = 30, heads: int = 3, size: int = 64) -> CacheSpec:
    return CacheSpec.uniform(
        num_layers=layers, num_kv_heads=heads, head_size=size, dtype="bfloat16",
        block_size=block_size,
    )  # fmt: skip


def test_the_lines_are_those_that_vllm_prints_for_smollm2() -> None:
    capacity = plan_capacity(spec(), available_bytes=2 * GIB, max_model_len=8192)
    assert capacity.log_lines("CPU") == (
        "Available KV cache memory: 2.0 GiB",
        "CPU KV cache size: 93,184 tokens, "
        "Maximum concurrency for 8,192 tokens per request: 11.38x",
    )
    assert capacity.num_blocks == 728
    assert capacity.size_bytes == 728 * 128 * 23_040 <= 2 * GIB


def test_the_concurrency_of_a_known_start_up() -> None:
    qwen3_14b = spec(block_size=16, layers=40, heads=8, size=128)
    capacity = plan_capacity(
        qwen3_14b, available_bytes=0, max_model_len=40_960, num_blocks_override=643_232 // 16
    )
    assert f"{capacity.num_tokens:,}" == "643,232"
    assert f"{capacity.max_concurrency:.2f}x" == "15.70x"


def test_a_length_that_is_no_multiple_of_the_block_rounds_up() -> None:
    capacity = plan_capacity(spec(), available_bytes=0, max_model_len=130, num_blocks_override=5)
    assert capacity.max_concurrency == 2.5
    assert capacity.num_tokens == 325


def test_an_override_goes_before_memory() -> None:
    capacity = plan_capacity(spec(), available_bytes=1, max_model_len=128, num_blocks_override=3)
    assert (capacity.num_blocks, capacity.available_bytes) == (3, 3 * spec().block_bytes)


@pytest.mark.parametrize(
    ("override", "decides"), [(None, "gpu_memory_utilization"), (63, "num_gpu_blocks_override")]
)
def test_one_request_must_fit(override: int | None, decides: str) -> None:
    available = 64 * spec().block_bytes - 1
    with pytest.raises(CapacityError) as caught:
        plan_capacity(
            spec(), available_bytes=available, max_model_len=8192, num_blocks_override=override
        )
    assert caught.value.field == "max_model_len"
    for words in (
        "To serve at least one request with the model's max seq len (8192), (0.18 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.1",
        "the estimated maximum model length is 8064",
        f"Try increasing `{decides}",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0.0"), (1, "0.00000000093"), (3 * 23_040, "0.000064"), (GIB // 150, "0.0067"),
     (GIB // 50, "0.02"), (GIB // 3, "0.33"), (40 * GIB, "40.0")],
)  # fmt: skip
def test_a_tiny_size_is_not_nothing(size_bytes: int, shown: str) -> None:
    assert format_gib(size_bytes) == shown


def test_a_tiny_pool_is_told_in_figures_that_differ() -> None:
    with pytest.raises(CapacityError, match=r"\(0\.0014 GiB KV cache is needed.*\(0\.0010 GiB\)"):
        plan_capacity(
            spec(block_size=16), available_bytes=0, max_model_len=64, num_blocks_override=3
        )
