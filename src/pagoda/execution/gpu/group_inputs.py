"""What the layers of one group read of a step, on the device (`pagoda.cache.groups`).

Windows and sinks are data of each sequence. Whether there can be any is fixed for an engine: its
kernels are compiled and its graphs are captured with or without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pagoda.cache.window import AttentionWindow
from pagoda.execution.batch import Batch
from pagoda.execution.gpu.upload import Integers
from pagoda.kernels.gpu.prefill_tiling import AttentionKind


class Sight(NamedTuple):
    """What a group's layers may see of any sequence."""

    has_window: bool
    """Less than every token."""
    has_sinks: bool
    """Some tokens beside the window."""
    kind: int
    """The first group whose layers see the same: one tiling does for all of them."""

    def of_heads(self, num_heads: int, num_kv_heads: int) -> AttentionKind:
        """What decides how the rows of a layer of so many heads are cut into tiles."""
        return AttentionKind(num_heads, num_kv_heads, self.kind)


def sights(windows: Sequence[AttentionWindow], *, narrowed: bool) -> tuple[Sight, ...]:
    """Of all groups, whose layers see `windows`. narrowed: or less, as requests ask for."""
    return tuple(
        Sight(narrowed or not window.is_full, narrowed or window.sinks > 0, windows.index(window))
        for window in windows
    )


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """Where T tokens of S sequences are written, and what their rows see."""

    block_tables: torch.Tensor
    """[S, blocks] int32; holes and unused entries are never followed"""
    slot_mapping: torch.Tensor
    """[T] int64; -1: nothing is stored"""
    windows: torch.Tensor | None
    """[S, 2] int32, window and sinks; None: rows see every token"""
    sink_positions: torch.Tensor | None
    """[T] int32, from where rows see their sinks; None: there can be none"""


def arrays_of(batch: Batch, group: int, sight: Sight) -> list[Integers]:
    """What goes over for one group but its tables: slots first."""
    pages = batch.groups[group]
    arrays: list[Integers] = [pages.slot_mapping]
    if sight.has_window:
        arrays.append(pages.windows)
    if sight.has_sinks:
        arrays.append(batch.sink_positions(group))
    return arrays


def taken(sent: Iterator[torch.Tensor], tables: torch.Tensor, sight: Sight) -> GroupInputs:
    """Tables, and the next of what `arrays_of` has sent."""
    return GroupInputs(
        block_tables=tables,
        slot_mapping=next(sent),
        windows=next(sent) if sight.has_window else None,
        sink_positions=next(sent) if sight.has_sinks else None,
    )
