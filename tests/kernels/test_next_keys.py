"""Where the keys lie that memory is asked for while values are read."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.kernels.cpu.next_keys import put_keys_of
from pagoda.kernels.cpu.page_product import value_blocks_ahead

BLOCK_BYTES, KEYS = 768, 10_000


@pytest.mark.parametrize("block_size", [1, 16, 24, 64, 128])
@pytest.mark.parametrize("first", [0, 3, 5])
def test_next_keys_are_those_of_a_splits_first_blocks(block_size: int, first: int) -> None:
    table = np.array([7, 2, 9, 4, 1, 8], np.int32)
    around = np.full(10, -1, np.int64)
    found, count = around[1:-1], value_blocks_ahead(block_size)
    put_keys_of(
        found.ctypes.data, KEYS, BLOCK_BYTES, table.ctypes.data, first, len(table), block_size
    )
    places = np.minimum(first + np.arange(count), len(table) - 1)
    assert 1 <= count <= len(found)
    assert np.array_equal(found[:count], KEYS + BLOCK_BYTES * table[places].astype(np.int64))
    assert set(around[count + 1 :]) | {around[0]} == {-1}
