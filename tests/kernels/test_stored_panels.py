"""Panels that keep GGUF's types: not a bit is other than in the de-quantised weight."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import assert_close, call_routine, seen, stored
from test_panels import packed as packed_plain
from test_panels import product, run_with_tables, table_from
from test_panels import table_of as plain_table

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import GGUF_TYPES, PANEL, panel_bytes
from pagoda.kernels.cpu.embed import embed_routine
from pagoda.kernels.cpu.few_rows import FEW_ROWS, few_rows_routine
from pagoda.kernels.cpu.multiply import MEMORY_BYTES
from pagoda.kernels.cpu.pack_stored import pack_stored
from pagoda.kernels.cpu.panels import SLICE_VALUES
from pagoda.kernels.cpu.stored_panels import decode_routine
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from pagoda.kernels.cpu.stored_words import SPAN, TOGETHER
from pagoda.kernels.cpu.sums import SUMS_BYTES, gate_routine, sum_routine
from stored_blocks import dequantised, random_rows

TYPES = sorted(GGUF_TYPES)


def packed(name: str, rows: Array, width: int) -> Array:
    num_panels = -(-len(rows) // PANEL)
    target = np.full((num_panels, panel_bytes(name, width)), 0xAA, np.uint8)
    assert pack_stored(name, rows, target)
    return target


def decoded(name: str, panel: Array, first: int, count: int) -> Array:
    """Numbers of a panel: [rows, count], bits of bfloat16."""
    target = np.zeros(
        (count // TOGETHER, PANEL, TOGETHER), np.uint32 if TOGETHER == 1 else np.uint16
    )
    call_routine(
        decode_routine(name), target.ctypes.data, panel.ctypes.data, first, count, 0, PANEL, 0
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
    few = few_rows_routine(name).address if FEW_ROWS else 0
    return table_from(starts, decode_routine(name).address, few)


def inputs(num_rows: int, width: int) -> Array:
    return stored(np.random.default_rng(num_rows).normal(size=(num_rows, width)), "bfloat16")


@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_that_with_the_de_quantised_weight(name: str):
    shape = (97, 768)  # of which the last panel has one row
    rows = random_rows(name, *shape)
    in_panels = packed(name, rows, shape[1])
    plain = packed_plain(dequantised(name, rows))
    for num_rows in (1, 2, 5, 8, 9, 12, 40, 130):
        x = inputs(num_rows, shape[1])
        out, bias = np.empty((num_rows, shape[0]), np.float32), np.zeros(shape[0], np.float32)
        tables = [table_of(name, in_panels)]
        run_with_tables(sum_routine(adds=False), out, x, tables, shape[0], [bias], num_threads=1)
        assert np.array_equal(out, product(x, plain, num_threads=1))


def test_few_rows_meet_a_panel_in_registers():
    """As every product of few rows does where registers hold a row of a panel."""
    width, num_spans = 512, 512 // SPAN
    rows = random_rows("Q6_K", PANEL, width)
    [panel] = packed("Q6_K", rows, width)
    weight = seen(dequantised("Q6_K", rows)).astype(np.float64)
    for num_rows in range(1, FEW_ROWS + 1):
        x, out = inputs(num_rows, width), np.empty((num_rows, SUMS_BYTES // 4), np.float32)
        call_routine(
            few_rows_routine("Q6_K"), out.ctypes.data, x.ctypes.data, width // 2, num_rows,
            panel.ctypes.data, num_spans, panel.ctypes.data,
        )  # fmt: skip
        assert_close(out[:, :PANEL], seen(x).astype(np.float64) @ weight.T, "float32")


@pytest.mark.threads
def test_a_last_slice_may_have_any_number_of_spans():
    width = SLICE_VALUES + 3 * SPAN
    rows = random_rows("Q5_0", 64, width)
    tables = [table_of("Q5_0", in_panels := packed("Q5_0", rows, width))]
    plain = packed_plain(dequantised("Q5_0", rows))
    for num_rows in (2, 50):
        x, out = inputs(num_rows, width), np.empty((num_rows, 64), np.float32)
        no_bias = np.zeros(64, np.float32)
        run_with_tables(sum_routine(adds=False), out, x, tables, 64, [no_bias], num_threads=2)
        assert np.array_equal(out, product(x, plain))
    assert len(in_panels) == 2


def test_items_of_many_rows_are_those_of_the_de_quantised_weight():
    shape, num_rows = (520, 256), 360
    rows = random_rows("Q4_K", *shape)
    x, out = inputs(num_rows, shape[1]), np.empty((num_rows, shape[0]), np.float32)
    tables = [table_of("Q4_K", in_panels := packed("Q4_K", rows, shape[1]))]
    bias = np.zeros(shape[0], np.float32)
    run_with_tables(sum_routine(adds=False), out, x, tables, shape[0], [bias], num_threads=1)
    assert np.array_equal(out, product(x, packed_plain(dequantised("Q4_K", rows)), num_threads=1))
    assert len(in_panels) == 17


def test_a_table_may_have_panels_of_several_kinds():
    width, no_bias = 256, np.zeros(96, np.float32)
    numbers = inputs(PANEL, width)
    rows = {name: random_rows(name, PANEL, width) for name in ("Q6_K", "Q8_0")}
    plain, kept = packed_plain(numbers), {name: packed(name, rows[name], width) for name in rows}
    tables = [plain_table(plain), *(table_of(name, kept[name]) for name in rows)]
    table = np.concatenate([*(each[:1] for each in tables), tables[-1][-1:]])
    table[:, -1] = np.arange(len(table) - 1, -1, -1)
    whole = [numbers, *(dequantised(name, rows[name]) for name in rows)]
    expected = packed_plain(np.concatenate(whole))
    for num_rows in (3, 40, 130):
        x, out = inputs(num_rows, width), np.empty((num_rows, 96), np.float32)
        run_with_tables(sum_routine(adds=False), out, x, [table], 96, [no_bias], num_threads=2)
        assert np.array_equal(out, product(x, expected, num_threads=1))


@pytest.mark.threads
def test_gate_and_up_may_be_of_different_kinds():
    width, inner = 256, 96
    kept = random_rows("Q4_K", inner, width)
    in_panels = packed("Q4_K", kept, width)
    gate, up = dequantised("Q4_K", kept), inputs(inner, width)
    plain_gate, plain_up = packed_plain(gate), packed_plain(up)
    bias = np.random.default_rng(0).normal(size=inner).astype(np.float32)
    for num_rows in (1, 40):
        x = inputs(num_rows, width)
        found, expected = (np.empty((num_rows, inner), np.uint16) for _ in range(2))
        use, up_table = gate_routine(True, "silu"), plain_table(plain_up)
        for out, table in (
            (found, table_of("Q4_K", in_panels)),
            (expected, plain_table(plain_gate)),
        ):
            run_with_tables(use, out, x, [table, up_table], inner, [bias, bias], num_threads=2)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_rows_can_be_read_from_their_panels(name: str):
    rows = random_rows(name, 70, 256)
    table, width = table_of(name, in_panels := packed(name, rows, 256)), 256
    wanted = np.array([69, 0, 33, 15, 16])
    out, memory = np.empty((5, width), np.float32), np.empty(MEMORY_BYTES, np.uint8)
    scale = np.array([1.5], np.float32)
    call_routine(
        embed_routine(True), out.ctypes.data, wanted.ctypes.data, 5, table.ctypes.data, 70, width,
        scale.ctypes.data, memory.ctypes.data,
    )  # fmt: skip
    assert np.array_equal(out, seen(dequantised(name, rows))[wanted] * scale)
    assert len(in_panels) == 3


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q2_K", "Q6_K"])
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_every_scale_must_be_finite(name: str, scale: float):
    for half in STORED_TYPES[name].halves:
        rows = random_rows(name, 40, 512)
        rows[37, half : half + 2] = np.float16(scale).reshape(1).view(np.uint8)
        target = np.empty((2, panel_bytes(name, 512)), np.uint8)
        assert not pack_stored(name, rows, target)


def test_scales_without_an_exponent_are_what_they_are():
    rows = random_rows("Q4_1", 32, 32)
    for row, scale in enumerate(
        (2**-24, -(2**-24), 3 * 2**-20, 2**-14 - 2**-24, 2**-14, 0.0, -0.0)
    ):
        rows[row, :2] = np.float16(scale).reshape(1).view(np.uint8)
    expected = without_sign_of_zero(dequantised("Q4_1", rows))
    assert np.array_equal(decoded("Q4_1", packed("Q4_1", rows, 32)[0], 0, 32), expected)
