"""The types that plain weights can be quantised to, as data: their codes, and where scales go.

What a block of them means, and where its codes lie, is in `stored_types`. Formats:
github.com/ggml-org/ggml, src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from pagoda.kernels.array import Array


@dataclass(frozen=True, slots=True)
class Steps:
    """Scales that are small whole multiples, steps, of one float16 of their block."""

    low: int
    high: int
    write: Callable[[Array, Array, Array], None]
    """Puts the steps of scales and minima, each [blocks, groups], into blocks."""


@dataclass(frozen=True, slots=True)
class QuantisedForm:
    """How numbers of a type are made: scale · code, or scale · code − minimum."""

    name: str
    low: int
    high: int
    """Codes; those of a type with minima begin with 0."""
    tries: tuple[tuple[float, float], ...]
    """Codes that the search gives a group's number of the largest magnitude; with minima, those of
    its least and its largest number."""
    steps: Steps | None = None
    """None: a block has one scale, a float16."""


def _of_either_sign(limit: int, *beside: float) -> tuple[tuple[float, float], ...]:
    """The code of the largest number: about the limit, which has one code more on one side."""
    return tuple((0.0, sign * (limit + by)) for sign in (-1, 1) for by in beside)


def _signed_bytes(blocks: Array, steps: Array, minima: Array) -> None:
    blocks[:, 192:208] = steps.astype(np.int8).view(np.uint8)


def _six_bit_pairs(blocks: Array, steps: Array, minima: Array) -> None:
    """Four of each whole; of the others low halves together, and the rest atop the first ones."""
    scale, minimum = steps.astype(np.uint8), minima.astype(np.uint8)
    blocks[:, 4:8] = scale[:, :4] | scale[:, 4:] >> 4 << 6
    blocks[:, 8:12] = minimum[:, :4] | minimum[:, 4:] >> 4 << 6
    blocks[:, 12:16] = scale[:, 4:] & 15 | (minimum[:, 4:] & 15) << 4


_ENDS = tuple(
    (least / 2, largest / 2) for largest in range(29, 36) for least in range(-4, 2)
)  # fmt: skip

_FORMS = (
    QuantisedForm("Q8_0", -128, 127, _of_either_sign(128, -3, -2, -1, 0)),
    QuantisedForm("Q5_0", -16, 15, _of_either_sign(16, -3, -2, -1, 0, 1)),
    QuantisedForm("Q4_0", -8, 7, _of_either_sign(8, -2, -1, -0.5, 0, 0.5, 1)),
    QuantisedForm(
        "Q6_K", -32, 31, _of_either_sign(32, -4, -3, -2, -1, 0, 1),
        Steps(-128, 127, _signed_bytes),
    ),
    QuantisedForm("Q4_K", 0, 15, _ENDS, Steps(0, 63, _six_bit_pairs)),
)  # fmt: skip

QUANTISED_FORMS = MappingProxyType({each.name: each for each in _FORMS})
"""By their names in GGUF."""
