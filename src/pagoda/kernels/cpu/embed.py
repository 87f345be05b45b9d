"""Rows of a weight in panels, as the stream begins with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import integer_at, integers_at, number_at, put_number
from pagoda.kernels.cpu.panels import ENTRY_BYTES, SLICE_VALUES, TABLE_FIELDS, PanelEntry
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.stored_words import TOGETHER
from pagoda.kernels.cpu.vector import LANES


@cache
def embed_routine(paired: bool) -> Any:
    """For an embedding of bfloat16, which come in pairs, or float32."""

    def embed_rows(
        out: int, token_ids: int, count: int, table: int, vocab_size: int, width: int, scale: int,
        memory: int,
    ) -> None:  # fmt: skip
        """out[r] = scale · row token_ids[r] of a weight in panels.

        out: [count, width] float32; token_ids: [count] int64; table: the panels of a weight
        [vocab_size, width]; scale: [1] float32; memory: `SLICE_BYTES`.
        """
        factor = number_at(scale, 0, False)
        for r in range(count):
            token_id = integer_at(token_ids, r, 64)
            place, column = token_id // PANEL, token_id % PANEL
            panel = PanelEntry(*integers_at(table + place * ENTRY_BYTES, TABLE_FIELDS))
            target = out + r * width * 4
            if panel.decode == 0:
                columns = min(PANEL, vocab_size - place * PANEL)
                group = 2 if paired else 1
                _copy_column(target, panel.address, column, columns, width, group, factor, paired)
            else:
                for first in range(0, width, SLICE_VALUES):
                    size = min(SLICE_VALUES, width - first)
                    call(
                        panel.decode,
                        (memory, panel.address, first, size, column // LANES * LANES, LANES, 0),
                    )
                    _copy_column(
                        target + first * 4,
                        memory,
                        column,
                        PANEL,
                        size,
                        TOGETHER,
                        factor,
                        TOGETHER == 2,
                    )

    return compiled(embed_rows, 8)


@njit(error_model="numpy")
def _copy_column(
    out: int, panel: int, column: int, columns: int, count: int, group: int, factor: np.float32,
    paired: bool,
) -> None:  # fmt: skip
    """out[:count] = factor · a column of a panel of so many columns, in groups; float32."""
    for k in range(count // group):
        for g in range(group):
            place = (k * columns + column) * group + g
            number = number_at(panel, place, True) if paired else number_at(panel, place, False)
            put_number(out, k * group + g, number * factor, False)
