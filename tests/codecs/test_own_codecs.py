"""Codecs that say by their names what they are."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache.formats import FORMATS, is_coded, vector_format
from pagoda.cache.own_format import SideFormat, is_own
from pagoda.codecs import CODECS, Codec, VectorCodec, codec_of, name_of
from pagoda.errors import InvalidOptionError

BASES = st.sampled_from(["", "hadamard", "signs"])
SCALES = st.sampled_from(["float16", "float32"])
SIDES = st.one_of(
    st.builds(
        SideFormat,
        numbers=st.just("levels"),
        bits=st.integers(1, 6),
        scale=SCALES,
        fit=st.sampled_from(["least", "norm", "unbiased"]),
        turns=BASES,
    ),
    st.builds(SideFormat, st.just("levels"), st.integers(1, 6), SCALES, st.just(True), turns=BASES),
    st.builds(
        SideFormat,
        numbers=st.sampled_from(["e4m3", "e5m2"]),
        bits=st.just(8),
        scale=st.sampled_from([None, "float32"]),
        turns=BASES,
    ),
    st.builds(SideFormat, st.just("int8"), st.just(8), st.just("float32"), turns=BASES),
)


@pytest.mark.parametrize("name", CODECS)
def test_a_row_of_the_table_can_say_itself_and_takes_as_many_bytes(name: str) -> None:
    codec = CODECS[name]
    own = name_of(codec)
    assert codec_of(own) == codec
    for head_size in (16, 64, 80, 128):
        bits = vector_format(own).bits(head_size, head_size)
        assert bits == vector_format(name).bits(head_size, head_size)


@given(SIDES, SIDES)
def test_what_a_name_says_is_what_it_was_made_of(key: SideFormat, value: SideFormat) -> None:
    codec = Codec(VectorCodec(**asdict(key)), VectorCodec(**asdict(value)))
    name = name_of(codec)
    assert is_own(name)
    assert is_coded(name)
    assert codec_of(name) == codec
    stored = sum(
        code.code_bytes + code.scale_bytes for code in (codec.key.code(48), codec.value.code(48))
    )
    assert vector_format(name).bits(48, 48) == 8 * stored


def test_names_of_rows_are_no_own_ones() -> None:
    assert not any(map(is_own, FORMATS))
    assert codec_of("bfloat16") is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("/", "is no codec"),
        ("e4m3/", "is no codec"),
        ("e4m3/e4m3/e4m3", "is no codec"),
        ("levels7-float16-norm/e4m3", "is no codec"),
        ("levels0-float16-norm/e4m3", "is no codec"),
        ("levels-float16-norm/e4m3", "is no codec"),
        ("int4-float16/e4m3", "is no codec"),
        ("e4m3-float16-float32/e4m3", "is no codec"),
        ("e4m3-bfloat16/e4m3", "is no codec"),
        ("e4m3--float16/e4m3", "is no codec"),
        ("int8/int8", "need a scale"),
        ("int8-float16/e4m3", "the scale of int8 is float32"),
        ("e4m3/e5m2-float16", "the scale of e5m2 is float32"),
        ("levels4-norm/e4m3", "need a scale"),
        ("levels4-float16/e4m3", "an offset or a fit"),
        ("e4m3/levels4-float16-offset-norm", "and not both"),
        ("int8-float32-offset/e4m3", "neither offset nor fit"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(name: str, told: str) -> None:
    for ask in (vector_format, codec_of):
        with pytest.raises(InvalidOptionError, match=told) as refused:
            ask(name)
        assert (refused.value.field, refused.value.value) == ("kv_cache_dtype", name)


def test_a_codec_that_cannot_be_has_no_name() -> None:
    with pytest.raises(InvalidOptionError, match="levels have 1 to 6 bits"):
        name_of(Codec(VectorCodec("levels", 7, "float16", fit="norm"), VectorCodec("e4m3", 8)))
    with pytest.raises(InvalidOptionError, match="e4m3 has 8 bits"):
        name_of(Codec(VectorCodec("e4m3", 4), VectorCodec("e4m3", 8)))
