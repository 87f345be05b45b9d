from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.product import multiply, tiling, vector_widths
from pagoda.kernels.cpu.vector import UNIT


def test_tiles_cover_every_shape_and_fit_into_registers():
    for columns in (1, 2, 8, 16, 20, 24, 32, 48, 64, 80, 96, 100, 112, 120, 128, 192, 256):
        assert sum(vector_widths(columns)) == columns
        for group_size in range(1, 33):
            cut = tiling(columns, group_size)
            assert columns % cut.columns == 0
            assert group_size % cut.small_rows == 0
            assert cut.big_rows % cut.small_rows == 0
            vectors = len(vector_widths(cut.columns))
            assert cut.big_rows == 1 or cut.big_rows * vectors <= UNIT.accumulators


@pytest.mark.parametrize(("columns", "group_size"), [(16, 3), (20, 1), (128, 4)])
def test_the_product_is_added_in_order_of_k(columns: int, group_size: int):
    @njit
    def add_product(out: Array, a: Array, b: Array, rows: int, depth: int) -> None:
        multiply(
            out, 2, columns + 1, a, 1, depth + 3, b, 3, columns + 2, b, 0,
            rows, depth, columns, group_size,
        )  # fmt: skip

    rng = np.random.default_rng(columns)
    for rows in (group_size, 7 * group_size, 31 * group_size):
        for depth in (0, 1, 37):
            a = rng.normal(size=(rows, depth + 3)).astype(np.float32)
            b = rng.normal(size=(depth + 1, columns + 2)).astype(np.float32)
            out = rng.normal(size=(rows, columns + 1)).astype(np.float32)
            expected = out.copy()
            for k in range(depth):
                # float64 holds a product exactly, so that one rounding is left: the sum's.
                product = a[:, k, None].astype(np.float64) * b[k, :columns]
                expected[:, :columns] = (expected[:, :columns] + product).astype(np.float32)
            flat = (np.concatenate((np.zeros(n, np.float32), x.ravel())) for n, x in
                    ((2, out), (1, a), (3, b)))  # fmt: skip
            got, flat_a, flat_b = flat
            add_product(got, flat_a, flat_b, rows, depth)
            got = got[2:].reshape(out.shape)
            # The sum of a product and a float32 may itself be rounded to float64: rare, one bit.
            assert np.mean(got != expected) < 0.01
            assert np.allclose(got, expected, rtol=1e-5, atol=1e-5)
            assert np.array_equal(got[:, columns], out[:, columns])
