"""Rows turned into another basis against NumPy's product."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.kernels.cpu.turn import matrix_groups, turn_routine
from pagoda.kernels.reference import bfloat16_bits, bfloat16_values


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("width", [16, 64, 80, 96, 128, 256])
def test_rows_are_turned_in_place(width: int, paired: bool) -> None:
    rng = np.random.default_rng(width)
    matrix = rng.normal(size=(width, width)).astype(np.float32)
    laid_out = np.ascontiguousarray(matrix_groups(matrix, paired))
    turn = turn_routine(width, paired).ctypes
    for rows in (1, 2, 5, 7, 16):
        memory = rng.normal(size=(rows, width + 7)).astype(np.float32)
        expected, beside = memory[:, :width].copy(), memory[:, width:].copy()
        if paired:
            expected = bfloat16_values(bfloat16_bits(expected))
        used = bfloat16_values(bfloat16_bits(matrix)) if paired else matrix
        alone = memory[-1:].copy()
        scratch = np.empty((rows, width), np.float32)
        for x in (memory, alone):
            turn(x.ctypes.data, width + 7, laid_out.ctypes.data, len(x), scratch.ctypes.data)
        wanted = expected.astype(np.float64) @ used
        assert memory[:, :width] == pytest.approx(wanted, rel=1e-5, abs=2e-4)
        assert np.array_equal(memory[:, width:], beside)
        assert np.array_equal(memory[-1], alone[0])


def test_pairs_are_of_two_lines() -> None:
    matrices = np.arange(2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4)
    assert np.array_equal(matrix_groups(matrices, False), matrices)
    found = bfloat16_values(matrix_groups(matrices, True))
    assert found.shape == (2, 2, 8)
    assert np.array_equal(found[:, :, 0::2], matrices[:, 0::2])
    assert np.array_equal(found[:, :, 1::2], matrices[:, 1::2])
