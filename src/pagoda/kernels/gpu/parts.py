"""How many partial sums attention leaves at once; no PyTorch, so that a planner can count them."""

from __future__ import annotations

MAX_SPLITS = 32
"""Parts into which decode attention cuts a context, at most."""

PREFILL_PARTS = 65_536
"""Parts of a round of prefill attention: at least those of any tile, QUERY_ROWS · num_kv_heads ·
most_splits; usually of two, whose programs keep a GPU busy. 32 MiB for heads of 128. Of latents a
tile has 2 · heads rows in up to 64 splits, so this bounds their heads."""


def decode_parts(num_rows: int, num_heads: int) -> int:
    """Partial sums that decode attention with up to so many rows needs memory for."""
    return num_rows * num_heads * MAX_SPLITS


LATENT_PARTS = 2**18
"""Parts of a round of decode attention to latents, at most: 513 MiB for latents of 512 numbers."""

MOST_LATENT_HEADS = 512
"""Heads of which a round of decode has 16 rows, and one of prefill a tile: 2 · 512 · 64 parts."""
assert 2 * MOST_LATENT_HEADS * 64 <= PREFILL_PARTS


def latent_rows_of_round(num_heads: int) -> int:
    """Rows that decode attention to latents does at a time, a multiple of 16, so that all rounds
    begin at addresses of one kind."""
    return LATENT_PARTS // (num_heads * MAX_SPLITS) // 16 * 16


def latent_decode_parts(num_rows: int, num_heads: int) -> int:
    """Partial sums that decode attention to latents needs memory for with up to so many rows."""
    return decode_parts(min(num_rows, latent_rows_of_round(num_heads)), num_heads)
