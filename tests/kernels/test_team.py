from __future__ import annotations

import numba
import numpy as np
import pytest
from kept import kept, kept_threads
from numba import prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.team import PHASE_BYTES, claim, finish, phases
from side_by_side import ALL_CORES

pytestmark = pytest.mark.threads


@kept
def count_up(counters: int, num_phases: int, total: Array, seen: Array, num_items: int) -> None:
    """In every phase, add 1 to every entry of total, and look at what the phase before left."""
    for phase in range(num_phases):
        mine = 0
        item = claim(counters + phase * PHASE_BYTES)
        while item < num_items:
            seen[phase, item] = total.min() if item == 0 else phase
            total[item] += 1
            mine += 1
            item = claim(counters + phase * PHASE_BYTES)
        finish(counters + phase * PHASE_BYTES, mine, num_items)


@kept_threads
def by_threads(
    counters: int, num_phases: int, total: Array, seen: Array, num_items: int, num_threads: int
) -> None:
    for _ in prange(num_threads):
        count_up(counters, num_phases, total, seen, num_items)


@kept_threads
def thread_ids(num_items: int) -> Array:
    found = np.zeros(num_items, np.int64)
    for item in prange(num_items):
        found[item] = numba.get_thread_id()
    return found


def test_a_test_about_threads_has_a_thread_for_each_core():
    assert set(thread_ids(64).tolist()) == set(range(numba.get_num_threads()))
    assert numba.get_num_threads() == min(ALL_CORES, numba.config.NUMBA_NUM_THREADS)


def test_every_item_is_done_once_and_no_phase_begins_before_the_last_is_over():
    for num_threads in (1, 2, 5):
        counters = phases(300)
        total, seen = np.zeros(7, np.int64), np.full((300, 7), -1)
        by_threads(counters.ctypes.data, 300, total, seen, 7, num_threads)
        assert np.array_equal(total, [300] * 7)
        assert np.array_equal(seen, np.repeat(np.arange(300)[:, None], 7, axis=1))


def test_who_comes_late_finds_nothing_to_do():
    counters = phases(4)
    total, seen = np.zeros(3, np.int64), np.full((4, 3), -1)
    count_up(counters.ctypes.data, 4, total, seen, 3)
    count_up(counters.ctypes.data, 4, total, seen, 3)
    assert np.array_equal(total, [4, 4, 4])


def test_a_phase_without_items_is_over_at_once():
    counters = phases(1)
    assert claim(counters.ctypes.data) == 0
    finish(counters.ctypes.data, 0, 0)
    assert claim(counters.ctypes.data) == 1
