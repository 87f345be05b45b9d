"""A draw from a row whose likely tokens are many: by classes of nearly equal likelihood.

Tokens are counted and weighed by classes. Only those in which a limit falls, or the draw itself,
are looked into.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.likelihood import rank_ids, weigh

# A class spans 1/32 of an octave of likelihood; weights are 0 beyond 126 octaves.
_NUM_CLASSES = 4096
_CLASSES_PER_OCTAVE = np.float32(32.0)
_LAST_OCTAVE = np.float32(127.9)
# Members of a class that are sorted; more are divided into as many classes again.
_FEW = 512


@njit(error_model="numpy")
def _classify(
    row: Array, largest: np.float32, scale: np.float32, classes: Array, own: Array
) -> None:
    """Write each token's class, int32, and its own weight, float32."""
    weigh(row, largest, scale, own)
    for i in range(row.shape[0]):
        octaves = (largest - row[i]) * scale
        classes[i] = np.int32(min(octaves, _LAST_OCTAVE) * _CLASSES_PER_OCTAVE)


@njit(error_model="numpy")
def _sum_classes(classes: Array, own: Array, counts: Array, weights: Array) -> None:
    """Write how many tokens each class has, and their weight in float64."""
    counts[:] = 0
    weights[:] = 0.0
    for i in range(classes.shape[0]):
        counts[classes[i]] += 1
        weights[classes[i]] += own[i]


@njit(error_model="numpy")
def _is_reached(
    count: int, weight: float, goal_count: int, goal_weight: float, beyond: bool
) -> bool:
    if count >= goal_count or weight > goal_weight:
        return True
    return weight == goal_weight and not beyond


@njit(error_model="numpy")
def _seek_class(
    counts: Array, weights: Array, before_count: int, before_weight: float,
    goal_count: int, goal_weight: float, beyond: bool,
) -> tuple[int, int, float]:  # fmt: skip
    """The class in which the goal is reached, or the last with weight, and what is before it."""
    found, found_count, found_weight = 0, before_count, before_weight
    for each in range(counts.shape[0]):
        if weights[each] > 0.0:
            found, found_count, found_weight = each, before_count, before_weight
            before_count += counts[each]
            before_weight += weights[each]
            if _is_reached(before_count, before_weight, goal_count, goal_weight, beyond):
                break
    return found, found_count, found_weight


@njit(error_model="numpy")
def _members(classes: Array, wanted: int, count: int) -> Array:
    """The positions in `classes` of a class that has `count`."""
    members = np.empty(count, np.int64)
    num = 0
    for i in range(classes.shape[0]):
        if classes[i] == wanted:
            members[num] = i
            num += 1
    return members


@njit(error_model="numpy")
def _seek(
    row: Array, classes: Array, own: Array, counts: Array, weights: Array,
    goal_count: int, goal_weight: float, beyond: bool,
) -> tuple[int, float]:  # fmt: skip
    """The first token in the order of ranks with which the goal is reached, and the weight so far.

    The goal is a number of tokens or a weight, which has to be exceeded if `beyond`.
    """
    wanted, count, weight = _seek_class(counts, weights, 0, 0.0, goal_count, goal_weight, beyond)
    members = _members(classes, wanted, counts[wanted])
    while True:
        values = row[members]
        low, high = np.float64(values.min()), np.float64(values.max())
        if low == high or members.shape[0] <= _FEW:
            break
        # Too many to sort: classes of a class. The lowest and the highest do not get the same.
        parts = ((high - values) * ((_FEW - 1) / (high - low))).astype(np.int64)
        part_counts, part_weights = np.empty(_FEW, np.int64), np.empty(_FEW)
        _sum_classes(parts, own[members], part_counts, part_weights)
        wanted, count, weight = _seek_class(
            part_counts, part_weights, count, weight, goal_count, goal_weight, beyond
        )
        members = members[parts == wanted]
    if low < high:
        rank_ids(row, members)
    found = members[0]
    for token_id in members:
        if own[token_id] == np.float32(0.0):
            break
        found = token_id
        count += 1
        weight += own[token_id]
        if _is_reached(count, weight, goal_count, goal_weight, beyond):
            break
    return found, weight


@njit(error_model="numpy")
def draw_from_classes(
    row: Array, largest: np.float32, scale: np.float32,
    top_k: int, top_p: float, min_p: np.float32, uniform: float,
) -> int:  # fmt: skip
    """The token that `choose` draws from a row [vocab] with these limits, however many they leave.

    largest: of the row; scale: see `likelihood`; the others as in `choose`.
    """
    classes, own = np.empty(row.shape[0], np.int32), np.empty(row.shape[0], np.float32)
    counts, weights = np.empty(_NUM_CLASSES, np.int64), np.empty(_NUM_CLASSES)
    _classify(row, largest, scale, classes, own)
    _sum_classes(classes, own, counts, weights)
    most = top_k if top_k > 0 else row.shape[0]
    if min_p > np.float32(0.0):
        most = min(most, (own >= min_p).sum())
    mass = weights.sum()
    if most < row.shape[0]:
        _, mass = _seek(row, classes, own, counts, weights, most, np.inf, False)
    if top_p < 1.0:
        _, mass = _seek(row, classes, own, counts, weights, most, top_p * mass, False)
    drawn, _ = _seek(row, classes, own, counts, weights, most, uniform * mass, True)
    return drawn
