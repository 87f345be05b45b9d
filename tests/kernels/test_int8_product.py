"""Rows rounded to eight bits, and their products with panels that keep their type."""

import gguf
import numpy as np
import pytest
from kernel_arrays import call_routine, records_of

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import GGUF_TYPES, PANEL, panel_bytes
from pagoda.kernels.cpu.int8_product import int8_routine
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES, SCALE, SUMS
from pagoda.kernels.cpu.pack_stored import pack_stored
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from pagoda.kernels.cpu.stored_words import BYTES, SPAN, TOGETHER
from pagoda.kernels.cpu.sums import SUMS_BYTES
from pagoda.kernels.reference import bfloat16_bits, bfloat16_values
from stored_blocks import random_rows

TYPES = sorted(GGUF_TYPES)


def some_rows(num_rows: int, width: int, seed: int = 0) -> Array:
    """[num_rows, width] as bfloat16's bits; spans differ in size."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(scale=2, size=(num_rows, width // SPAN, 1)))
    values = rng.normal(size=(num_rows, width // SPAN, SPAN)) * sizes
    return bfloat16_bits(values.reshape(num_rows, width).astype(np.float32))


def codes_in(records: Array) -> Array:
    """[rows, spans, SPAN], in the order of the numbers."""
    groups = records[..., :SPAN].view(np.int8).reshape(*records.shape[:2], -1, TOGETHER, BYTES)
    return groups.swapaxes(-1, -2).reshape(*records.shape[:2], SPAN).swapaxes(0, 1)


def scales_in(records: Array) -> Array:
    """[rows, spans]"""
    return records[..., SCALE : SCALE + 4].copy().view(np.float32)[..., 0].T


def test_a_span_is_rounded_to_what_its_largest_number_allows():
    x = some_rows(5, 96)
    values = bfloat16_values(x).reshape(5, 3, SPAN)
    records = records_of(x)
    codes, scales = codes_in(records), scales_in(records)
    assert np.array_equal(scales, np.abs(values).max(axis=-1) / np.float32(127))
    rounded = codes * scales[..., None].astype(np.float64)
    assert (np.abs(rounded - values) <= scales[..., None] * 0.5001).all()
    assert (np.abs(codes).max(axis=-1) == 127).all()
    sums = records[..., SUMS:].copy().view(np.float32).swapaxes(0, 1)
    halves = codes.reshape(5, 3, 2, 16).sum(axis=-1, dtype=np.int32)
    expected = np.concatenate([halves, halves.sum(axis=-1, keepdims=True)], axis=-1)
    assert np.array_equal(sums, expected.astype(np.float32) * scales[..., None])


def test_a_span_of_zeros_is_zeros_and_what_is_no_number_stays_none():
    x = np.zeros((3, SPAN), np.uint16)
    x[1, 7], x[2, 31] = bfloat16_bits(np.array([np.nan, np.inf], np.float32))
    records = records_of(x)
    assert not records[0, 0].any()
    assert not np.isfinite(scales_in(records)[1:]).any()
    panel = packed("Q8_0", random_rows("Q8_0", PANEL, SPAN), SPAN)[0]
    found = product("Q8_0", records, panel)
    assert not found[0].any()
    assert not np.isfinite(found[1:]).any()


def packed(name: str, rows: Array, width: int) -> Array:
    target = np.empty((-(-len(rows) // PANEL), panel_bytes(name, width)), np.uint8)
    assert pack_stored(name, rows, target)
    return target


def product(name: str, records: Array, panel: Array) -> Array:
    """[rows, PANEL]"""
    spans, num_rows, _ = records.shape
    out = np.full((num_rows, SUMS_BYTES // 4), np.nan, np.float32)
    call_routine(
        int8_routine(name), out.ctypes.data, records.ctypes.data, num_rows * RECORD_BYTES,
        num_rows, panel.ctypes.data, spans, panel.ctypes.data,
    )  # fmt: skip
    assert np.isnan(out[:, PANEL:]).all()
    return out[:, :PANEL]


@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_that_of_rounded_rows_and_exact_weights(name: str):
    width = 768
    rows = random_rows(name, 60, width)
    weight = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]).astype(np.float64)
    records = records_of(some_rows(5, width))
    x = (codes_in(records) * scales_in(records)[..., None].astype(np.float64)).reshape(5, width)
    for number, panel in enumerate(packed(name, rows, width)):
        own = weight[number * PANEL : (number + 1) * PANEL]
        found = product(name, records, panel)
        tolerance = 2e-6 * (np.abs(x) @ np.abs(own.T))
        assert (np.abs(found[:, : len(own)] - x @ own.T) <= tolerance).all()
        assert not found[:, len(own) :].any()


@pytest.mark.parametrize("name", TYPES)
def test_extreme_codes_do_not_overflow(name: str):
    stored = STORED_TYPES[name]
    width = 2 * stored.block_values
    rows = random_rows(name, 2, width)
    codes = {stored.low(value)[0] for value in range(stored.block_values)}
    if stored.high is not None:
        codes |= {stored.high(value)[0] for value in range(stored.block_values)}
    for row, byte in enumerate((0xFF, 0x80 if stored.is_signed else 0x00)):
        rows.reshape(2, -1, stored.block_bytes)[row][:, sorted(codes)] = byte
    weight = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]).astype(np.float64)
    x = np.stack([np.ones(width), -np.ones(width)]).astype(np.float32)
    found = product(name, records_of(bfloat16_bits(x)), packed(name, rows, width)[0])[:, :2]
    tolerance = 1e-5 * np.abs(weight).sum(axis=1)
    assert (np.abs(found - x @ weight.T) <= tolerance).all()


@pytest.mark.parametrize("name", TYPES)
def test_a_row_does_not_depend_on_those_beside_it(name: str):
    [panel] = packed(name, random_rows(name, PANEL, 512), 512)
    x = some_rows(130, 512)
    together = product(name, records_of(x), panel)
    for row in (0, 64, 129):
        alone = product(name, records_of(x[row : row + 1]), panel)
        assert np.array_equal(alone[0], together[row])


@pytest.mark.parametrize("zero", [0, 255])
def test_the_largest_bytes_with_a_zero_point_do_not_overflow(zero: int):
    name, width = "uint8_f16_g32", 64
    codes = np.stack([np.full(width, 255), np.zeros(width)])
    scale = np.full((2, 2, 1), 0.5, np.float16).view(np.uint8)
    zeros = np.full((2, 2, 1), zero, np.uint8) ^ 0x80  # less 128, as codes are
    stored = codes.reshape(2, 2, 32).astype(np.uint8) ^ 0x80
    blocks = np.concatenate([scale, zeros, stored], axis=2)
    x = np.stack([np.ones(width), -np.ones(width)]).astype(np.float32)
    in_panels = packed(name, blocks.reshape(2, -1), width)
    found = product(name, records_of(bfloat16_bits(x)), in_panels[0])[:, :2]
    assert np.allclose(found, x @ ((codes - zero) / 2).T, rtol=1e-5)
