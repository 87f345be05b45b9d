"""Products with coded keys and values, and their scales, against plain sums over unpacked codes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from coded_blocks import to_planes

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.level_tables import head_tables
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.page_product import HeadRoutines, head_routines
from pagoda.kernels.reference import bfloat16_bits, bfloat16_values
from pagoda.kernels.vector_code import CHUNK, TABLE_SIZE, VectorCode, unpack

HEADS, ROWS, NUM_BLOCKS = 2, 5, 6
CODES = {
    "mixed": VectorCode("levels", (6, 5, 4, 3, 2, 1, 0, 5), "float16"),
    "fours": VectorCode("levels", (4, 4, 4, 4), "float16", has_offset=True),
    "bytes": VectorCode("int8", (8, 8, 8), "float32"),
    "floats": VectorCode("e4m3", (8,)),
}


def call(address: int, *args: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(address)(*args)


class Case:
    """Random codes of one side in blocks of a table, and rows that meet them."""

    def __init__(self, name: str, paired: bool, block_size: int) -> None:
        self.code, self.paired, self.block_size = CODES[name], paired, block_size
        self.rng = np.random.default_rng(block_size)
        self.table = self.rng.permutation(NUM_BLOCKS).astype(np.int32)
        shape = (NUM_BLOCKS, HEADS, block_size, self.code.code_bytes)
        self.bytes = self.rng.integers(0, 256, shape).astype(np.uint8)
        if name == "floats":
            self.bytes[(self.bytes & 0x7F) == 0x7F] = 0
        if name == "bytes":
            self.bytes[self.bytes == 0x80] = 0
        self.tables = self.rng.integers(-127, 128, (HEADS, TABLE_SIZE)).astype(np.int8)
        self.head_tables = head_tables(self.tables)
        form = PageForm(paired, self.code.head_size, block_size, self.code, self.code)
        self.routines: HeadRoutines = head_routines(form)

    def levels(self) -> Array:
        """[tokens, heads, head_size], in the order of the table."""
        codes = unpack(self.code, self.bytes)[self.table].transpose(0, 2, 1, 3)
        codes = codes.reshape(-1, HEADS, self.code.head_size)
        if self.code.numbers == "int8":
            return codes.view(np.int8).astype(np.float64)
        if self.code.numbers == "e4m3":
            fraction, exponent = codes % 8, (codes & 0x7F) >> 3
            normal = (1 + fraction / 8) * 2.0 ** (exponent.astype(int) - 7)
            sizes = np.where(exponent > 0, normal, fraction / 8 * 2.0**-6)
            return np.where(codes < 128, sizes, -sizes)
        found = np.zeros(codes.shape)
        for chunk, width in enumerate(self.code.widths):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            for head in range(HEADS):
                table = self.tables[head, 2**width : 2 ** (width + 1)]
                found[:, head, part] = table[codes[:, head, part]] if width else 0
        return found

    def stored(self, rows: Array) -> tuple[Array, Array]:
        """Rows as products take them, and what they stand for."""
        if not self.paired:
            return rows.astype(np.float32), rows.astype(np.float32)
        bits = bfloat16_bits(rows)
        return bits, bfloat16_values(bits)


FORMS = ((False, 16), (True, 16), (False, 6), (True, 24))
CASES = pytest.mark.parametrize(
    ("name", "paired", "block_size"),
    [(name, *form) for name in CODES for form in (FORMS[:2] if name == "mixed" else FORMS)],
)


@CASES
def test_scores_are_products_with_the_levels(name: str, paired: bool, block_size: int) -> None:
    case = Case(name, paired, block_size)
    size, tokens = case.code.head_size, NUM_BLOCKS * block_size
    x, seen = case.stored(case.rng.normal(size=(HEADS, ROWS, size)))
    keys = np.ascontiguousarray(case.bytes.swapaxes(2, 3))  # bytes of a key, then tokens
    out = np.zeros((HEADS, ROWS, tokens), np.float32)
    at_once = case.routines.score_blocks
    for first in range(0, NUM_BLOCKS, at_once):
        last = min(first + at_once, NUM_BLOCKS)
        part = np.zeros((HEADS, ROWS, tokens + at_once * block_size), np.float32)
        call(
            case.routines.score, part.ctypes.data, part.shape[2], x.ctypes.data,
            x.strides[1] // 4, keys.ctypes.data, keys.ctypes.data, keys[0].nbytes,
            case.table.ctypes.data, first, first, last, ROWS, HEADS, case.head_tables.ctypes.data,
        )  # fmt: skip
        width = (last - first) * block_size
        out[..., first * block_size : last * block_size] = part[..., :width]
    expected = np.einsum("hrd,thd->hrt", seen.astype(np.float64), case.levels())
    assert out == pytest.approx(expected, rel=1e-4, abs=1e-4 * np.abs(expected).max())


@CASES
def test_outputs_are_sums_of_the_levels(name: str, paired: bool, block_size: int) -> None:
    case = Case(name, paired, block_size)
    size, tokens = case.code.head_size, NUM_BLOCKS * block_size
    begin, end = 3, tokens - 3
    weights = case.rng.uniform(size=(HEADS, ROWS, tokens))
    weights[..., :begin], weights[..., end:] = 0, 0
    values = to_planes(case.code, case.bytes)
    x, seen = case.stored(weights)
    out = np.full((HEADS, ROWS, size), np.nan, np.float32)
    call(
        case.routines.weigh, out.ctypes.data, size, x.ctypes.data, x.strides[1] // 4,
        values.ctypes.data, values[0].nbytes, case.table.ctypes.data, 0, begin, end,
        values.ctypes.data, ROWS, HEADS, case.head_tables.ctypes.data,
    )  # fmt: skip
    expected = np.einsum("hrt,thd->hrd", seen.astype(np.float64)[..., :end], case.levels()[:end])
    assert out == pytest.approx(expected, rel=1e-4, abs=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("paired", "block_size"), FORMS)
@pytest.mark.parametrize("name", ["fours", "bytes"])
def test_scales_meet_scores_and_weights(name: str, paired: bool, block_size: int) -> None:
    """Of tokens that do not count they may be no numbers."""
    case = Case(name, paired, block_size)
    size, tokens, code = case.code.head_size, NUM_BLOCKS * block_size, case.code
    parts = 1 + code.has_offset
    kept = case.rng.normal(size=(NUM_BLOCKS, HEADS, parts, block_size)).astype(code.scale)
    kept[case.table[-1], ..., -2:] = np.nan
    by_token = kept[case.table].astype(np.float64).transpose(1, 2, 0, 3).reshape(HEADS, parts, -1)
    by_token = by_token[:, :, None]
    x, seen = case.stored(case.rng.normal(size=(HEADS, ROWS, size)))
    scores = case.rng.normal(size=(HEADS, ROWS, tokens)).astype(np.float32)
    expected = scores * by_token[:, 0]
    if code.has_offset:
        expected = expected + seen.astype(np.float64).sum(-1, keepdims=True) * by_token[:, 1]
    sums = np.zeros((HEADS, ROWS), np.float32)
    shape = (
        kept.ctypes.data, kept[0, 0].nbytes, kept[0].nbytes, case.table.ctypes.data, 0, NUM_BLOCKS,
        0, ROWS, HEADS,
    )  # fmt: skip
    call(
        case.routines.scale_scores, scores.ctypes.data, tokens, x.ctypes.data, x.strides[1] // 4,
        sums.ctypes.data, *shape,
    )  # fmt: skip
    assert scores[..., :-2] == pytest.approx(expected[..., :-2], rel=1e-4, abs=1e-4)

    weights = case.rng.uniform(size=(HEADS, ROWS, tokens)).astype(np.float32)
    weights[..., -2:] = 0
    expected, offsets = weights * by_token[:, 0], np.zeros((HEADS, ROWS), np.float32)
    summed = (weights * by_token[:, -1])[..., :-2].sum(-1)
    call(case.routines.scale_weights, weights.ctypes.data, tokens, offsets.ctypes.data, *shape)
    found = weights
    if paired:
        found = bfloat16_values(weights.view(np.uint16)[..., :tokens])
        expected = bfloat16_values(bfloat16_bits(expected.astype(np.float32)))
    assert found[..., :-2] == pytest.approx(expected[..., :-2], rel=1e-2 if paired else 1e-5)
    assert not found[..., -2:].any()
    if code.has_offset:
        assert offsets == pytest.approx(summed, rel=1e-3, abs=1e-3)
