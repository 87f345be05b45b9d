"""The scales under which whole codes come nearest to numbers.

Numbers that share a scale are a group: number ≈ scale · code − minimum, where most types have no
minimum. A try gives each number a code, and for given codes the best scale and minimum follow by
least squares. A group is in one lane, and sums run over its numbers in order: results depend
neither on the width of a CPU's registers nor on how many threads share the work.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.kernel import kernel

LEAST_SCALE = np.float32(2.0**-24)
"""But for zero: float16's own."""
_NO_SCALE = np.float32(2.0**-26)
"""With a scale of this or less, numbers would still be nothing."""
_LANES = 16
_SHIFTER = np.float32(1.5 * 2**23)
"""Adding it leaves no bits for a fraction: what is left is rounded to nearest, ties to even."""
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)


class Search(NamedTuple):
    """What a type is to a search; all numbers are float32."""

    low: Any
    high: Any
    """Codes."""
    has_minimum: bool
    tries: Array
    """[tries, 2]: see `QuantisedForm.tries`."""
    low_step: Any
    high_step: Any


@kernel
def search_scales(search: Search, x: Array, found: Array) -> None:
    """The best scale and minimum of each group.

    x: [groups, numbers] float32; found: written, [groups, 2] float32.
    """
    for team in prange((x.shape[0] + _LANES - 1) // _LANES):
        _search(search, x, found, team * _LANES)


@kernel
def settle_steps(search: Search, x: Array, units: Array, steps: Array, sums: Array) -> None:
    """Move each group's step to the neighbour that leaves the least error, and its minimum's along.

    units: [blocks, 2] float32, what one step is; steps: [groups, 2] float32, written; sums:
    written, [groups, 4] float32: number, code², code, number · code under these steps.
    """
    for team in prange((x.shape[0] + _LANES - 1) // _LANES):
        _settle(search, x, units, steps, sums, team * _LANES)


@njit(error_model="numpy")
def _search(search: Search, x: Array, found: Array, first: int) -> None:
    """`search_scales` of the groups in one set of lanes."""
    size, num_tries = np.float32(x.shape[1]), search.tries.shape[0]
    group = _turned(x, first)
    least, largest, total = _ends(group)
    scale, minimum, best = _zeros(), _zeros(), _zeros()
    by, plus, sums = _zeros(), _zeros(), np.empty((3, _LANES), np.float32)
    for number in range(num_tries + 1):
        if number < num_tries:
            ends = search.tries[number]
            for lane in range(_LANES):
                by[lane], plus[lane] = _guess(search, ends, least[lane], largest[lane])
        else:  # once more, from the best one
            _divide(scale, minimum, by, plus)
        _sum_up(search, group, by, plus, sums)
        for lane in range(_LANES):
            each = (size, total[lane], sums[0, lane], sums[1, lane], sums[2, lane])
            own, under = _least_squares(search, each)
            gain = _gain(own, under, each)
            if gain > best[lane]:
                best[lane], scale[lane], minimum[lane] = gain, own, under
    for lane in range(min(_LANES, x.shape[0] - first)):
        found[first + lane, 0], found[first + lane, 1] = scale[lane], minimum[lane]


@njit(error_model="numpy")
def _settle(search: Search, x: Array, units: Array, steps: Array, sums: Array, first: int) -> None:
    """`settle_steps` of the groups in one set of lanes."""
    size, per_block = np.float32(x.shape[1]), x.shape[0] // units.shape[0]
    count = min(_LANES, x.shape[0] - first)
    group = _turned(x, first)
    _, _, total = _ends(group)
    best = np.full(_LANES, np.float32(-np.inf))
    start, begin, unit, unit_below = _zeros(), _zeros(), _zeros(), _zeros()
    step, below, scale, minimum = _zeros(), _zeros(), _zeros(), _zeros()
    by, plus, found = _zeros(), _zeros(), np.empty((3, _LANES), np.float32)
    for lane in range(count):
        block = (first + lane) // per_block
        start[lane], begin[lane] = steps[first + lane, 0], steps[first + lane, 1]
        unit[lane], unit_below[lane] = units[block, 0], units[block, 1]
    for change in (0, -1, 1):
        for lane in range(_LANES):
            moved = start[lane] + np.float32(change)
            step[lane] = min(max(moved, search.low_step), search.high_step)
            scale[lane], below[lane] = step[lane] * unit[lane], begin[lane]
            minimum[lane] = below[lane] * unit_below[lane]
        _divide(scale, minimum, by, plus)
        _sum_up(search, group, by, plus, found)
        if search.has_minimum:
            for lane in range(_LANES):
                wanted = (scale[lane] * found[1, lane] - total[lane]) / size
                nearest = _rounded(wanted * inverse(unit_below[lane]))
                below[lane] = min(max(nearest, _ZERO), search.high_step)
                minimum[lane] = below[lane] * unit_below[lane]
            _divide(scale, minimum, by, plus)
            _sum_up(search, group, by, plus, found)
        for lane in range(count):
            each = (size, total[lane], found[0, lane], found[1, lane], found[2, lane])
            gain = _gain(scale[lane], minimum[lane], each)
            if gain > best[lane]:
                best[lane], own = gain, first + lane
                steps[own, 0], steps[own, 1] = step[lane], below[lane]
                sums[own, 0], sums[own, 1] = total[lane], found[0, lane]
                sums[own, 2], sums[own, 3] = found[1, lane], found[2, lane]


@njit(error_model="numpy")
def inverse(scale: Any) -> Any:
    """0 of what is no scale."""
    return _ONE / scale if abs(scale) > _NO_SCALE else _ZERO


@njit(error_model="numpy")
def code_of(search: Search, number: Any) -> Any:
    """The nearest code there is."""
    return min(max(_rounded(number), search.low), search.high)


_Sums = tuple[Any, Any, Any, Any, Any]
"""Of a group: how many numbers there are; of them number, code², code, number · code."""


@njit(error_model="numpy")
def _turned(x: Array, first: int) -> Array:
    """So many groups as [numbers, lanes]; zeros where there are no more."""
    turned = np.zeros((x.shape[1], _LANES), np.float32)
    for lane in range(min(_LANES, x.shape[0] - first)):
        for number in range(x.shape[1]):
            turned[number, lane] = x[first + lane, number]
    return turned


@njit(error_model="numpy")
def _zeros() -> Array:
    return np.zeros(_LANES, np.float32)


@njit(error_model="numpy")
def _ends(group: Array) -> tuple[Array, Array, Array]:
    """The least number of each lane, 0 or below, its largest one, and the sum of all."""
    least, largest, total = _zeros(), group[0].copy(), _zeros()
    for number in range(group.shape[0]):
        for lane in range(_LANES):
            each = group[number, lane]
            least[lane], largest[lane] = min(least[lane], each), max(largest[lane], each)
            total[lane] += each
    return least, largest, total


@njit(error_model="numpy")
def _guess(search: Search, ends: Array, least: Any, largest: Any) -> tuple[Any, Any]:
    """By a try, a number's code is number · by + plus."""
    if search.has_minimum:
        by = (ends[1] - ends[0]) * inverse(largest - least)
        return by, ends[0] - least * by
    return ends[1] * inverse(largest if largest > -least else least), _ZERO


@njit(error_model="numpy")
def _divide(scale: Array, minimum: Array, by: Array, plus: Array) -> None:
    """The same under a scale and minimum."""
    for lane in range(_LANES):
        by[lane] = inverse(scale[lane])
        plus[lane] = minimum[lane] * by[lane]


@njit(error_model="numpy")
def _rounded(number: Any) -> Any:
    return (number + _SHIFTER) - _SHIFTER


@njit(error_model="numpy")
def _sum_up(search: Search, group: Array, by: Array, plus: Array, sums: Array) -> None:
    """sums: written, [3, lanes]: code², code, number · code."""
    sums[:] = _ZERO
    for number in range(group.shape[0]):
        for lane in range(_LANES):
            code = code_of(search, group[number, lane] * by[lane] + plus[lane])
            sums[0, lane] += code * code
            sums[1, lane] += code
            sums[2, lane] += group[number, lane] * code


@njit(error_model="numpy")
def _least_squares(search: Search, sums: _Sums) -> tuple[Any, Any]:
    """The best scale and minimum for codes; no minimum is below zero."""
    size, total, squares, codes, products = sums
    if search.has_minimum:
        det = size * squares - codes * codes
        scale = (size * products - total * codes) / det if det > _ZERO else _ZERO
        minimum = (scale * codes - total) / size
        if minimum > _ZERO and scale >= _ZERO:
            return scale, minimum
    return (products / squares if squares > _ZERO else _ZERO), _ZERO


@njit(error_model="numpy")
def _gain(scale: Any, minimum: Any, sums: _Sums) -> Any:
    """The sum of squares less the squared error."""
    size, total, squares, codes, products = sums
    of_scale = scale * (_TWO * products - scale * squares)
    return of_scale + minimum * (_TWO * (scale * codes - total) - minimum * size)
