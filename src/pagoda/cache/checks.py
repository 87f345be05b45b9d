"""The arguments of the cache's calls: each is what it has to be, or a typed error says what it is.

`CacheManager` looks at them before it changes anything.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from pagoda.cache.block import HOLE, BlockTable
from pagoda.cache.match import PrefixMatch
from pagoda.cache_hint import CACHE_HINT_LIMIT, CACHE_HINTS
from pagoda.errors import BlockTableError, InvalidOptionError


def require_options(num_blocks: object, block_size: object, enable_prefix_caching: object) -> None:
    """A cache can be made of these. Raises `InvalidOptionError`."""
    for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidOptionError(name, value, "must be a whole number of at least 1")
    if not isinstance(enable_prefix_caching, bool):
        limit = "must be True or False"
        raise InvalidOptionError("enable_prefix_caching", enable_prefix_caching, limit)


def require_texts(**options: object) -> None:
    """Every option is a string. Raises `InvalidOptionError`."""
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidOptionError(name, value, 'must be a string; "" stands for none')


def require_own(table: object, cache: object) -> None:
    """`table` was opened by `cache`. Raises `BlockTableError`."""
    if not isinstance(table, BlockTable):
        raise BlockTableError("table", table, "must be a block table; open one in this cache")
    if table.owner is not cache:
        raise BlockTableError("table", table, "is another cache's; open one in this cache")


def require_held(table: BlockTable, cache: object, tables: Container[BlockTable]) -> None:
    """`table` was opened by `cache`, and is among the `tables` that hold blocks.

    Raises `BlockTableError`.
    """
    require_own(table, cache)
    if table not in tables:
        raise BlockTableError("table", table, "holds nothing; acquire or reserve blocks first")


def require_match(match: object, num_blocks: int) -> None:
    """`match` is a match in a pool of `num_blocks`. Raises `BlockTableError`."""
    if not isinstance(match, PrefixMatch):
        raise BlockTableError("match", match, "must be a PrefixMatch; NO_MATCH stands for none")
    if not all(0 <= block_id < num_blocks or block_id == HOLE for block_id in match.block_ids):
        limit = f"has blocks outside 0 to {num_blocks - 1}, those of this cache; match again"
        raise BlockTableError("match", match, limit)


def require_hash(block_hash: object) -> None:
    """`block_hash` is a block's hash. Raises `BlockTableError`."""
    if not isinstance(block_hash, bytes):
        limit = "must be a block's hash, as PrefixMatch.in_flight is one"
        raise BlockTableError("block_hash", block_hash, limit)


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """`value`, a whole number of Python's or NumPy's, as Python's. Raises `BlockTableError`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise BlockTableError(name, value, "must be a whole number")
    if least is not None and value < least:
        raise BlockTableError(name, value, f"must be at least {least}")
    return int(value)


def token_sequence(tokens: object) -> Sequence[int]:
    """`tokens` themselves, or a list of them if they are a NumPy array: [num_tokens], integers.

    Raises `BlockTableError` for what is no sequence of tokens. Whether each of them is a whole
    number shows when their block is packed.
    """
    if isinstance(tokens, np.ndarray) and tokens.ndim == 1 and tokens.dtype.kind in "iu":
        listed: list[int] = tokens.tolist()
        return listed
    if isinstance(tokens, Sequence) and not isinstance(tokens, str):
        return tokens
    limit = "must be a sequence of whole numbers, or a NumPy array of integers in one dimension"
    raise BlockTableError("tokens", tokens, limit)


def require_cache_hint(hint: object) -> None:
    """It is none, or one of the hints. Raises `InvalidOptionError`."""
    if hint is not None and hint not in CACHE_HINTS:
        raise InvalidOptionError("hint", hint, f"must be {CACHE_HINT_LIMIT}")
