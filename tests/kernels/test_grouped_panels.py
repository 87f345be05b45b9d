"""Panels of Pagoda's own types: numbers are scale · (code − zero point), rounded to bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_int8_product import codes_in, product, records_of, scales_in, some_rows
from test_panels import packed as packed_plain
from test_panels import product as plain_product
from test_panels import run_with_tables
from test_stored_panels import decoded, inputs, packed, table_of, without_sign_of_zero

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import (
    BLOCK_TYPES,
    BYTE_TYPES,
    CODES,
    GROUPED_TYPES,
    PANEL,
    SCALE_BYTES,
)
from pagoda.kernels.cpu.sums import sum_routine
from pagoda.kernels.reference import bfloat16_bits, bfloat16_values
from quantised_checkpoints import SCHEMES, matrix_of

WIDTH = 256
SOME = (
    "int4_f16_g128", "int4_bf16_g32", "int4_f32_g64", "uint4_f16_g128", "uint4_bf16_g64",
    "int8_f32_g128", "int8_bf16_g64", "uint8_f16_g32", "e4m3_f32_g128", "e4m3_bf16_g128",
    "nf4_f32_g64", "fp4_f32_g32", "e2m1_bf16_g32",
)  # fmt: skip
"""Every code, with every scale of its, and every length of a group."""
_TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def numbers(code: str, stored: Array) -> Array:
    """What stored codes say, float32, but for zero points."""
    if code == "e4m3":
        return torch.from_numpy(stored).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    if table := CODES[code].table:
        return np.array(table, np.float32)[stored]
    offset = {"int4": 8, "int8": 128}.get(code, 0)
    return stored.astype(np.float32) - offset


def random_blocks(name: str, num_rows: int) -> tuple[Array, Array]:
    """Rows of blocks, and their numbers as bits of bfloat16."""
    kind, rng = GROUPED_TYPES[name], np.random.default_rng(3)
    bits, has_zero = CODES[kind.code].bits, CODES[kind.code].has_zero
    shape = (num_rows, WIDTH // kind.group)
    scales = torch.from_numpy(rng.normal(scale=0.01, size=(*shape, 1))).to(_TORCH[kind.scale])
    codes = rng.integers(0, 1 << bits, (*shape, kind.group), np.uint8)
    if kind.code == "e4m3":
        codes[codes & 0x7F == 0x7F] = 0  # no numbers
    zeros = rng.integers(0, 1 << bits, (*shape, 1), np.uint8) * np.uint8(has_zero)
    values = scales.float().numpy() * (numbers(kind.code, codes) - zeros)
    stored = codes[..., ::2] | codes[..., 1::2] << 4 if bits == 4 else codes
    if kind.code in ("int8", "uint8"):
        stored, zeros = stored ^ 0x80, zeros ^ 0x80
    parts = [scales.view(torch.uint8).numpy(), *([zeros] if has_zero else []), stored]
    rows = np.concatenate(parts, axis=2).reshape(num_rows, -1)
    return rows, bfloat16_bits(values.reshape(num_rows, WIDTH))


@pytest.mark.parametrize("name", SOME)
def test_every_number_is_the_rounded_product(name: str) -> None:
    rows, expected = random_blocks(name, PANEL + 5)
    in_panels = packed(name, rows, WIDTH)
    assert in_panels[:1].nbytes == rows[:PANEL].nbytes
    for number, panel in enumerate(in_panels):
        own = without_sign_of_zero(expected[number * PANEL : (number + 1) * PANEL])
        assert np.array_equal(decoded(name, panel, 0, WIDTH)[: len(own)], own)


def test_numbers_are_rounded_to_nearest_wherever_they_lie() -> None:
    """Halfway between two bfloat16, beside it, and next to a power of two; small, large, zero."""
    parts = (0x8000, 0x18000, 0x7FFF, 0x8001, 0x17FFF, 0x18001, 0x7FFFFF, 0x7FFFFE, 0x7F8000,
             0x7F7FFF, 1, 0)  # fmt: skip
    bits = [power << 23 | part for power in (17, 127, 238) for part in parts]
    scales = np.array([0, *bits[: PANEL - 1], *bits[-PANEL:]], np.uint32).view(np.float32)
    name, width = "int8_f32_g32", 32
    codes = np.tile(np.array([1, -1], np.int8), (len(scales), width // 2))
    rows = np.concatenate([scales[:, None].view(np.uint8), codes.view(np.uint8)], axis=1)
    expected = without_sign_of_zero(bfloat16_bits(scales[:, None] * codes))
    in_panels = packed(name, rows, width)
    for number, panel in enumerate(in_panels):
        own = expected[number * PANEL : (number + 1) * PANEL]
        assert np.array_equal(decoded(name, panel, 0, width), own)
    assert len(in_panels) == 2


@pytest.mark.parametrize("name", ["uint4_bf16_g64", "int8_bf16_g64", "e4m3_f32_g128"])
def test_few_rows_are_multiplied_with_the_rounded_numbers(name: str) -> None:
    rows, expected = random_blocks(name, PANEL + 5)
    tables = [table_of(name, in_panels := packed(name, rows, WIDTH))]
    plain, bias = packed_plain(expected), np.zeros(PANEL + 5, np.float32)
    for num_rows in (1, 8, 9):
        x, out = inputs(num_rows, WIDTH), np.empty((num_rows, PANEL + 5), np.float32)
        run_with_tables(sum_routine(adds=False), out, x, tables, PANEL + 5, [bias], num_threads=1)
        assert np.array_equal(out, plain_product(x, plain, num_threads=1))
    assert len(in_panels) == 2


def test_all_codes_and_scales_are_tried() -> None:
    tried = [GROUPED_TYPES[name] for name in SOME]
    assert {each.code for each in tried} == set(CODES)
    assert {each.scale for each in tried} == set(SCALE_BYTES)
    assert {each.group for each in tried} == {each.group for each in GROUPED_TYPES.values()}


def test_every_float8_is_itself() -> None:
    codes = np.arange(256, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    one = np.broadcast_to(np.ones(1, np.float32).view(np.uint8), (PANEL, 2, 4))
    rows = np.concatenate([one, np.broadcast_to(codes.reshape(2, 128), (PANEL, 2, 128))], axis=2)
    expected = without_sign_of_zero(bfloat16_bits(numbers("e4m3", codes)))
    panels = packed("e4m3_f32_g128", rows.reshape(PANEL, -1), 256)
    assert (decoded("e4m3_f32_g128", panels[0], 0, 256) == expected).all()


@pytest.mark.parametrize("name", [name for name in SCHEMES if SCHEMES[name].type in BLOCK_TYPES])
def test_what_schemes_store_is_what_panels_decode_to(name: str) -> None:
    stored, rows = SCHEMES[name], PANEL + 8
    tensors, weight = stored.layer(np.random.default_rng(2), rows, WIDTH)
    blocks = matrix_of(tensors, stored.section).blocks(PANEL, 8)
    [panel] = packed(stored.type, blocks, WIDTH)
    expected = without_sign_of_zero(bfloat16_bits(weight[PANEL:].numpy()))
    assert np.array_equal(decoded(stored.type, panel, 0, WIDTH)[:8], expected)


@pytest.mark.parametrize("name", [name for name in SOME if name in BYTE_TYPES])
@pytest.mark.parametrize("most", [False, True])
def test_rounded_rows_are_multiplied_with_whole_codes(name: str, most: bool) -> None:
    rows, _ = random_blocks(name, PANEL)
    head = SCALE_BYTES[GROUPED_TYPES[name].scale] + CODES[GROUPED_TYPES[name].code].has_zero
    if most:
        rows.reshape(-1, BLOCK_TYPES[name].num_bytes)[:, head:] = 0x80
    panel = packed(name, rows, WIDTH)[0]
    weight = bfloat16_values(decoded(name, panel, 0, WIDTH)).astype(np.float64)
    records = records_of(some_rows(3, WIDTH))
    x = (codes_in(records) * scales_in(records)[..., None].astype(np.float64)).reshape(3, WIDTH)
    tolerance = 2**-8 * (np.abs(x) @ np.abs(weight.T))  # of numbers rounded to bfloat16
    assert (np.abs(product(name, records, panel) - x @ weight.T) <= tolerance).all()
