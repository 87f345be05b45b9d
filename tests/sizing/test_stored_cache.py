"""What an engine tells of how its keys and values are stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.formats import CODED_FORMATS
from pagoda.cache.latent import LatentLayerSpec, latent_format
from pagoda.cache.layers import SlidingWindowLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import InvalidOptionError
from pagoda.sizing.cache_formats import CacheFormats
from pagoda.sizing.capacity import plan_capacity
from pagoda.sizing.stored_cache import LABELS, StoredCache, stored_cache

MEMORY = 2**30
NUM_LAYERS = 30
REST = ("", "", "full", "bfloat16", "8192")
"""No narrower format is offered, every token stays."""


def stored(
    formats: CacheFormats,
    dtype: str = "bfloat16",
    device: Sequence[str] = CODED_FORMATS,
    retention: AttentionWindow = FULL_ATTENTION,
) -> StoredCache:
    """Of SmolLM2-135M: 30 layers of 3 heads of 64 numbers."""

    def spec_of(names: Sequence[str]) -> CacheSpec:
        return CacheSpec(tuple(AttentionLayerSpec(3, 64, name) for name in names), 16)

    layers = formats.of_layers([False] * NUM_LAYERS, dtype)
    spec = spec_of(layers)
    capacity = plan_capacity(spec, available_bytes=MEMORY, max_model_len=8192)
    return stored_cache(formats.kv_cache_dtype, dtype, layers, capacity, spec_of, device, retention)


def test_a_plain_cache_says_its_dtype_and_what_eight_bits_would_take() -> None:
    plain = stored(CacheFormats())
    assert str(plain) == "bfloat16: 23,040 bytes a token"
    narrower = ("int8_per_token_head", "12240")
    assert plain.label_values() == ("auto", "", "23040", *narrower, *REST[2:], "46592")
    wide = stored(CacheFormats("int8_per_token_head"), "float32").label_values()
    assert wide[LABELS.index("dtype")] == "float32", "whatever the cache is stored in"
    assert str(stored(CacheFormats(), "float32")) == "float32: 46,080 bytes a token"
    assert str(stored(CacheFormats("bfloat16", (3,)))) == "bfloat16: 23,040 bytes a token"


def test_codes_are_held_against_the_dtype_in_the_same_memory() -> None:
    coded = stored(CacheFormats("int8_per_token_head"))
    assert coded.num_tokens == MEMORY // (16 * 12_240) * 16 == 87_712
    assert coded.plain_num_tokens == MEMORY // (16 * 23_040) * 16 == 46_592
    assert str(coded) == (
        "int8_per_token_head: 12,240 bytes a token, 87,712 tokens where bfloat16 would hold 46,592"
    )
    assert coded.label_values() == ("int8_per_token_head", "", "12240", *REST, "87712")
    assert coded.as_json()["bytes_per_token"] == 12_240


def test_layers_that_are_left_out_are_named_those_that_a_format_guards_too() -> None:
    skipping = stored(CacheFormats("int8_per_token_head", (29, 0)))
    assert skipping.layers_left_out == (0, 29)
    assert skipping.bytes_per_token == 28 * 408 + 2 * 768
    assert str(skipping).startswith("int8_per_token_head, bfloat16 in layers 0, 29: 12,960 bytes")
    assert stored(CacheFormats("turboquant_k8v4")).label_values()[:2] == (
        "turboquant_k8v4",
        "0,1,28,29",
    )


def test_latents_in_eight_bits_are_offered_where_layers_keep_latents() -> None:
    def spec_of(names: Sequence[str]) -> CacheSpec:
        layers = (LatentLayerSpec(512, 64, latent_format(name)) for name in names)
        return CacheSpec(tuple(layers), 16)

    device = (*CODED_FORMATS, "int8_per_group")
    for name, offered in (("auto", ("int8_per_group", "1312")), ("fp8_ds_mla", ("", ""))):
        asked = CacheFormats(name)
        layers = asked.of_layers([False] * 2, "bfloat16")
        spec = spec_of(layers)
        capacity = plan_capacity(spec, available_bytes=MEMORY, max_model_len=8192)
        told = stored_cache(name, "bfloat16", layers, capacity, spec_of, device, FULL_ATTENTION)
        assert told.label_values()[3:5] == offered
        assert told.bytes_per_token == (2 * 1152 if name == "auto" else 2 * 656)


def test_eight_bits_are_not_offered_where_they_cannot_be_or_save_nothing() -> None:
    assert stored(CacheFormats(), device=("bfloat16",)).narrower_bytes_per_token is None
    assert stored(CacheFormats("int4_per_token_head")).narrower_bytes_per_token is None
    assert stored(CacheFormats("fp8")).narrower_bytes_per_token is None
    skipping = stored(CacheFormats("fp8", (0, 29)))  # of 12,288 bytes all layers would take 12,240
    assert (skipping.bytes_per_token, skipping.narrower_cache_dtype) == (12_288, None)
    wide = stored(CacheFormats("float32", (0, 29)))
    assert wide.narrower_bytes_per_token == 28 * 408 + 2 * 768 < 0.9 * wide.bytes_per_token

    def odd_heads(names: Sequence[str]) -> CacheSpec:
        if names[0] in CODED_FORMATS:
            raise InvalidOptionError("kv_cache_dtype", "head size 20", "of odd chunks")
        return CacheSpec(tuple(AttentionLayerSpec(3, 20, name) for name in names), 16)

    layers = ["bfloat16"] * 2
    spec = odd_heads(layers)
    capacity = plan_capacity(spec, available_bytes=MEMORY, max_model_len=64)
    found = stored_cache(
        "auto", "bfloat16", layers, capacity, odd_heads, CODED_FORMATS, FULL_ATTENTION
    )
    told = str(found.num_tokens)
    assert found.label_values() == ("auto", "", "480", *REST[:-1], "64", told)


def test_the_metric_says_what_the_log_says() -> None:
    slides = SlidingWindowLayerSpec(AttentionLayerSpec(3, 64, "bfloat16"), 100)
    spec = CacheSpec((slides, AttentionLayerSpec(3, 64, "bfloat16")), 16, under_way_tokens=64)
    capacity = plan_capacity(spec, available_bytes=MEMORY, max_model_len=1000)
    found = stored_cache(
        "auto", "bfloat16", ["bfloat16"] * 2, capacity, lambda names: spec, (), FULL_ATTENTION
    )
    told = int(found.label_values()[LABELS.index("kv_cache_size_tokens")])
    assert told != capacity.num_blocks * 16
    assert f"CPU KV cache size: {told:,} tokens" in "\n".join(capacity.log_lines("CPU"))


def test_what_stays_is_told_by_its_name() -> None:
    kept = stored(CacheFormats(), retention=AttentionWindow(1020, 4))
    assert kept.label_values()[LABELS.index("kv_retention")] == "streaming:sinks=4,window=1020"
    assert kept.as_json()["kv_retention"] == "streaming:sinks=4,window=1020"


@pytest.mark.parametrize("name", CODED_FORMATS)
def test_every_codec_holds_more_than_it_says_of_plain_numbers(name: str) -> None:
    found = stored(CacheFormats(name))
    assert found.num_tokens > 1.6 * found.plain_num_tokens
    assert f"{found.num_tokens:,} tokens where bfloat16" in str(found)
