"""Copying rows into weights."""

from __future__ import annotations

import torch

_SERIAL_VALUES = 32_000
"""PyTorch wakes its other threads from 32,768 numbers on."""


def as_rows(target: torch.Tensor) -> torch.Tensor:
    """A view with one axis before the last: all but the last axis count as rows."""
    return target if target.dim() < 3 else target.flatten(0, -2)


def copy_rows(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy [rows, ...] into `target`, converting to its dtype, in the calling thread.

    Waking other threads brings little for a copy of a few megabytes, and costs milliseconds each
    time where the cores are busy with something else: loading then took four times as long.
    """
    num_rows = source.shape[0]
    step = max(1, _SERIAL_VALUES * num_rows // source.numel())
    for first in range(0, num_rows, step):
        target[first : first + step].copy_(source[first : first + step])
