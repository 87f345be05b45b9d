"""The batches that CUDA graphs are captured for."""

from __future__ import annotations

from collections.abc import Sequence

MOST_SEQUENCES = 512
"""The largest batch that a graph is captured for unless sizes are given."""


def default_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, then every eighth number up to `max_num_seqs`, itself included, and 512 at most."""
    most = min(max_num_seqs, MOST_SEQUENCES)
    return usable_sizes((1, 2, 4, *range(8, most + 1, 8), most), max_num_seqs)


def usable_sizes(sizes: Sequence[int], max_num_seqs: int) -> tuple[int, ...]:
    """Ascending, each once; those past `max_num_seqs` would never be used."""
    return tuple(sorted({size for size in sizes if size <= max_num_seqs}))
