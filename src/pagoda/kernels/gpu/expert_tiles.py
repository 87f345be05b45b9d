"""How rows are cut into tiles of one expert each; no PyTorch, so that a planner can count them.

A pair is a row and one of its experts. An expert's last tile may not be full.
"""

from __future__ import annotations

FEW_ROWS, MANY_ROWS = 16, 64
"""Rows of a tile, of few pairs and of many: the least that products of tiles take, and as many as
let a weight that was read be used often."""
_FEW_PAIRS = 32
"""Pairs for each expert, up to which there are few."""


def tile_rows(num_pairs: int, num_experts: int) -> int:
    """Rows of a tile, in a step of so many pairs."""
    return FEW_ROWS if num_pairs <= _FEW_PAIRS * num_experts else MANY_ROWS


def tile_bound(num_pairs: int, num_experts: int) -> int:
    """Tiles that so many pairs make at most, whichever their experts are."""
    return _bound(num_pairs, num_experts, tile_rows(num_pairs, num_experts))


def most_tiles(num_pairs: int, num_experts: int) -> int:
    """The most of any step of up to so many pairs."""
    few = min(num_pairs, _FEW_PAIRS * num_experts)
    return max(_bound(few, num_experts, FEW_ROWS), tile_bound(num_pairs, num_experts))


def first_of_many(num_experts: int) -> int:
    """Pairs from which on there are many."""
    return _FEW_PAIRS * num_experts + 1


def _bound(num_pairs: int, num_experts: int, height: int) -> int:
    """Each expert that has any leaves at most all but one row of its last tile empty."""
    return (num_pairs + (height - 1) * min(num_pairs, num_experts)) // height
