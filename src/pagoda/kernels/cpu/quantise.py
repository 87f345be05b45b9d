"""Numbers as blocks of GGUF's quantised types, with as small a squared error as a search finds.

search    for each group of numbers that share a scale, the best of many scales
settle    types whose scales are steps of one float16 of their block: the steps and the float16
          that leave the least error
encode    the nearest codes under the scales as they are stored
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.quantised_forms import QUANTISED_FORMS, Steps
from pagoda.kernels.cpu.scale_search import (
    LEAST_SCALE,
    Search,
    code_of,
    inverse,
    search_scales,
    settle_steps,
)
from pagoda.kernels.cpu.stored_types import STORED_TYPES

LARGEST = 65504.0
"""Of a magnitude that is quantised: float16's own."""
_ROUNDS = 2


def quantise(name: str, rows: Array, target: Array) -> bool:
    """Quantise rows to a type of `QUANTISED_FORMS`; returns whether their numbers allow it.

    rows: [out, in] float32, contiguous, `in` being whole blocks; target: written, uint8 [out, bytes
    of a row], contiguous. Numbers must be finite and of at most `LARGEST`; else nothing is written.
    """
    if not np.abs(rows).max(initial=0) <= LARGEST:  # not a number is at most nothing
        return False
    form, stored, search = QUANTISED_FORMS[name], STORED_TYPES[name], _search_of(name)
    groups = rows.reshape(-1, stored.scale_values)
    blocks = target.reshape(-1, stored.block_bytes)
    blocks[:] = 0
    found = np.empty((len(groups), 2), np.float32)
    search_scales(search, groups, found)
    if form.steps is None:
        halves = _halves(found)
        scales = halves.astype(np.float32)
    else:
        settled = _settle(form.steps, search, groups, found, len(blocks))
        halves, scales = settled.halves, settled.scales
        form.steps.write(blocks, settled.steps[..., 0], settled.steps[..., 1])
    for number, place in enumerate(stored.halves):
        blocks[:, place : place + 2] = halves[:, number, None].view(np.uint8)
    _encode(search, _places_of(name), groups, scales, blocks)
    return True


@cache
def _search_of(name: str) -> Search:
    form, stored = QUANTISED_FORMS[name], STORED_TYPES[name]
    low_step, high_step = (form.steps.low, form.steps.high) if form.steps else (0, 0)
    return Search(
        low=np.float32(form.low),
        high=np.float32(form.high),
        has_minimum=len(stored.halves) == 2,
        tries=np.array(form.tries, np.float32),
        low_step=np.float32(low_step),
        high_step=np.float32(high_step),
    )


def _halves(numbers: Array) -> Array:
    """float16 of float32; what is not zero does not become zero."""
    halves = numbers.astype(np.float16)
    is_lost = (halves == 0) & (numbers != 0)
    return np.where(is_lost, np.copysign(LEAST_SCALE, numbers).astype(np.float16), halves)


@dataclass(frozen=True, slots=True)
class _Settled:
    """Scales of blocks; in each array's last axis those of scales, then those of minima."""

    halves: Array
    """[blocks, 2] float16"""
    steps: Array
    """[blocks, groups of a block, 2]"""

    @property
    def scales(self) -> Array:
        """Those of each group, [groups, 2]."""
        return (self.steps * self.halves.astype(np.float32)[:, None]).reshape(-1, 2)


def _settle(
    form: Steps, search: Search, groups: Array, found: Array, num_blocks: int
) -> _Settled:  # fmt: skip
    """Blocks' scales for those that were found for their groups, [groups, 2]."""
    of_blocks = found.reshape(num_blocks, -1, 2)
    largest = np.abs(of_blocks).argmax(axis=1)[:, None]
    ends = np.take_along_axis(of_blocks, largest, axis=1)[:, 0]
    halves = _halves(ends / np.float32(form.low or form.high))
    units = halves.astype(np.float32)[:, None]
    steps = np.rint(np.divide(of_blocks, units, out=np.zeros_like(of_blocks), where=units != 0))
    sums = np.empty((*steps.shape[:2], 4), np.float32)
    for _ in range(_ROUNDS):
        in_order = steps.reshape(-1, 2), sums.reshape(-1, 4)
        settle_steps(search, groups, halves.astype(np.float32), *in_order)
        halves = _refitted(halves, steps, sums, groups.shape[1])
    return _Settled(halves, steps)


def _refitted(halves: Array, steps: Array, sums: Array, size: int) -> Array:
    """Blocks' float16 by least squares, codes and steps being given.

    number ≈ scale · a − minimum · b with a = step · code, b = the minimum's step.
    """
    step, minimum = np.moveaxis(steps.astype(np.float64), 2, 0)
    number, square, code, product = np.moveaxis(sums.astype(np.float64), 2, 0)
    aa, bb = (step**2 * square).sum(axis=1), (size * minimum**2).sum(axis=1)
    ab, xa = (step * minimum * code).sum(axis=1), (step * product).sum(axis=1)
    xb = (minimum * number).sum(axis=1)
    det = aa * bb - ab * ab
    are_apart, is_there = det > 1e-6 * aa * bb, (aa > 0) & (bb == 0)
    det, alone = np.where(are_apart, det, 1), np.where(is_there, aa, 1)
    scale = np.where(is_there, xa / alone, halves[:, 0])
    both = (xa * bb - xb * ab) / det, (xa * ab - xb * aa) / det
    found = (
        np.where(are_apart, pair, other)
        for pair, other in zip(both, (scale, halves[:, 1]), strict=True)
    )
    return _halves(np.stack(tuple(found), axis=1).astype(np.float32))


class _Places(NamedTuple):
    """Where the codes of a block go."""

    offset: int
    """Added to a code before it is stored."""
    low: Array
    """[numbers of a block, 2]: byte, lowest bit."""
    low_bits: int
    high: Array
    """Of the bits above them; [0, 2]: there are none."""


@cache
def _places_of(name: str) -> _Places:
    stored = STORED_TYPES[name]
    values = range(stored.block_values)
    high = [] if stored.high is None else [stored.high(value) for value in values]
    return _Places(
        offset=stored.offset,
        low=np.array([stored.low(value) for value in values]),
        low_bits=stored.low_bits,
        high=np.array(high, np.int64).reshape(-1, 2),
    )


@kernel
def _encode(search: Search, places: _Places, x: Array, scales: Array, blocks: Array) -> None:
    """Put the nearest codes into blocks, whose bits for them are zero.

    x: [groups, numbers]; scales: [groups, 2], of scale and minimum.
    """
    for block in prange(blocks.shape[0]):
        _encode_block(search, places, x, scales, blocks, block)


@njit(error_model="numpy")
def _encode_block(
    search: Search, places: _Places, x: Array, scales: Array, blocks: Array, block: int
) -> None:
    per_block, mask, value = x.shape[0] // blocks.shape[0], (1 << places.low_bits) - 1, 0
    for group in range(block * per_block, (block + 1) * per_block):
        by = inverse(scales[group, 0])
        plus = scales[group, 1] * by
        for number in range(x.shape[1]):
            stored = np.int64(code_of(search, x[group, number] * by + plus)) + places.offset
            byte, bit = places.low[value]
            blocks[block, byte] |= (stored & mask) << bit
            if places.high.shape[0]:
                byte, bit = places.high[value]
                blocks[block, byte] |= (stored >> places.low_bits) << bit
            value += 1
