"""Weights in panels, the order in which a product reads them.

A panel is 32 rows of a weight [out, in], that is 32 columns of the product, turned so that a
product runs through it from end to end. With groups of four bytes, one float32 or two bfloat16:

    [in / group][32][group]

The last panel of a weight may have fewer rows. A weight takes the same memory in either form.

Panels that keep a quantised type (`stored_panels`) are decoded by the thread that multiplies with
them, a slice at a time or, for few rows, in its registers. Which panels a weight has, of either
kind, is in a table.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import prange

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.stored_words import TOGETHER

GROUP_BYTES = 4 * PANEL
"""Of a panel, one group of each row."""
SLICE_VALUES = 512 if TOGETHER == 2 else 128
"""Numbers of each row of a panel that are decoded at a time: whole spans. Sums are loaded and
stored with each slice, which counts where the products themselves are quick."""
SLICE_BYTES = SLICE_VALUES // TOGETHER * GROUP_BYTES
"""Of a decoded slice."""
TABLE_FIELDS = 5
"""Of a panel in a table: those of `PanelEntry`."""
ENTRY_BYTES = 8 * TABLE_FIELDS
"""From panel to panel of a table."""


class PanelEntry(NamedTuple):
    """A panel in a table: addresses."""

    address: int
    decode: int
    """The routine that decodes it (`stored_panels`); 0: it is plain."""
    few: int
    """The routine that multiplies few rows with it (`few_rows`); 0: there is none."""
    rounded: int
    """The routine that multiplies rounded rows with it (`int8_product`); 0: there is none."""
    left: int
    """Panels from this one to the weight's last; no address."""


@kernel
def pack(weight: Array) -> None:
    """Turn a weight, [out, in] contiguous, into panels in its own memory.

    float32, or bfloat16 bits with `in` even.
    """
    num_rows, depth = weight.shape
    group = 4 // weight.itemsize
    flat = weight.reshape(-1)
    for panel in prange((num_rows + PANEL - 1) // PANEL):
        first = panel * PANEL
        end = min(first + PANEL, num_rows)
        rows = weight[first:end].copy()
        place = first * depth
        for k in range(0, depth, group):
            for row in range(end - first):
                for g in range(group):
                    flat[place] = rows[row, k + g]
                    place += 1
