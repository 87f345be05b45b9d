"""What follows from the printed figures alone, where the model's shape is not known.

    concurrency       tokens / length, or blocks / blocks of a request
    tokens            blocks × tokens of a block
    estimated length  needed bytes / length × available bytes, where all layers keep every token

Each is computed from figures that were printed. Models of several kinds of layers break all three,
so a figure that does not follow is no miss.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagoda.sizing.capacity import GIB
from pagoda.validation.observed import Observation
from pagoda.validation.verdict import Verdict, VerdictKind

_BLOCK_SIZES = (16, 128, 64, 32, 256, 8, 1)
_HALF_PRINTED = 0.005


def judge_figures(seen: Observation) -> Verdict:
    """A hit where at least one printed figure follows from others, and none contradicts them."""
    for block_size in _block_sizes(seen):
        derived = dict(_derived(seen, block_size))
        observed = {name: seen.figures[name] for name in derived}
        if derived and derived == observed:
            said = [] if seen.block_size else [f"blocks of {block_size} tokens"]
            words = "; ".join((*said, "the model's shape: one figure follows from the other"))
            return Verdict(seen.id, "figures", derived, observed, VerdictKind.HIT, "", words)
    derived = dict(_derived(seen, _block_sizes(seen)[0]))
    reason = (
        "the model's shape is not given, and the figures are not those of equal layers"
        if derived
        else "neither a shape nor two figures"
    )
    observed = {name: seen.figures[name] for name in derived} or seen.figures
    return Verdict(seen.id, "figures", derived, observed, VerdictKind.UNKNOWN, reason)


def _block_sizes(seen: Observation) -> tuple[int, ...]:
    return (seen.block_size,) if seen.block_size else _BLOCK_SIZES


def _derived(seen: Observation, block_size: int) -> Iterator[tuple[str, int | float | str]]:
    """Figures by the others: under the name of the one that was derived."""
    length, tokens, blocks = seen.max_model_len, seen.num_tokens, seen.num_blocks
    ranks = seen.context_parallel_size
    if tokens is not None and blocks is not None:
        yield "kv_cache_tokens", blocks * block_size * ranks
    if length is not None and seen.concurrency is not None:
        if tokens is not None:
            yield "max_concurrency", f"{tokens / length:.2f}"
        elif blocks is not None:
            whole = f"{blocks / -(-length // (block_size * ranks)):.2f}"
            exact = f"{blocks * block_size * ranks / length:.2f}"
            yield "max_concurrency", whole if whole == seen.concurrency else exact
    estimate = seen.estimated_max_model_len
    if estimate is not None and _can_estimate(seen):
        yield "estimated_max_model_len", _estimated(seen, block_size, estimate)


def _can_estimate(seen: Observation) -> bool:
    return None not in (seen.needed_gib, seen.available, seen.max_model_len)


def _estimated(seen: Observation, block_size: int, printed: int) -> int:
    """The length nearest to the printed one that the printed needs and memory allow."""
    assert seen.needed_gib is not None
    assert seen.available is not None
    assert seen.max_model_len is not None
    blocks = -(-seen.max_model_len // block_size)
    least = (seen.needed_gib - _HALF_PRINTED) * GIB / blocks
    most = (seen.needed_gib + _HALF_PRINTED) * GIB / blocks
    fewest = int(seen.available.low // most) * block_size
    longest = int(seen.available.high // max(least, 1.0)) * block_size
    nearest = min(max(printed, fewest), longest)
    return min(nearest - nearest % block_size, seen.max_model_len)
