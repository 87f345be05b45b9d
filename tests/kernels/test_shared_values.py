"""Values out of keys: every number at its place, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.kernels.cpu.shared_values import share_routine

SIZES = [(512, 576, 16), (64, 96, 16), (40, 48, 16), (32, 40, 8), (22, 30, 24), (16, 24, 2)]


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("value_dim", "head_dim", "block_size"), [*SIZES, (13, 17, 5)])
def test_values_are_the_first_numbers_of_keys(
    paired: bool, value_dim: int, head_dim: int, block_size: int
):
    if paired and block_size % 2:
        return
    group = 1 + paired
    rng = np.random.default_rng(0)
    num_blocks, chosen = 5, np.array([3, 0, 4, 1], np.int32)
    numbers = rng.integers(0, 2**16, (num_blocks, block_size, head_dim))
    numbers = numbers.astype(np.uint16 if paired else np.float32)
    keys = numbers.reshape(num_blocks, block_size, -1, group).swapaxes(1, 2).copy()
    out = np.zeros((3, block_size // group, value_dim, group), numbers.dtype)
    share_routine(paired, value_dim, block_size).ctypes(
        out.ctypes.data, keys.ctypes.data, keys[0].nbytes, chosen.ctypes.data, 1, 4, 0
    )
    for place, block in enumerate(chosen[1:]):
        values = out[place].swapaxes(1, 2).reshape(block_size, value_dim)
        assert np.array_equal(values, numbers[block, :, :value_dim])
