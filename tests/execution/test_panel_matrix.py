"""Weights in panels, and the tables that tell where these are."""

from __future__ import annotations

import torch

from pagoda.execution.cpu.panel_matrix import PanelMatrix, Panels
from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.panels import PanelEntry


def test_a_table_tells_where_panels_are_and_how_many_are_left():
    parts = [Panels.plain(torch.zeros(rows, 8)) for rows in (3 * PANEL, PANEL + 5)]
    matrix = PanelMatrix.of(8, parts)
    entries = [PanelEntry(*row) for row in matrix.table.tolist()]
    first, second = (part.memory.ctypes.data for part in parts)
    starts = [first + number * PANEL * 8 * 4 for number in range(3)]
    starts += [second, second + PANEL * 8 * 4]
    assert [entry.address for entry in entries] == [*starts, starts[-1]]
    assert [entry.left for entry in entries] == [5, 4, 3, 2, 1, 0]
