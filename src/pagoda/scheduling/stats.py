"""A snapshot of what a scheduler is doing and has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counts since the start, and how many sequences there are now."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_computed_tokens: int
    """Tokens that went through the model, those computed again after preemption included."""
    num_finished: Mapping[str, int]
    """Sequences by finish reason."""
