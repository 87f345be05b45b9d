"""Whole numbers come back as they went, however large, and nothing else is taken for them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pagoda.codecs.step_codes import StepCodes, StepCodesError, can_hold
from pagoda.kernels.array import Array

TOKENS, NUMBERS = 16, 200
RMS = np.geomspace(20, 0.02, NUMBERS)[np.random.default_rng(1).permutation(NUMBERS)]
CODES = StepCodes.of(RMS)
NUM_PARTS = len(CODES.counts) + 1
SCARCE, COMMON, BEYOND = 0, 7, NUM_PARTS - 1


def drawn(seed: int = 0) -> Array:
    return np.rint(np.random.default_rng(seed).standard_normal((TOKENS, NUMBERS)) * RMS)


def parts_of(packed: bytes) -> list[bytes]:
    lengths = struct.unpack_from(f"<{NUM_PARTS}I", packed)
    start, parts = 4 * NUM_PARTS, []
    for length in lengths:
        parts.append(packed[start : start + length])
        start += length
    return parts


def joined(parts: list[bytes]) -> memoryview:
    heads = struct.pack(f"<{NUM_PARTS}I", *map(len, parts))
    return memoryview(b"".join((heads, *parts)))


def zipped(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def test_codes_come_back() -> None:
    codes = drawn()
    packed = CODES.pack(codes)
    assert (CODES.unpack(memoryview(packed), TOKENS) == codes).all()
    assert (CODES.unpack(joined(parts_of(packed)), TOKENS) == codes).all()


def test_they_take_little_more_than_they_tell() -> None:
    """Of normal numbers rounded to whole ones, the entropy."""
    numbers = 4000
    rms = np.geomspace(8, 0.05, numbers)
    codes = np.rint(np.random.default_rng(0).standard_normal((TOKENS, numbers)) * rms)
    entropy = 0.0
    for own in rms:
        edges = np.arange(-60, 61) - 0.5
        drawn = np.histogram(np.random.default_rng(1).standard_normal(2000) * own, edges)[0] / 2000
        entropy -= (drawn[drawn > 0] * np.log2(drawn[drawn > 0])).sum()
    assert 8 * len(StepCodes.of(rms).pack(codes)) < 1.15 * TOKENS * entropy


@given(
    st.lists(
        st.tuples(
            st.integers(0, TOKENS - 1),
            st.integers(0, NUMBERS - 1),
            st.integers(-(2**30) + 1, 2**30 - 1),
        ),
        max_size=40,
    )
)
def test_nothing_is_clipped(places: list[tuple[int, int, int]]) -> None:
    codes = drawn()
    for token, number, value in places:
        codes[token, number] = value
    assert (CODES.unpack(memoryview(CODES.pack(codes)), TOKENS) == codes).all()


@pytest.mark.parametrize(
    ("value", "is_held"), [(2.0**30 - 64, True), (2.0**30, False), (np.inf, False), (np.nan, False)]
)
def test_what_can_be_held(value: float, *, is_held: bool) -> None:
    codes = drawn()
    codes[3, 3] = -value
    assert can_hold(codes) == is_held


def changed(number: int, part: bytes) -> memoryview:
    parts = parts_of(CODES.pack(drawn()))
    parts[number] = part
    return joined(parts)


def beyond(*pairs: tuple[int, int]) -> memoryview:
    return changed(BEYOND, zipped(b"".join(struct.pack("<Ii", *pair) for pair in pairs)))


WHOLE = CODES.pack(drawn())
LARGE = zipped(bytes(10**6))
BAD = {
    "nothing": memoryview(b""),
    "only heads": memoryview(WHOLE[: 4 * NUM_PARTS]),
    "cut": memoryview(WHOLE[:-1]),
    "too long": memoryview(WHOLE + b"x"),
    "a length that lies": memoryview(struct.pack("<I", 2**31) + WHOLE[4:]),
    "no zstd": changed(COMMON, b"nothing of the kind"),
    "zstd cut": changed(COMMON, parts_of(WHOLE)[COMMON][:-1]),
    "more behind zstd": changed(COMMON, parts_of(WHOLE)[COMMON] + b"x"),
    "too few": changed(COMMON, zipped(b"\0")),
    "far too many": changed(COMMON, LARGE),
    "no digits": changed(SCARCE, zipped(b"\xff" * (-(-TOKENS * CODES.counts[SCARCE] // 5)))),
    "beyond, not whole": changed(BEYOND, zipped(b"\0" * 12)),
    "beyond, far too many": changed(BEYOND, LARGE),
    "beyond, elsewhere": beyond((TOKENS * NUMBERS, 5)),
    "beyond, twice": beyond((7, 5), (7, 6)),
    "beyond, backwards": beyond((7, 5), (6, 6)),
    "beyond, too large": beyond((7, 2**30)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_was_not_packed_is_refused(name: str) -> None:
    with pytest.raises(StepCodesError):
        CODES.unpack(BAD[name], TOKENS)
