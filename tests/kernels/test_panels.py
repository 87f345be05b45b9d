from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_arrays import DTYPES, assert_close, seen, stored
from numba import njit, prange

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.cpu import panels
from pagoda.kernels.cpu.product import PanelRoutines, panel_routines
from pagoda.kernels.cpu.team import phases

SHAPES = [
    # rows of the weight, its width
    (960, 576),
    (64, 32),
    (97, 48),
    (31, 20),
    (1, 2),
    (200, 130),
]
ROWS = (1, 2, 5, 12, 13, 24, 40, 130, 250)


def by_threads(multiply: Callable[..., None]) -> Callable[..., None]:
    @njit(parallel=True)
    def run(
        out: Array, x: Array, first: int, second: int, width: int, bias: Array,
        routines: PanelRoutines, num_threads: int,
    ) -> None:  # fmt: skip
        counters = phases(1)
        for _ in prange(num_threads):
            sums = panels.new_sums()
            multiply(
                counters[0], num_threads, routines, sums, out, x, first, second, width, first, bias
            )

    return run


keep, add, gate = (
    by_threads(multiply)
    for multiply in (panels.multiply, panels.multiply_add, panels.multiply_gate)
)


def packed(weight: Array) -> Array:
    turned = weight.copy()
    panels.pack(turned)
    return turned


def product(x: Array, weight: Array, dtype: str, num_threads: int = 2) -> Array:
    out = np.full((len(x), len(weight)), np.nan, np.float32)
    place = packed(weight)
    routines = panel_routines(dtype == "bfloat16")
    keep(
        out, x, place.ctypes.data, 0, len(weight), np.zeros(len(weight), np.float32), routines,
        num_threads,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_the_reference(dtype: str, shape: tuple[int, int]):
    rng = np.random.default_rng(shape[0])
    weight = stored(rng.normal(size=shape), dtype)
    for rows in ROWS:
        x = stored(rng.normal(size=(rows, shape[1])), dtype)
        expected = seen(x).astype(np.float64) @ seen(weight).astype(np.float64).T
        assert_close(product(x, weight, dtype), expected, "float32")
    assert np.allclose(expected[:2, :5], reference.product(seen(x)[:2], seen(weight)[:5]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(960, 576), (97, 48)])
def test_not_a_bit_depends_on_other_rows_or_threads(dtype: str, shape: tuple[int, int]):
    rng = np.random.default_rng(0)
    weight = stored(rng.normal(size=shape), dtype)
    x = stored(rng.normal(size=(250, shape[1])), dtype)
    alone = np.concatenate([product(x[row : row + 1], weight, dtype) for row in range(250)])
    for rows in ROWS:
        assert np.array_equal(product(x[:rows], weight, dtype), alone[:rows])
        assert np.array_equal(product(x[-rows:], weight, dtype, num_threads=1), alone[-rows:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 30])
def test_results_are_added_to_what_is_there(dtype: str, rows: int):
    rng = np.random.default_rng(rows)
    weight = stored(rng.normal(size=(80, 64)), dtype)
    x = stored(rng.normal(size=(rows, 64)), dtype)
    bias = rng.normal(size=80).astype(np.float32)
    stream = rng.normal(size=(rows, 80)).astype(np.float32)
    expected = stream + seen(x) @ seen(weight).T + bias
    place = packed(weight)
    add(stream, x, place.ctypes.data, 0, 80, bias, panel_routines(dtype == "bfloat16"), 2)
    assert_close(stream, expected, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 64), (5, 80), (12, 32), (40, 96), (30, 37)])
def test_the_gate_is_that_of_the_reference(dtype: str, rows: int, inner: int):
    rng = np.random.default_rng(inner)
    weights = [stored(rng.normal(size=(inner, 64)), dtype) for _ in range(2)]
    x = stored(rng.normal(size=(rows, 64)), dtype)
    bias = rng.normal(size=2 * inner).astype(np.float32)
    sums = np.concatenate([seen(x) @ seen(weight).T for weight in weights], axis=1)
    out = np.empty((rows, inner), x.dtype)
    first, second = map(packed, weights)
    routines = panel_routines(dtype == "bfloat16")
    gate(out, x, first.ctypes.data, second.ctypes.data, inner, bias, routines, 2)
    assert_close(out, reference.silu_mul(sums + bias), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_can_be_read_from_its_panel(dtype: str, shape: tuple[int, int]):
    weight = stored(np.random.default_rng(0).normal(size=shape), dtype)
    place = packed(weight)
    for row in {0, shape[0] // 2, shape[0] - 1}:
        out = np.empty(shape[1], np.float32)
        panels.read_row(out, place.ctypes.data, row, shape[0], weight)
        assert np.array_equal(out, seen(weight[row]))
