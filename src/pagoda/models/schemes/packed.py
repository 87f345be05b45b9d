"""Small whole numbers in larger words, and the groups that they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.models.schemes.quantised_matrix import Bytes
from pagoda.models.schemes.stored_module import StoredModule

_COLUMNS = 64


def turned(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[a, b] → [b, a], contiguous.

    Some columns at a time, which are copied first: read as they lie, they would all want the same
    places of the cache, and take several times as long.
    """
    target = np.empty(matrix.shape[::-1], matrix.dtype)
    for first in range(0, matrix.shape[1], _COLUMNS):
        columns = matrix[:, first : first + _COLUMNS].copy()
        target[first : first + _COLUMNS] = columns.T
    return target


def nibbles(packed: Bytes) -> Bytes:
    """[…, bytes] → […, 2 · bytes]: the lower half of each byte, then the upper one."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def less_half(codes: Bytes) -> Bytes:
    """Codes of 8 bits less half their range, as two's complement; and the way back."""
    return codes ^ np.uint8(0x80)


def swapped_halves(packed: Bytes) -> Bytes:
    """Each byte with its lower half above."""
    four = np.uint8(4)
    return packed >> four | packed << four


def optional_groups(
    module: StoredModule, kind: str, width: int, group: int, *, needed: bool
) -> npt.NDArray[np.int64] | None:
    """The group of each of a row's numbers; None where they follow each other.

    With `needed` the tensor may be missing only where there is no more than one group. Raises
    `ModelError` for a tensor that is missing, and for a group that is not there.
    """
    if kind not in module and (not needed or group >= width):
        return None
    groups = module.array(kind, "I32", shape=(width,)).astype(np.int64)
    last = -(-width // group) - 1
    if groups.min() < 0 or groups.max() > last:
        beyond = int(groups[(groups < 0) | (groups > last)][0])
        raise module.error(kind, beyond, f"must name groups, 0 to {last}")
    return None if np.array_equal(groups, np.arange(width) // group) else groups
