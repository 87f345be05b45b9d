"""Panels that keep GGUF's types: not a bit is other than in the de-quantised weight."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import call_routine, stored
from test_panels import packed as packed_plain
from test_panels import product, run_with_tables

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.pack_stored import pack_stored, panel_bytes
from pagoda.kernels.cpu.stored_panels import TOGETHER, decode_routine
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from pagoda.kernels.cpu.sums import sum_routine
from stored_blocks import dequantised, random_rows

TYPES = sorted(STORED_TYPES)


def packed(name: str, rows: Array, width: int, order: Array | None = None) -> Array:
    num_panels = -(-len(rows) // PANEL)
    target = np.full((num_panels, panel_bytes(name, width)), 0xAA, np.uint8)
    assert pack_stored(name, rows, order, target)
    return target


def decoded(name: str, panel: Array, first: int, count: int) -> Array:
    """Numbers of a panel: [rows, count], bits of bfloat16."""
    target = np.zeros(
        (count // TOGETHER, PANEL, TOGETHER), np.uint32 if TOGETHER == 1 else np.uint16
    )
    call_routine(
        decode_routine(name), target.ctypes.data, panel.ctypes.data, first, count, 0, PANEL
    )
    bits = target.transpose(1, 0, 2).reshape(PANEL, count)
    if TOGETHER == 1:
        assert not (bits & 0xFFFF).any()  # rounded to what bfloat16 has
        bits = bits >> 16
    return without_sign_of_zero(bits)


def without_sign_of_zero(bits: Array) -> Array:
    """A sum that begins with zero does not tell it, and panels need not keep it."""
    return np.where(bits == 0x8000, 0, bits)


@pytest.mark.parametrize("name", TYPES)
def test_every_number_is_the_de_quantised_one(name: str):
    block = STORED_TYPES[name].block_values
    width = 3 * block
    rows = random_rows(name, 2 * PANEL + 5, width)
    expected = without_sign_of_zero(dequantised(name, rows))
    in_panels = packed(name, rows, width)
    assert in_panels[:2].nbytes == rows[: 2 * PANEL].nbytes
    for number, panel in enumerate(in_panels):
        own = expected[number * PANEL : (number + 1) * PANEL]
        assert np.array_equal(decoded(name, panel, 0, width)[: len(own)], own)
        assert np.array_equal(
            decoded(name, panel, block, block)[: len(own)], own[:, block : 2 * block]
        )


def table_of(name: str, in_panels: Array) -> Array:
    """The panels, the last one twice."""
    places = np.minimum(np.arange(len(in_panels) + 1), len(in_panels) - 1)
    starts = in_panels.ctypes.data + places * in_panels.strides[0]
    return np.stack([starts, np.full_like(starts, decode_routine(name).address)], axis=1)


def inputs(num_rows: int, width: int) -> Array:
    return stored(np.random.default_rng(num_rows).normal(size=(num_rows, width)), "bfloat16")


@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_that_with_the_de_quantised_weight(name: str):
    shape = (97, 768)  # of which the last panel has one row
    rows = random_rows(name, *shape)
    in_panels = packed(name, rows, shape[1])
    plain = packed_plain(dequantised(name, rows))
    for num_rows in (1, 3, 40, 130):
        x = inputs(num_rows, shape[1])
        out, bias = np.empty((num_rows, shape[0]), np.float32), np.zeros(shape[0], np.float32)
        tables = [table_of(name, in_panels)]
        run_with_tables(sum_routine(adds=False), out, x, tables, shape[0], [bias], num_threads=1)
        assert np.array_equal(out, product(x, plain, num_threads=1))
