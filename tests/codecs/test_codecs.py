"""Codecs by their plain reference: bytes, levels, rotation, and what is left of a vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagoda.cache.formats import CODED_FORMATS, vector_format
from pagoda.codecs import CALIBRATED, CODECS, VectorCodec
from pagoda.codecs.calibrated import code_of
from pagoda.codecs.levels import gaussian_levels, lloyd_max
from pagoda.codecs.rotation import rotation
from pagoda.errors import InvalidOptionError
from pagoda.kernels.vector_code import FLOAT8_FORMS, PLANES, VectorCode, pack, unpack

SIZES = (16, 64, 80, 128)


@pytest.mark.parametrize("head_size", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_bytes_are_those_of_the_format_of_that_name(name: str, head_size: int) -> None:
    codes = (CODECS[name].key.code(head_size), CODECS[name].value.code(head_size))
    stored = sum(code.code_bytes + code.scale_bytes for code in codes)
    assert 8 * stored == vector_format(name).bits(head_size, head_size)


@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("name", CALIBRATED)
def test_calibrated_formats_too(name: str, head_size: int) -> None:
    codes = [code_of(widths, head_size) for widths in CALIBRATED[name]]
    stored = sum(code.code_bytes + code.scale_bytes for code in codes)
    assert 8 * stored == vector_format(name).bits(head_size, head_size)


def test_every_format_that_the_cache_is_said_to_have_is_a_codec() -> None:
    assert set(CODED_FORMATS) == {*CODECS, *CALIBRATED}


def test_packed_codes_come_back_and_every_bit_is_used() -> None:
    rng = np.random.default_rng(1)
    widths = tuple(PLANES)
    code = VectorCode("levels", widths)
    codes = np.concatenate([rng.integers(0, 2**width, (50, 16)) for width in widths], axis=-1)
    packed = pack(code, codes)
    assert packed.shape == (50, sum(widths) * 2)
    assert np.array_equal(unpack(code, packed), codes)
    assert np.array_equal(np.bitwise_or.reduce(packed), np.full(packed.shape[1], 255))
    assert VectorCode.of_text(code.text) == code


def test_levels_are_those_of_lloyd_and_max() -> None:
    """Max, 1960: for two levels sqrt(2 / pi); for four 0.4528 and 1.510."""
    assert lloyd_max(1) == pytest.approx([-np.sqrt(2 / np.pi), np.sqrt(2 / np.pi)])
    assert lloyd_max(2)[2:] == pytest.approx([0.4528, 1.510], abs=1e-3)
    for bits in (3, 4):
        table = gaussian_levels(bits)
        assert table.values[-1] == 127
        assert np.array_equal(table.values, -table.values[::-1])


@pytest.mark.parametrize("width", SIZES)
def test_rotations_keep_lengths_and_signs_spread_an_outlier(width: int) -> None:
    for with_signs in (False, True):
        matrix = rotation(width, with_signs=with_signs).astype(np.float64)
        assert matrix @ matrix.T == pytest.approx(np.eye(width), abs=1e-6)
    largest = np.abs(np.eye(width)[0] @ rotation(width, with_signs=True)).max()
    parts = [1 << bit for bit in range(width.bit_length()) if width & 1 << bit]
    assert largest == pytest.approx(max(parts) ** -0.5)


@pytest.mark.parametrize("numbers", FLOAT8_FORMS)
def test_float8_is_that_of_pytorch(numbers: str) -> None:
    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[numbers]
    largest = FLOAT8_FORMS[numbers].largest
    rng = np.random.default_rng(2)
    values = rng.normal(size=(400, 16)) * 2.0 ** rng.integers(-18, 9, (400, 1))
    values = values.clip(-largest, largest).astype(np.float32)
    codec = VectorCodec(numbers, 8)  # type: ignore[arg-type]
    bits = torch.from_numpy(values).to(kind)
    assert np.array_equal(codec.encode(values)[0], bits.view(torch.uint8).numpy())
    assert np.array_equal(codec.recall(values), bits.float().numpy())
    assert np.array_equal(np.abs(codec.recall(values * 1e6)).max(), np.float32(largest))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("side", ["key", "value"])
def test_what_is_left_of_a_vector_is_near_it(name: str, side: str) -> None:
    """Bounds from the bits: a Lloyd–Max quantiser loses at most sqrt(3) pi / 2 · 4 ** -bits."""
    codec = getattr(CODECS[name], side)
    vectors = np.random.default_rng(3).normal(size=(300, 64)).astype(np.float32)
    lost = np.square(codec.recall(vectors) - vectors).sum() / np.square(vectors).sum()
    bits = {"e4m3": 5, "e5m2": 4}.get(codec.numbers, codec.bits)
    assert 0 < lost < 3 * np.sqrt(3) * np.pi / 2 * 4.0**-bits
    zeros = np.zeros((2, 64), np.float32)
    assert np.array_equal(codec.recall(zeros), zeros)


def test_a_width_of_odd_chunks_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"head size 72.*multiple of 16"):
        CODECS["fp8_e4m3"].key.code(72)
