"""Numbers that are quantised: the plain reference's, in blocks as the gguf package reads them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import row_bytes
from pagoda.kernels.cpu.quantise import LARGEST, quantise
from pagoda.kernels.cpu.quantised_forms import QUANTISED_FORMS
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from plain_quantiser import dequantised
from plain_quantiser import quantised as plainly_quantised

NAMES = sorted(QUANTISED_FORMS)
SHAPES = [(1, 256), (5, 768), (37, 512)]


def random_numbers(num_rows: int, width: int, seed: int = 0) -> Array:
    """Heavy tails, and scales that differ from row to row."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_t(5, (num_rows, width)) * 10.0 ** rng.integers(-4, 1, (num_rows, 1))
    return numbers.astype(np.float32)


def hard_numbers() -> Array:
    """A row each: nothing, one outlier, constants, numbers of one sign, denormals, the largest."""
    rng = np.random.default_rng(1)
    ones = np.ones(512)
    rows = [
        0 * ones,
        np.where(np.arange(512) == 300, 7.5, 0),
        0.75 * ones,
        -0.75 * ones,
        rng.uniform(1, 2, 512),
        -rng.uniform(1, 2, 512),
        rng.normal(size=512) * 1e-40,
        rng.normal(size=512) * 1e-7,
        rng.choice([-LARGEST, LARGEST], 512),
        rng.normal(size=512) * np.repeat([1, 1e-6], 256),
        np.where(np.arange(512) % 2, 3e-8, -0.0),
    ]
    return np.array(rows, np.float32)


def quantised(name: str, rows: Array) -> Array:
    target = np.full((len(rows), row_bytes(name, rows.shape[1])), 0xAA, np.uint8)
    assert quantise(name, rows, target)
    return target


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [*SHAPES, None], ids=str)
def test_numbers_are_those_of_the_plain_reference(name: str, rows: tuple[int, int] | None):
    numbers = hard_numbers() if rows is None else random_numbers(*rows)
    found = dequantised(name, quantised(name, numbers))
    assert np.array_equal(found, plainly_quantised(name, numbers))


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_their_neighbours(name: str):
    numbers = random_numbers(9, 512, seed=2)
    alone = [quantised(name, numbers[row : row + 1])[0] for row in range(9)]
    assert np.array_equal(quantised(name, numbers), alone)


@pytest.mark.parametrize("name", ["Q8_0", "Q5_0", "Q4_0"])
def test_the_error_is_less_than_that_of_the_gguf_package(name: str):
    numbers = random_numbers(64, 512, seed=3)
    theirs = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[name])
    ours = quantised(name, numbers)
    assert error(name, numbers, ours) < 0.95 * error(name, numbers, theirs)


def error(name: str, numbers: Array, blocks: Array) -> float:
    """Relative to each row's size, since small rows matter as much."""
    off = np.square(dequantised(name, blocks) - numbers, dtype=np.float64)
    return float((off.mean(axis=1) / np.square(numbers, dtype=np.float64).mean(axis=1)).mean())


@pytest.mark.parametrize("name", NAMES)
def test_no_group_is_further_off_than_even_steps_would_be(name: str):
    """From the least to the largest number, or to either side of zero, in as many steps as there
    are codes; a block's other groups make scales of steps a little coarser."""
    form, stored = QUANTISED_FORMS[name], STORED_TYPES[name]
    numbers = np.random.default_rng(4).normal(size=(32, 512)).astype(np.float32)
    off = dequantised(name, quantised(name, numbers)) - numbers
    groups = numbers.reshape(-1, stored.scale_values)
    far = np.abs(groups).max(axis=1)
    spread = np.ptp(groups, axis=1) if len(stored.halves) == 2 else 2 * far
    step = 1.1 * spread / (form.high - form.low)
    mean_square = np.square(off).reshape(groups.shape).mean(axis=1)
    assert (mean_square <= step**2 / 4).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 7e4, -1e38])
def test_what_no_scale_can_hold_is_told(name: str, number: float):
    numbers = random_numbers(3, 512)
    numbers[1, 77] = number
    target = np.full((3, row_bytes(name, 512)), 0xAA, np.uint8)
    assert not quantise(name, numbers, target)
    assert (target == 0xAA).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_next_to_nothing_becomes_at_most_the_least_scale(name: str):
    numbers = np.random.default_rng(5).normal(size=(4, 512)).astype(np.float32) * 1e-9
    assert not dequantised(name, quantised(name, numbers)).any()
    zeros = quantised(name, np.zeros((2, 512), np.float32))
    assert not dequantised(name, zeros).any()
