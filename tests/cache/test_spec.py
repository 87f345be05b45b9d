"""The bytes of a block, against figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import AttentionLayerSpec, CacheSpec
from pagoda.cache.layers import SlidingWindowLayerSpec
from pagoda.cache.slots import num_blocks_for
from pagoda.errors import InvalidOptionError

GIB = 2**30


def uniform(layers: int, heads: int, size: int, dtype: str, block: int) -> CacheSpec:
    return CacheSpec.uniform(
        num_layers=layers, num_kv_heads=heads, head_size=size, dtype=dtype, block_size=block
    )


@pytest.mark.parametrize(
    ("spec", "bytes_per_token"),
    [
        pytest.param(uniform(30, 3, 64, "bfloat16", 16), 23_040, id="SmolLM2-135M, grouped"),
        pytest.param(uniform(32, 32, 128, "float16", 16), 524_288, id="Llama-2-7B, multi-head"),
        pytest.param(uniform(80, 8, 128, "bfloat16", 16), 327_680, id="Llama-3-70B, grouped"),
        pytest.param(uniform(32, 1, 128, "bfloat16", 16), 16_384, id="one KV head, multi-query"),
        pytest.param(uniform(2, 4, 32, "float32", 8), 2_048, id="float32"),
        pytest.param(uniform(2, 4, 32, "fp8_e4m3", 8), 512, id="fp8"),
        pytest.param(uniform(2, 4, 32, "nvfp4", 8), 288, id="nvfp4"),
        pytest.param(uniform(30, 3, 64, "int4", 16), 6_480, id="int4, calibrated"),
    ],
)
def test_bytes_per_token(spec: CacheSpec, bytes_per_token: int) -> None:
    assert spec.block_bytes == bytes_per_token * spec.block_size
    assert spec.bytes_per_token == bytes_per_token


def test_what_blocks_of_groups_leave_empty_counts() -> None:
    sees_all = AttentionLayerSpec(2, 64, "int8_per_token_head")
    slides = SlidingWindowLayerSpec(AttentionLayerSpec(2, 64, "bfloat16"), 32)
    spec = CacheSpec((sees_all, sees_all, slides, slides, slides), 16)
    assert [len(group.layer_ids) for group in spec.groups] == [2, 2, 1]
    plain = 2 * 2 * 64 * 2  # each place of a block has room for bfloat16
    assert spec.bytes_per_token == 3 * 2 * plain


def test_llama_2_7b_takes_one_gib_for_2048_tokens() -> None:
    spec = uniform(32, 32, 128, "float16", 16)
    assert spec.num_blocks(2048) * spec.block_bytes == GIB


def test_layers_may_differ() -> None:
    narrow = AttentionLayerSpec(2, 64, "bfloat16")
    wide = AttentionLayerSpec(4, 64, "float32", head_size_v=32)
    spec = CacheSpec((narrow, wide, narrow), 16)
    assert spec.block_bytes == 16 * (2 * 2 * 2 * 128 + 4 * 96 * 4)


def test_a_block_of_odd_bits_is_padded_to_whole_bytes() -> None:
    # 3 × 8 + 3 × 4 + 32 = 68 bits for each token and head, in pairs of bytes
    assert AttentionLayerSpec(1, 3, "turboquant_k8v4").block_bytes(3) == 30


def test_blocks_for_tokens_and_for_memory() -> None:
    spec = uniform(30, 3, 64, "bfloat16", 128)
    assert [spec.num_blocks(count) for count in (0, 1, 128, 129, 8192)] == [0, 1, 1, 2, 64]
    assert spec.num_blocks_in(2 * GIB) == 728
    assert spec.num_blocks_in(spec.block_bytes - 1) == 0


@given(
    window=st.integers(1, 300),
    sinks=st.integers(0, 40),
    block_size=st.integers(1, 40),
    num_tokens=st.integers(1, 400),
    under_way_tokens=st.integers(1, 300),
    with_others=st.booleans(),
)
def test_letting_go_never_takes_more_blocks_than_keeping_all(
    window: int,
    sinks: int,
    block_size: int,
    num_tokens: int,
    under_way_tokens: int,
    with_others: bool,
) -> None:
    sees_all = AttentionLayerSpec(1, 4, "bfloat16")
    slides = SlidingWindowLayerSpec(sees_all, window, sinks)
    layers = (slides, sees_all) if with_others else (slides,)
    spec = CacheSpec(layers, block_size, under_way_tokens)
    most = num_blocks_for(num_tokens, block_size)
    assert all(group.num_blocks(num_tokens, under_way_tokens) <= most for group in spec.groups)
    assert spec.num_blocks(num_tokens) <= len(layers) * most


def test_every_layer_kind_with_the_protocol_counts() -> None:
    class State:
        shares_blocks_with = ("full",)

        def block_bytes(self, block_size: int) -> int:
            return 1000

    spec = CacheSpec((State(), AttentionLayerSpec(1, 8, "int8")), 4)
    assert spec.block_bytes == 1000 + 4 * 16


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtype": "float33"}, "dtype"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"head_size": -1}, "head_size"),
        ({"block_size": 0}, "block_size"),
        ({"num_layers": 0}, "layers"),
    ],
)
def test_nonsense_is_refused_by_name(change: dict[str, object], field: str) -> None:
    shape: dict[str, object] = {
        "num_layers": 2, "num_kv_heads": 2, "head_size": 8, "dtype": "int8", "block_size": 4,
    }  # fmt: skip
    with pytest.raises(InvalidOptionError) as caught:
        CacheSpec.uniform(**(shape | change))  # type: ignore[arg-type]
    assert caught.value.field == field
