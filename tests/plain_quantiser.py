"""What quantises numbers, plainly: the same sums in the same order as the kernels have them."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.quantised_forms import QUANTISED_FORMS
from pagoda.kernels.cpu.stored_types import STORED_TYPES

LEAST = np.float32(2.0**-24)


@dataclass
class Fit:
    """Codes of groups, [groups, numbers], and their sums in float32."""

    codes: Array
    total: Array
    squares: Array
    sum_codes: Array
    products: Array

    def gain(self, scale: Array, minimum: Array) -> Array:
        size, two = np.float32(self.codes.shape[1]), np.float32(2)
        of_scale = scale * (two * self.products - scale * self.squares)
        return of_scale + minimum * (two * (scale * self.sum_codes - self.total) - minimum * size)


def inverse(scale: Array) -> Array:
    is_scale = np.abs(scale) > LEAST / 4
    return np.where(is_scale, np.float32(1) / np.where(is_scale, scale, 1), np.float32(0))


def summed(values: Array) -> Array:
    """In order, as float32."""
    return np.cumsum(values, axis=1, dtype=np.float32)[:, -1]


def fitted(x: Array, by: Array, plus: Array, low: int, high: int) -> Fit:
    """Codes that are nearest to number · by + plus."""
    codes = np.clip(np.rint(x * by[:, None] + plus[:, None]), low, high).astype(np.float32)
    return Fit(codes, summed(x), summed(codes * codes), summed(codes), summed(x * codes))


def least_squares(fit: Fit, has_minimum: bool) -> tuple[Array, Array]:
    size, zero = np.float32(fit.codes.shape[1]), np.float32(0)
    alone = np.where(
        fit.squares > 0, fit.products / np.where(fit.squares > 0, fit.squares, 1), zero
    )
    if not has_minimum:
        return alone, np.zeros_like(alone)
    det = size * fit.squares - fit.sum_codes * fit.sum_codes
    product = size * fit.products - fit.total * fit.sum_codes
    scale = np.where(det > 0, product / np.where(det > 0, det, 1), zero)
    minimum = (scale * fit.sum_codes - fit.total) / size
    is_whole = (minimum > 0) & (scale >= 0)
    return np.where(is_whole, scale, alone), np.where(is_whole, minimum, zero)


def searched(name: str, x: Array) -> Array:
    """The best scale and minimum of each group, [groups, 2]."""
    form = QUANTISED_FORMS[name]
    has_minimum = len(STORED_TYPES[name].halves) == 2
    least, largest = np.minimum(x.min(axis=1), 0), x.max(axis=1)
    far = np.where(largest > -least, largest, least)
    best, found = np.zeros(len(x), np.float32), np.zeros((len(x), 2), np.float32)
    for first, last in [*np.array(form.tries, np.float32), (None, None)]:
        if last is None:
            by = inverse(found[:, 0])
            plus = found[:, 1] * by
        elif has_minimum:
            by = (last - first) * inverse(largest - least)
            plus = first - least * by
        else:
            by, plus = last * inverse(far), np.zeros_like(far)
        fit = fitted(x, by, plus, form.low, form.high)
        scale, minimum = least_squares(fit, has_minimum)
        gain = fit.gain(scale, minimum)
        is_better = gain > best
        best = np.where(is_better, gain, best)
        found = np.where(is_better[:, None], np.stack([scale, minimum], axis=1), found)
    return found


def halves(numbers: Array) -> Array:
    """float16 as float32; what is not zero stays so."""
    found = numbers.astype(np.float16).astype(np.float32)
    return np.where((found == 0) & (numbers != 0), np.copysign(LEAST, numbers), found)


def settled(name: str, x: Array, found: Array) -> tuple[Array, Array]:
    """float16 numbers of blocks, and steps: [blocks, 2] and [blocks, groups, 2]."""
    form, stored = QUANTISED_FORMS[name], STORED_TYPES[name]
    assert form.steps is not None
    low, high = form.steps.low, form.steps.high
    per_block, size = stored.block_values // stored.scale_values, np.float32(stored.scale_values)
    of_blocks = found.reshape(-1, per_block, 2)
    largest = np.abs(of_blocks).argmax(axis=1)
    ends = np.take_along_axis(of_blocks, largest[:, None], axis=1)[:, 0]
    units = halves(ends / np.float32(low or high))
    by_unit = np.where(units != 0, units, np.inf).astype(np.float32)
    steps = np.rint(of_blocks / by_unit[:, None]).reshape(-1, 2)
    for _ in range(2):
        unit = np.repeat(units, per_block, axis=0)
        best, chosen, sums = np.full(len(x), -np.inf), steps, np.zeros((len(x), 4))
        for change in (0, -1, 1):
            step = np.clip(steps[:, 0] + np.float32(change), low, high)
            minimum = steps[:, 1]
            scale = step * unit[:, 0]
            by = inverse(scale)
            if len(stored.halves) == 2:
                fit = fitted(x, by, minimum * unit[:, 1] * by, form.low, form.high)
                under = (scale * fit.sum_codes - fit.total) / size
                minimum = np.clip(np.rint(under * inverse(unit[:, 1])), 0, high)
            fit = fitted(x, by, minimum * unit[:, 1] * by, form.low, form.high)
            gain = fit.gain(scale, minimum * unit[:, 1])
            is_better = gain > best
            best = np.where(is_better, gain, best)
            chosen = np.where(is_better[:, None], np.stack([step, minimum], axis=1), chosen)
            own = np.stack([fit.total, fit.squares, fit.sum_codes, fit.products], axis=1)
            sums = np.where(is_better[:, None], own, sums)
        steps = chosen
        units = refitted(units, steps.reshape(-1, per_block, 2), sums, float(size))
    return units, steps.reshape(-1, per_block, 2)


def refitted(units: Array, steps: Array, sums: Array, size: float) -> Array:
    """Each block by itself: number ≈ scale · a − minimum · b."""
    found = units.copy()
    of_blocks = sums.astype(np.float64).reshape(*steps.shape[:2], 4)
    for block, (step, minimum) in enumerate(steps.astype(np.float64).transpose(0, 2, 1)):
        total, squares, codes, products = of_blocks[block].T
        aa, ab, bb = sum(step**2 * squares), sum(step * minimum * codes), sum(size * minimum**2)
        xa, xb = sum(step * products), sum(minimum * total)
        if aa * bb - ab * ab > 1e-6 * aa * bb:
            scale, under = np.linalg.solve([[aa, -ab], [ab, -bb]], [xa, xb])
            found[block] = halves(np.array([scale, under], np.float32))
        elif aa > 0 and bb == 0:
            found[block, 0] = halves(np.array([xa / aa], np.float32))[0]
    return found


def quantised(name: str, rows: Array) -> Array:
    """What de-quantising the blocks of rows gives."""
    form, stored = QUANTISED_FORMS[name], STORED_TYPES[name]
    x = rows.reshape(-1, stored.scale_values)
    found = searched(name, x)
    if form.steps is None:
        scales = halves(found)
    else:
        units, steps = settled(name, x, found)
        scales = (steps * units[:, None]).reshape(-1, 2).astype(np.float32)
    by = inverse(scales[:, 0])
    codes = fitted(x, by, scales[:, 1] * by, form.low, form.high).codes
    return (scales[:, :1] * codes - scales[:, 1:]).reshape(rows.shape)


def dequantised(name: str, blocks: Array) -> Array:
    """What the gguf package makes of blocks."""
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
