"""How many partial sums attention leaves at once; no PyTorch, so that a planner can count them."""

from __future__ import annotations

MAX_SPLITS = 32
"""Parts into which decode attention cuts a context, at most."""

PREFILL_PARTS = 65_536
"""Parts of a round of prefill attention: at least those of any tile, QUERY_ROWS · num_kv_heads ·
most_splits; usually of two, whose programs keep a GPU busy. 32 MiB for heads of 128."""


def decode_parts(num_rows: int, num_heads: int) -> int:
    """Partial sums that decode attention with up to so many rows needs memory for."""
    return num_rows * num_heads * MAX_SPLITS
