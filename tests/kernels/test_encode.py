"""The routine that encodes against the codec's plain reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coded_blocks import from_planes

import calibrated_examples
from pagoda.codecs import CALIBRATED, CODECS, VectorCodec, codec_of
from pagoda.codecs.calibrated import CalibratedCodec, ufloat8_values
from pagoda.codecs.levels import level_table, lloyd_max
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.encode import encode_routine
from pagoda.kernels.cpu.level_tables import bound_trees
from pagoda.kernels.vector_code import MOST_PATH_BITS, TABLE_SIZE, unpack

COUNT = 40
SIDES = {
    f"{name}-{side}": getattr(codec, side)
    for name, codec in CODECS.items()
    for side in ("key", "value")
} | {
    text: codec_of(f"{text}/e4m3").key
    for text in (
        "levels6-float32-least", "levels5-float16-unbiased-signs", "levels2-float16-offset",
        "levels1-float32-norm-hadamard", "int8-float32-signs", "e5m2-float32-hadamard",
    )
}  # fmt: skip


def encoded(codec: VectorCodec, vectors: Array, by_token: bool) -> tuple[Array, Array, Array]:
    """Codes, scales and offsets as the routine leaves them in a block of all vectors."""
    code, count = codec.code(vectors.shape[1]), len(vectors)
    routine = encode_routine(code.text, codec.fit)
    call = routine.ctypes
    none = np.zeros(TABLE_SIZE, np.int8), np.zeros(TABLE_SIZE, np.float32)
    levels, bounds = codec.tables or none
    bounds = bound_trees(bounds)
    block = np.zeros(count * code.code_bytes, np.uint8)
    scales, offsets = (np.ones(count, codec.scale or "float32") for _ in range(2))
    memory = np.empty((2, vectors.shape[1]), np.float32)
    for i, vector in enumerate(vectors):
        call(
            vector.ctypes.data, block.ctypes.data, i, count, by_token, scales[i:].ctypes.data,
            offsets[i:].ctypes.data, levels.ctypes.data, bounds.ctypes.data, 0, memory.ctypes.data,
        )  # fmt: skip
    offsets = offsets.astype(np.float32) * codec.has_offset
    packed = from_planes(code, block, count) if by_token else block.reshape(-1, count).T
    return unpack(code, packed), scales.astype(np.float32), offsets


def weighted(codec: CalibratedCodec, turned: Array) -> tuple[Array, Array]:
    """Codes and scales by the routine of vectors in the codec's basis, [heads, tokens, size]."""
    heads, count, head_size = turned.shape
    code, (levels, bounds) = codec.code(head_size), codec.tables
    bounds = bound_trees(bounds)
    routine, memory = encode_routine(code.text, codec.fit), np.empty((2, head_size), np.float32)
    blocks = np.zeros((heads, count * code.code_bytes), np.uint8)
    scales = np.zeros((heads, count), np.uint8)
    for head, token in np.ndindex(heads, count):
        routine.ctypes(
            turned[head, token].ctypes.data, blocks[head].ctypes.data, token, count, 1,
            scales[head, token:].ctypes.data, 0, levels.ctypes.data, bounds.ctypes.data,
            codec.weights[head].ctypes.data, memory.ctypes.data,
        )  # fmt: skip
    packed = np.stack([from_planes(code, block, count) for block in blocks])
    return unpack(code, packed), scales


@pytest.mark.parametrize("codec", SIDES.values(), ids=SIDES)
@pytest.mark.parametrize(("head_size", "by_token"), [(64, False), (80, True)])
def test_codes_and_scales_are_those_of_the_reference(
    codec: VectorCodec, head_size: int, by_token: bool
) -> None:
    rng = np.random.default_rng(head_size)
    vectors = rng.normal(size=(COUNT, head_size)) * 10.0 ** rng.uniform(-3, 2, (COUNT, 1))
    vectors = vectors.astype(np.float32)
    matrix = codec.matrix(head_size)
    expected = codec.encode(vectors)
    turned = vectors if matrix is None else (vectors @ matrix).astype(np.float32)
    codes, scales, offsets = encoded(codec, turned, by_token)
    # Sums in another order may take a number over a bound.
    assert (codes != expected[0]).mean() < 0.005
    assert scales == pytest.approx(expected[1], rel=2e-3)
    assert offsets == pytest.approx(expected[2], rel=2e-3)


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("name", CALIBRATED)
def test_calibrated_codes_and_scales_are_those_of_the_reference(name: str, head_size: int) -> None:
    codec = calibrated_examples.side(name, "key", 2, head_size)
    made = calibrated_examples.vectors(2, head_size, 5, COUNT)
    turned = (made @ codec.vectors).astype(np.float32)
    turned[1, 3], turned[1, 4, 2] = 0.0, np.nan
    codes, scales = codec.encode(turned)
    own_codes, found = weighted(codec, turned)
    turned[1, 4], codes[1, 4], scales[1, 4] = 0.0, 0, 0  # whatever it is, it is some code
    own_codes[1, 4], found[1, 4] = 0, 0
    # Sums in another order may take a number over a bound, or choose the scale beside it.
    same = scales == found
    assert same.mean() > 0.95
    assert (codes[same] != own_codes[same]).mean() < 0.005
    back, whole = codec.decode(own_codes, found), codec.decode(codes, scales)
    errors = [(np.square(turned - each) * codec.weights[:, None]).sum() for each in (back, whole)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)


@pytest.mark.parametrize("size", [1e-9, 1e9], ids=["too small", "too large"])
def test_scales_end_where_ufloat8_does(size: float) -> None:
    codec = calibrated_examples.side("int4", "key", 1, 64)
    turned = (np.random.default_rng(0).normal(size=(1, 6, 64)) * size).astype(np.float32)
    codes, scales = codec.encode(turned)
    assert set(scales.ravel()) <= ({0, 1, 2} if size < 1 else {253, 254, 255})
    found = weighted(codec, turned)
    assert np.array_equal(found[1], scales)
    assert (found[0] != codes).mean() < 0.005


@pytest.mark.parametrize("bits", range(1, MOST_PATH_BITS + 1))
def test_of_paths_that_cost_the_same_the_reference_s_is_taken(bits: int) -> None:
    """Symmetric levels, numbers that lie between two of them, and zeros."""
    ends = np.rint(lloyd_max(bits + 1) * 100 / lloyd_max(bits + 1)[-1])
    paths = {bits: (2 * np.rint((ends - ends[::-1]) / 4)).astype(np.int8)}
    codec = replace(
        calibrated_examples.side("int4", "key", 1, 64),
        widths=(bits,) * 4, paths=paths, weights=np.ones((1, 64), np.float32), unit=50.0,
        levels={bits: level_table(lloyd_max(bits))},
    )  # fmt: skip
    values = paths[bits].astype(np.float32)
    places = np.concatenate([values, (values[1:] + values[:-1]) / 2, [0.0]])
    made = np.random.default_rng(bits).choice(places, (1, 200, 64)).astype(np.float32)
    made[0, :4] = 0.0
    scales = codec.scales(made)
    made *= ufloat8_values()[scales][..., None]  # products and quotients by it are as exact
    codes, scales = codec.encode(made)
    found = weighted(codec, made)
    same = found[1] == scales
    assert same.mean() > 0.9
    assert np.array_equal(found[0][same], codes[same])


@pytest.mark.parametrize("codec", SIDES.values(), ids=SIDES)
def test_zeros_and_what_is_no_number_leave_numbers(codec: VectorCodec) -> None:
    vectors = np.zeros((3, 64), np.float32)
    vectors[1, 5], vectors[2] = np.nan, -0.0
    codes, scales, offsets = encoded(codec, vectors, True)
    left = codec.decode(codes[[0, 2]], scales[[0, 2]], offsets[[0, 2]])
    assert np.array_equal(left, np.zeros((2, 64), np.float32))
