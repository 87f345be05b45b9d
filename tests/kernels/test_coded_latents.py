"""Latents in codes: what is written, and read again, is what the plain codec says, to the bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from latent_blocks import coded_blocks
from numba import prange

from pagoda.cache.latent import LatentLayerSpec
from pagoda.codecs import LATENT_CODECS, LatentCodec
from pagoda.errors import InvalidOptionError
from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.latent_rows import (
    LatentRows,
    LatentShape,
    LatentWrite,
    latent_routine,
    latent_write,
    write_latents,
)
from pagoda.kernels.cpu.team import phases
from pagoda.kernels.cpu.unpack_latents import unpack_latents_routine
from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.page_layout import PageLayout, coded_latent_layout

SIZES = [
    # rank, rope, group, block size
    (512, 64, 128, 16),
    (160, 6, 128, 24),
    (48, 8, 32, 32),
    (32, 10, 128, 8),
    (64, 4, 16, 5),
]
CASES = [*product(SIZES, LATENT_CODECS)]


def codec_of(name: str, group_size: int) -> LatentCodec:
    return LatentCodec(LATENT_CODECS[name].group, group_size)


def read(code: LatentCode, blocks: Array, chosen: Array, *, paired: bool, block_size: int) -> Array:
    """What the routine makes of chosen blocks, [count, block_size, width]: float32, or bits."""
    group, count = 1 + paired, len(chosen) - 1
    out = np.zeros((count, code.width // group, block_size, group), np.float32)
    out = out.astype(np.uint16) if paired else out
    unpack_latents_routine(code.text, paired, block_size).ctypes(
        out.ctypes.data, blocks.ctypes.data, blocks.strides[0], chosen.ctypes.data, 1, len(chosen)
    )
    return out.swapaxes(1, 2).reshape(count, block_size, code.width)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("sizes", "name"), CASES, ids=str)
def test_blocks_are_read_as_the_codec_recalls_them(
    sizes: tuple[int, int, int, int], name: str, paired: bool
) -> None:
    rank, rope, group_size, block_size = sizes
    if paired and block_size % 2:
        return
    codec, rng = codec_of(name, group_size), np.random.default_rng(rank)
    vectors = rng.normal(size=(4, block_size, rank + rope))
    vectors *= 10.0 ** rng.uniform(-3, 2, (4, block_size, 1))
    vectors[2, 3, :group_size] = 0.0
    vectors = vectors.astype(np.float32)
    blocks = coded_blocks(codec, rank, vectors)
    chosen = np.array([3, 2, 0, 1], np.int32)
    code = codec.code(rank, rope)
    found = read(code, blocks, chosen, paired=paired, block_size=block_size)
    expected = codec.recall(vectors[chosen[1:]], rank)
    if paired:
        expected = reference.bfloat16_bits(expected)
    assert np.array_equal(found, expected)


@kernel
def _write(
    counters: int, routine: int, write: LatentWrite, rows: LatentRows, count: int,
    shape: LatentShape, blocks: int, layout: PageLayout, block_size: int, others: Array,
    memory: int,
) -> None:  # fmt: skip
    """others: addresses of slots, positions, cosines, sines, norm and eps."""
    for _ in prange(1):
        write_latents(
            counters, 1, routine, write, rows, count, shape, 4, blocks, layout, block_size,
            others[0], others[1], 0, others[2], others[3], others[4], others[5], memory,
        )  # fmt: skip


@pytest.mark.parametrize(("sizes", "name"), CASES, ids=str)
def test_rows_are_written_as_the_codec_says(sizes: tuple[int, int, int, int], name: str) -> None:
    rank, rope, group_size, block_size = sizes
    codec, rng, count = codec_of(name, group_size), np.random.default_rng(rank), 21
    code, heads, nope = codec.code(rank, rope), 2, 6

    def drawn(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    query, down, norm = drawn(count, heads * (nope + rope)), drawn(count, rank + rope), drawn(rank)
    down[5, :rank] = 0.0
    plain, queries = np.zeros((count, heads * nope), np.float32), drawn(count, heads * code.width)
    angles, eps = drawn(60, rope // 2), np.array([1e-5], np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    slots = rng.permutation(6 * block_size)[:count].astype(np.int64)
    positions = rng.permutation(60)[:count].astype(np.int32)
    raw = down.copy()
    layout = coded_latent_layout(code, block_size)
    blocks = np.full((6, layout.block_bytes), 0xFF, np.uint8)
    counters, memory = phases(1), np.zeros((2, group_size), np.float32)
    others = np.array(
        [each.ctypes.data for each in (slots, positions, cosines, sines, norm, eps)], np.int64
    )
    _write(
        counters.ctypes.data, latent_routine(False, True).address, latent_write(code),
        LatentRows(*(each.ctypes.data for each in (query, down, plain, queries)), 0), count,
        LatentShape(heads, 0, rank, nope, rope, 4), blocks.ctypes.data, layout, block_size, others,
        memory.ctypes.data,
    )  # fmt: skip
    # The rows are left normed and rotated: blocks hold what the codec makes of these.
    normed = reference.rms_norm(raw[:, :rank], norm, eps[0])
    turned = [
        reference.rotate(row, cosines[position], sines[position])
        for row, position in zip(raw[:, rank:], positions, strict=True)
    ]
    assert np.allclose(down, np.concatenate([normed, turned], axis=1), rtol=1e-5, atol=1e-5)
    expected = np.full((6, block_size, code.width), np.nan, np.float32)
    expected.reshape(-1, code.width)[slots] = down
    wanted, start = coded_blocks(codec, rank, expected), code.scales_start * block_size
    assert np.array_equal(blocks[:, :start], wanted[:, :start])
    found, scales = (each[:, start:].copy().view(np.float32) for each in (blocks, wanted))
    assert np.array_equal(found, scales, equal_nan=True)  # of nothing but zeros it may be -0


def test_the_error_is_within_what_eight_bits_allow() -> None:
    """e4m3: half a step of three bits of fraction, 2⁻⁴ of a number, or of the smallest normal one,
    2⁻⁶ · scale, where steps stay even; whole numbers: half a step of the largest ÷ 127. Beside it
    one rounding of scale and product."""
    rng = np.random.default_rng(0)
    vectors = (rng.standard_t(4, size=(50, 576)) * 3).astype(np.float32)
    groups = vectors[:, :512].reshape(50, 4, 128)
    largest = np.abs(groups).max(-1, keepdims=True)
    for name, allowed in (
        ("fp8_per_group", np.maximum(np.abs(groups), largest / 448 * 2**-6) * 2**-4),
        ("int8_per_group", largest / 127 / 2),
    ):
        recalled = LATENT_CODECS[name].recall(vectors, 512)
        error = np.abs(recalled[:, :512].reshape(groups.shape) - groups)
        assert (error <= allowed * (1 + 1e-5) + largest * 2**-22).all()
        assert (error > 0).mean() > 0.5
        assert np.array_equal(
            recalled[:, 512:], reference.bfloat16_values(reference.bfloat16_bits(vectors[:, 512:]))
        )


def test_bytes_are_those_of_the_cache() -> None:
    for name, (rank, rope) in product(LATENT_CODECS, [(512, 64), (256, 32), (144, 6), (16, 2)]):
        code = LATENT_CODECS[name].code(rank, rope)
        assert code.token_bytes == LatentLayerSpec(rank, rope, name).token_bytes
        assert LatentCode.of_text(code.text) == code
    assert LatentLayerSpec(512, 64, "fp8_per_group").token_bytes == 656
    for make in (LATENT_CODECS["fp8_per_group"].code, lambda *sizes: LatentLayerSpec(*sizes, name)):
        with pytest.raises(InvalidOptionError, match="multiple of 16 numbers"):
            make(40, 8)
