"""The order of a head's numbers: rotation in halves, or of neighbours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def half_split_order(head_dim: int, rotary_dim: int) -> npt.NDArray[np.int64]:
    """Row of a head that rotates i with i + 1 → its place in one that rotates i with i + half.

    [head_dim]: entry j is the stored row that comes to place j. Only the first `rotary_dim` rows
    move; half is `rotary_dim` / 2.
    """
    order = np.arange(head_dim)
    order[:rotary_dim] = order[:rotary_dim].reshape(-1, 2).T.reshape(-1)
    return order
