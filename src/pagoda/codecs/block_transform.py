"""Blocks of one group's layers as the bytes of their codes, all of one step.

keys, rotation taken off ─┐
values                   ─┴─ transform of each run and side ─ / step, rounded ─ `StepCodes`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagoda.codecs.step_codes import StepCodes, can_hold
from pagoda.codecs.transform import RunTransform
from pagoda.kernels.array import Array

_ROUNDS_UP_FROM = 0.58
"""Of a step: what is nearer to zero than it is to be worth its bits goes there."""
_HALVINGS = 10
"""Of sixteen powers of two: to one percent of a step."""

Sides = Sequence[tuple[Array, Array]]
"""Of each run keys, not rotated, and values of all its layers: [tokens, numbers] float32."""


class TooFewNumbersError(Exception):
    """What stands beside codes in a block is more than the whole may take."""


@dataclass(frozen=True, eq=False, slots=True)
class BlockTransform:
    """Any thread may call it."""

    runs: tuple[RunTransform, ...]
    step: float
    codes: StepCodes

    @classmethod
    def of(cls, runs: Sequence[RunTransform], step: float) -> BlockTransform:
        """`runs`: of all layers of the group."""
        return cls(tuple(runs), step, StepCodes.of(_sigma(runs) / step))

    def pack(self, sides: Sides) -> bytes | None:
        """None: some number is not finite, or larger than any that is coded."""
        return self._packed(_turned(self.runs, sides))

    def unpack(self, packed: memoryview, num_tokens: int) -> list[tuple[Array, Array]]:
        """See `Sides`: near to what was packed. Raises `StepCodesError`."""
        numbers = self.codes.unpack(packed, num_tokens).astype(np.float32)
        numbers *= np.float32(self.step)
        found, start = list[tuple[Array, Array]](), 0
        for run in self.runs:
            middle = start + len(run.key.mean)
            stop = middle + len(run.value.mean)
            keys = run.key.turn_back(numbers[:, start:middle])
            found.append((keys, run.value.turn_back(numbers[:, middle:stop])))
            start = stop
        return found

    def _packed(self, turned: Array) -> bytes | None:
        scaled = turned / np.float32(self.step)
        if not can_hold(scaled):
            return None
        rounded = np.floor(np.abs(scaled) + np.float32(1 - _ROUNDS_UP_FROM))
        return self.codes.pack(np.copysign(rounded, scaled))

    @classmethod
    def of_size(
        cls, runs: Sequence[RunTransform], blocks: Sequence[Sides], num_bytes: float
    ) -> BlockTransform:
        """Of the step with which blocks take `num_bytes` on average, or a little less.

        Raises `TooFewNumbersError` where no step does that.
        """
        sigma, turned = _sigma(runs), [_turned(runs, block) for block in blocks]
        middle = float(np.median(sigma[sigma > 0])) if sigma.any() else 1.0
        low, high = middle * 2.0**-8, middle * 2.0**8
        is_found = False
        for _ in range(_HALVINGS):
            step = float(np.sqrt(low * high))
            packed = filter(None, map(cls.of(runs, step)._packed, turned))
            sizes = [len(each) for each in packed]
            if sizes and np.mean(sizes) <= num_bytes:
                high, is_found = step, True
            else:
                low = step
        if not is_found:
            raise TooFewNumbersError
        return cls.of(runs, high)


def _turned(runs: Sequence[RunTransform], sides: Sides) -> Array:
    """[tokens, numbers of all runs]"""
    turned = [
        side.turn(vectors)
        for run, pair in zip(runs, sides, strict=True)
        for side, vectors in zip(run.sides, pair, strict=True)
    ]
    return np.concatenate(turned, axis=1)


def _sigma(runs: Sequence[RunTransform]) -> Array:
    return np.concatenate([side.sigma for run in runs for side in run.sides])
