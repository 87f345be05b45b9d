"""The arguments of the cache's calls: each is what it has to be, or a typed error says what it is.

`CacheManager` looks at them before it changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagoda.cache.block import BlockTable
from pagoda.cache.match import PrefixMatch
from pagoda.errors import BlockTableError, InvalidOptionError


def require_size(name: str, value: object) -> None:
    """`value` counts something that there is at least one of. Raises `InvalidOptionError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionError(name, value, "must be a whole number of at least 1")


def require_text(name: str, value: object) -> None:
    """`value` is a string. Raises `InvalidOptionError`."""
    if not isinstance(value, str):
        raise InvalidOptionError(name, value, 'must be a string; "" stands for none')


def require_flag(name: str, value: object) -> None:
    """`value` is True or False. Raises `InvalidOptionError`."""
    if not isinstance(value, bool):
        raise InvalidOptionError(name, value, "must be True or False")


def require_own(table: object, cache: object) -> None:
    """`table` was opened by `cache`. Raises `BlockTableError`."""
    if not isinstance(table, BlockTable):
        raise BlockTableError("table", table, "must be a block table; open one in this cache")
    if table.owner is not cache:
        raise BlockTableError("table", table, "is another cache's; open one in this cache")


def require_match(match: object, num_blocks: int) -> None:
    """`match` is a match in a pool of `num_blocks`. Raises `BlockTableError`."""
    if not isinstance(match, PrefixMatch):
        raise BlockTableError("match", match, "must be a PrefixMatch; NO_MATCH stands for none")
    if not all(0 <= block_id < num_blocks for block_id in match.block_ids):
        limit = f"has blocks outside 0 to {num_blocks - 1}, those of this cache; match again"
        raise BlockTableError("match", match, limit)


def whole_number(name: str, value: object) -> int:
    """`value`, a whole number of Python's or NumPy's, as Python's. Raises `BlockTableError`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise BlockTableError(name, value, "must be a whole number")
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
