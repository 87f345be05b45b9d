from __future__ import annotations

import numba
import numpy as np
import pytest
from kept import kept, kept_threads
from numba import prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.team import (
    PHASE_BYTES,
    Team,
    claim,
    claim_near,
    finish,
    first_phase,
    phases,
    team_of,
)
from side_by_side import ALL_CORES

pytestmark = pytest.mark.threads


@kept
def claim_one(team: Team, phase: int, num_items: int, is_near: bool) -> int:
    return claim_near(team, phase, num_items) if is_near else claim(phase)


@kept
def count_up(
    team: Team, num_phases: int, total: Array, seen: Array, num_items: int, is_near: bool
) -> None:
    """In every phase, add 1 to every entry of total, and look at what the phase before left."""
    for number in range(num_phases):
        phase = first_phase(team.places, team.num_threads) + number * PHASE_BYTES
        mine = 0
        item = claim_one(team, phase, num_items, is_near)
        while item < num_items:
            seen[number, item] = total.min() if item == 0 else number
            total[item] += 1
            mine += 1
            item = claim_one(team, phase, num_items, is_near)
        finish(phase, mine, num_items)


@kept_threads
def by_threads(
    places: int, num_phases: int, total: Array, seen: Array, num_items: int, num_threads: int,
    is_near: bool,
) -> None:  # fmt: skip
    for thread in prange(num_threads):
        team = team_of(thread, num_threads, places)
        count_up(team, num_phases, total, seen, num_items, is_near)


@kept_threads
def thread_ids(num_items: int) -> Array:
    found = np.zeros(num_items, np.int64)
    for item in prange(num_items):
        found[item] = numba.get_thread_id()
    return found


def test_a_test_about_threads_has_a_thread_for_each_core():
    assert set(thread_ids(64).tolist()) == set(range(numba.get_num_threads()))
    assert numba.get_num_threads() == min(ALL_CORES, numba.config.NUMBA_NUM_THREADS)


@pytest.mark.parametrize("is_near", [False, True])
def test_every_item_is_done_once_and_no_phase_begins_before_the_last_is_over(is_near: bool):
    for num_threads in (1, 2, 5, 9):
        counters = phases(300, num_threads)
        total, seen = np.zeros(7, np.int64), np.full((300, 7), -1)
        by_threads(counters.ctypes.data, 300, total, seen, 7, num_threads, is_near)
        assert np.array_equal(total, [300] * 7)
        assert np.array_equal(seen, np.repeat(np.arange(300)[:, None], 7, axis=1))


@pytest.mark.parametrize("is_near", [False, True])
def test_who_comes_late_finds_nothing_to_do(is_near: bool):
    counters = phases(4, 2)
    total, seen = np.zeros(3, np.int64), np.full((4, 3), -1)
    for thread in (0, 1, 0):
        count_up(Team(thread, 2, counters.ctypes.data), 4, total, seen, 3, is_near)
    assert np.array_equal(total, [4, 4, 4])


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("num_items", [0, 1, 3, 7, 64])
def test_a_thread_keeps_to_its_run_until_that_is_done(num_threads: int, num_items: int):
    rng, counters = np.random.default_rng(num_items), phases(5, num_threads)
    places = counters.ctypes.data
    for number in range(5):
        phase = first_phase(places, num_threads) + number * PHASE_BYTES
        runs = [
            list(range(num_items * thread // num_threads, num_items * (thread + 1) // num_threads))
            for thread in range(num_threads)
        ]
        left = list(range(num_threads))
        while left:
            thread = rng.choice(left)
            item = claim_one(Team(thread, num_threads, places), phase, num_items, True)
            if item == num_items:
                assert not any(runs)
                left.remove(thread)
                continue
            owner = next(owner for owner, run in enumerate(runs) if item in run)
            assert owner == thread or not runs[thread]
            assert item == runs[owner].pop(0)
        late = Team(0, num_threads, places)
        claimed = claim_one(late, first_phase(places, num_threads), num_items, True)
        assert claimed == num_items, "an earlier phase has nothing left either"


def test_a_phase_without_items_is_over_at_once():
    counters = phases(1)
    assert claim(counters.ctypes.data) == 0
    finish(counters.ctypes.data, 0, 0)
    assert claim(counters.ctypes.data) == 1
