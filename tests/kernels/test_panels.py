from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kept import kept
from kernel_arrays import DTYPES, assert_close, call_routine, seen, stored
from numba import prange

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu import embed, multiply, panels
from pagoda.kernels.cpu.activation import ACTIVATIONS, GATES
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.panel_product import PANEL_ROWS
from pagoda.kernels.cpu.sums import activate_routine, gate_routine, sum_routine
from pagoda.kernels.cpu.team import Team, claim_near, first_phase, phases, team_of

pytestmark = pytest.mark.threads

LARGE = pytest.param((960, 576), id="960x576")
"""For CPUs with vector instructions: `test_plain_form.py` leaves it out."""
SHAPES = [
    # rows of the weight, its width
    LARGE,
    (64, 32),
    (97, 48),
    (31, 20),
    (1, 2),
    (200, 130),
]
ROWS = (1, 2, 3, 4, 5, 12, 13, 24, 40, 130, 250)


@kernel
def by_threads(
    places: int, memory: int, use: int, out: int, row_bytes: int, item_size: int, x: int,
    rows: int, depth: int, first: int, second: int, width: int, bias: int, second_bias: int,
    routines: multiply.ProductRoutines, num_threads: int,
) -> None:  # fmt: skip
    for thread in prange(num_threads):
        multiply.multiply(
            first_phase(places, num_threads), team_of(thread, num_threads, places), routines, use,
            memory + thread * multiply.MEMORY_BYTES, out, row_bytes, item_size, x, rows, depth, 0,
            first, second, width, bias, second_bias, first,
        )  # fmt: skip


def run(
    use: Any, out: Array, x: Array, weights: list[Array], biases: list[Array], num_threads: int = 2
) -> None:
    tables = [table_of(weight) for weight in weights]
    run_with_tables(use, out, x, tables, len(weights[0]), biases, num_threads)


def run_with_tables(
    use: Any, out: Array, x: Array, tables: list[Array], width: int, biases: list[Array],
    num_threads: int = 2,
) -> None:  # fmt: skip
    """A product with weights of `width` rows, by the tables of their panels."""
    counters = phases(1, num_threads)
    memory = np.empty(num_threads * multiply.MEMORY_BYTES, np.uint8)
    places = [table.ctypes.data for table in tables] + [0]
    offsets = [bias.ctypes.data for bias in biases] + [0]
    by_threads(
        counters.ctypes.data, memory.ctypes.data, use.address, out.ctypes.data, out.strides[0],
        out.itemsize, x.ctypes.data, len(x), x.strides[0] // 4, *places[:2], width,
        *offsets[:2], multiply.product_routines(x.dtype == np.uint16), num_threads,
    )  # fmt: skip


def table_of(weight: Array) -> Array:
    """The panels of a weight that has been turned into them, the last one twice."""
    count = -(-len(weight) // PANEL)
    places = np.minimum(np.arange(count + 1), count - 1) * PANEL
    return table_from(weight.ctypes.data + places * weight.strides[0])


def table_from(starts: Array, decode: int = 0, few: int = 0) -> Array:
    """A table of panels that begin there, of which the last is there twice."""
    left = np.arange(len(starts) - 1, -1, -1)
    entry = panels.PanelEntry(0, decode, few, rounded=0, left=0)
    table = np.tile(np.array(entry, np.int64), (len(starts), 1))
    table[:, 0], table[:, -1] = starts, left
    return table


@kept
def begin(team: Team, table: int, rows: int, num_items: int) -> tuple[int, int]:
    """The entry that a thread asks for, and the item that it gets."""
    entry = multiply.entry_of_run(team, table, rows)
    return entry, claim_near(team, first_phase(team.places, team.num_threads), num_items)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_thread_asks_for_the_panel_that_it_will_begin_with(num_threads: int):
    table, counters = table_from(np.arange(8)), phases(1, num_threads)
    teams = [Team(thread, num_threads, counters.ctypes.data) for thread in range(num_threads)]
    for team in teams:
        entry, item = begin(team, table.ctypes.data, 1, 7)
        assert entry == table[item:].ctypes.data
    entry, _ = begin(teams[-1], table.ctypes.data, PANEL_ROWS + 1, 7)
    assert entry == table.ctypes.data


def packed(weight: Array) -> Array:
    turned = weight.copy()
    panels.pack(turned)
    return turned


def product(x: Array, weight: Array, num_threads: int = 2) -> Array:
    """By a weight in its panels."""
    out = np.full((len(x), len(weight)), np.nan, np.float32)
    bias = np.zeros(len(weight), np.float32)
    run(sum_routine(adds=False), out, x, [weight], [bias], num_threads)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_the_reference(dtype: str, shape: tuple[int, int]):
    rng = np.random.default_rng(shape[0])
    weight = stored(rng.normal(size=shape), dtype)
    in_panels = packed(weight)
    for rows in ROWS:
        x = stored(rng.normal(size=(rows, shape[1])), dtype)
        expected = seen(x).astype(np.float64) @ seen(weight).astype(np.float64).T
        assert_close(product(x, in_panels), expected, "float32")
    assert np.allclose(expected[:2, :5], reference.product(seen(x)[:2], seen(weight)[:5]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [LARGE, (97, 48)])
def test_not_a_bit_depends_on_other_rows_or_threads(dtype: str, shape: tuple[int, int]):
    rng = np.random.default_rng(0)
    weight = packed(stored(rng.normal(size=shape), dtype))
    x = stored(rng.normal(size=(250, shape[1])), dtype)
    alone = np.concatenate([product(x[row : row + 1], weight) for row in range(250)])
    for rows in ROWS:
        assert np.array_equal(product(x[:rows], weight), alone[:rows])
        assert np.array_equal(product(x[-rows:], weight, num_threads=1), alone[-rows:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 30])
def test_results_are_added_to_what_is_there(dtype: str, rows: int):
    rng = np.random.default_rng(rows)
    weight = stored(rng.normal(size=(80, 64)), dtype)
    x = stored(rng.normal(size=(rows, 64)), dtype)
    bias = rng.normal(size=80).astype(np.float32)
    stream = rng.normal(size=(rows, 80)).astype(np.float32)
    expected = stream + seen(x) @ seen(weight).T + bias
    run(sum_routine(adds=True), stream, x, [packed(weight)], [bias])
    assert_close(stream, expected, "float32")


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 64), (5, 80), (12, 32), (40, 96), (30, 37)])
def test_the_gate_is_that_of_the_reference(dtype: str, rows: int, inner: int, name: str):
    rng = np.random.default_rng(inner)
    weights = [stored(rng.normal(size=(inner, 64)), dtype) for _ in range(2)]
    x = stored(rng.normal(size=(rows, 64)), dtype)
    bias = rng.normal(size=2 * inner).astype(np.float32)
    sums = np.concatenate([seen(x) @ seen(weight).T for weight in weights], axis=1)
    out = np.empty((rows, inner), x.dtype)
    biases = [bias[:inner].copy(), bias[inner:].copy()]
    run(gate_routine(dtype == "bfloat16", name), out, x, list(map(packed, weights)), biases)
    assert_close(out, reference.gated(sums + bias, name), dtype)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 80), (40, 96), (30, 37)])
def test_what_has_no_gate_is_activated(dtype: str, rows: int, inner: int, name: str):
    rng = np.random.default_rng(inner)
    weight = stored(rng.normal(size=(inner, 64)), dtype)
    x = stored(rng.normal(size=(rows, 64)), dtype)
    bias = rng.normal(size=inner).astype(np.float32)
    out = np.empty((rows, inner), x.dtype)
    run(activate_routine(dtype == "bfloat16", name), out, x, [packed(weight)], [bias])
    expected = reference.activated(seen(x) @ seen(weight).T + bias, name)
    assert_close(out, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_can_be_read_from_their_panels(dtype: str, shape: tuple[int, int]):
    weight = stored(np.random.default_rng(0).normal(size=shape), dtype)
    in_panels = packed(weight)
    table = table_of(in_panels)
    rows = np.array([shape[0] - 1, 0, shape[0] // 2])
    out, scale = np.empty((3, shape[1]), np.float32), np.array([0.75], np.float32)
    call_routine(
        embed.embed_routine(dtype == "bfloat16"), out.ctypes.data, rows.ctypes.data, 3,
        table.ctypes.data, *shape, scale.ctypes.data, 0,
    )  # fmt: skip
    assert np.array_equal(out, seen(weight)[rows] * scale)
