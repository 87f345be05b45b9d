"""What becomes of a perplexity, by pairs: the same windows read in two ways."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_DRAWS = 10_000
_QUANTILES = (0.025, 0.975)


class Change(NamedTuple):
    """Of a perplexity, as a share of the reference's: 0.02 is 2% more."""

    mean: float
    low: float
    """95% of draws of as many windows lie between this"""
    high: float
    """and this."""


def paired_change(losses: NDArray[Any], reference: NDArray[Any]) -> Change:
    """From the mean loss of each window, [windows] both, with the interval of the bootstrap.

    Pairs take out how hard a window is: the interval is that of the change, not of the text. The
    draws are the same whenever there are as many windows.
    """
    changes = np.subtract(losses, reference, dtype=np.float64)
    picked = np.random.default_rng(0).integers(0, len(changes), (_DRAWS, len(changes)))
    low, high = np.quantile(changes[picked].mean(axis=1), _QUANTILES)
    return Change(*(float(np.expm1(each)) for each in (changes.mean(), low, high)))
