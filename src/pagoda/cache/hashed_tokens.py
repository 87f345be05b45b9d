"""Tokens of which only a hash is known, and the keys that their blocks are published under.

A trace of a server's day tells no tokens, but for each unit of so many tokens an id: prompts whose
units up to some place have equal ids are equal up to there.

    tokens    0 … 511 | 512 … 1023 | 1024 … 1130
    unit id     17    |    18      |    93           units of 512, the last one not full

A block is named by the unit and the offset of its last token: a sub-block of a unit where blocks
are smaller, the last of several units where they are larger. Tokens that no id stands for, as an
answer's often are, belong to their sequence alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import count
from typing import overload

from pagoda.cache.prefix import BlockHash, BlockKey
from pagoda.errors import BlockTableError, InvalidOptionError

UNKNOWN_TOKEN = 0
"""What stands for a token that nobody knows."""
_SHARED = struct.Struct("<QI")
_OWN = struct.Struct("<QQ")  # of another length, so that no shared name is ever an own one
_new = tuple.__new__  # of a named tuple, in half the time
_numbers = count()


class HashedKey(BlockKey):
    """The key of a block whose tokens nobody knows: its hash is a name, unique below its root."""

    __slots__ = ()

    def follows(self, parent: BlockHash) -> bool:
        return self.parent == parent


class HashedTokens(Sequence[int]):
    """Tokens of one sequence, by their number and the ids of their units. It only ever grows.

    `CacheManager` and `Scheduler` take it in place of a list; what is read from it is
    `UNKNOWN_TOKEN`.
    """

    __slots__ = ("_length", "_number", "_unit_ids", "num_known", "unit_size")

    def __init__(
        self,
        unit_ids: Sequence[int],
        unit_size: int,
        num_tokens: int,
        num_known: int | None = None,
    ) -> None:
        """unit_ids: numbers of 64 bits, of units of `unit_size` tokens.

        num_known: tokens that ids stand for, the last id for all behind its unit; by default those
        of `num_tokens` in units that have an id. Raises `BlockTableError` for a number below 0, or
        for known tokens without an id.
        """
        if num_known is None:
            num_known = min(num_tokens, len(unit_ids) * unit_size)
        for name, value, least in (
            ("unit_size", unit_size, 1),
            ("num_tokens", num_tokens, 0),
            ("num_known", num_known, 0),
        ):
            if value < least:
                raise BlockTableError(name, value, f"must be at least {least}")
        if num_known and not unit_ids:
            raise BlockTableError("num_known", num_known, "no more than units have ids, 0")
        self.unit_size = unit_size
        self.num_known = num_known
        self._unit_ids = unit_ids
        self._length = num_tokens
        self._number = next(_numbers)
        """Unlike that of any other sequence in this process."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            num_tokens = len(range(*index.indices(self._length)))
            return (UNKNOWN_TOKEN,) * num_tokens
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return UNKNOWN_TOKEN

    def append(self, token_id: int) -> None:
        """One token more, whichever it is."""
        self._length += 1

    def grow(self, num_tokens: int) -> None:
        """So many tokens more."""
        self._length += num_tokens

    def copy(self) -> HashedTokens:
        """The same tokens in a sequence of its own."""
        return HashedTokens(self._unit_ids, self.unit_size, self._length, self.num_known)

    def keys(
        self, root: BlockHash, block_size: int, before: Sequence[BlockKey] = ()
    ) -> list[BlockKey]:
        """Keys of the full blocks behind those of `before`, which are these tokens' own.

        Raises `InvalidOptionError` for blocks that neither divide a unit nor are made of units.
        """
        require_block_size(block_size, self.unit_size)
        return list(self._keys(root, block_size, before))

    def _keys(
        self, root: BlockHash, block_size: int, before: Sequence[BlockKey]
    ) -> Iterator[BlockKey]:
        parent = before[-1].hash if before else root
        unit_ids, unit_size, most = self._unit_ids, self.unit_size, len(self._unit_ids) - 1
        start = (len(before) + 1) * block_size - 1
        known = range(start, min(self._length, self.num_known), block_size)
        for last in known:
            unit, offset = divmod(last, unit_size)
            name = root + _SHARED.pack(unit_ids[unit if unit < most else most], offset)
            yield _new(HashedKey, (name, parent, b""))
            parent = name
        for last in range(start + len(known) * block_size, self._length, block_size):
            name = root + _OWN.pack(self._number, last)
            yield _new(HashedKey, (name, parent, b""))
            parent = name


def require_block_size(block_size: int, unit_size: int) -> None:
    """Blocks are parts of units, or made of them. Raises `InvalidOptionError`."""
    if unit_size % block_size and block_size % unit_size:
        limit = f"must divide {unit_size}, the tokens that an id of the trace stands for, or be a "
        raise InvalidOptionError("block_size", block_size, limit + "multiple of it")
