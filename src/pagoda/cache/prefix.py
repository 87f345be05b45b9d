"""Finding a block again by what it holds: chained hashes and the index over them.

    root --> H0 = SHA-256(root, tokens of block 0) --> H1 = SHA-256(H0, tokens of block 1) --> …

A block's hash stands for every token from the start of the sequence to the block's end, because
its keys and values depend on all of them. The root stands for everything else they depend on:
the tenant and salt that may see them, the codec they are stored with and the retention behind which
they were computed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from pagoda.cache.record import NO_BLOCK, BlockRecord
from pagoda.errors import BlockTableError

BlockHash = bytes


class BlockKey(NamedTuple):
    """What a full block is published under and compared with."""

    hash: BlockHash
    parent: BlockHash
    tokens: bytes
    """The block's token ids as little-endian 32-bit numbers."""

    def follows(self, parent: BlockHash) -> bool:
        """It is the key of its tokens behind the block hashed `parent`."""
        return self == block_key(parent, memoryview(self.tokens).cast("I").tolist())


def root_hash(**extras: str) -> BlockHash:
    """The hash that a sequence's first block is chained to.

    Each extra is written with its name and its length, so no two sets of extras run together:
    a salt can never pass for a tenant.
    """
    digest = sha256(b"pagoda block root 1")
    for name, value in sorted(extras.items()):
        for part in (name.encode(), value.encode("utf-8", "surrogatepass")):
            digest.update(struct.pack("<Q", len(part)))
            digest.update(part)
    return digest.digest()


def block_key(parent: BlockHash, token_ids: Sequence[int]) -> BlockKey:
    """Key of the full block that holds `token_ids` and follows the block hashed `parent`."""
    tokens = packed(token_ids)
    return BlockKey(sha256(parent + tokens).digest(), parent, tokens)


def packed(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers. Raises `BlockTableError` for what is none."""
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        raise BlockTableError("tokens", token_ids, "must be whole numbers of 32 bits") from None


class PrefixIndex:
    """Which block of a pool holds which content of which group; at most one per hash and group."""

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self._block_ids: tuple[dict[BlockHash, int], ...] = tuple({} for _ in range(num_groups))
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._groups = [0] * num_blocks
        """Of the blocks that have a key."""

    def __len__(self) -> int:
        return sum(map(len, self._block_ids))

    def __contains__(self, block_id: int) -> bool:
        return self._keys[block_id] is not None

    def find(self, key: BlockKey, group: int = 0) -> int | None:
        """The block of a group published under `key`, or None.

        Tokens and parent are compared, so even a collision of hashes is only a miss.
        """
        block_id = self._block_ids[group].get(key.hash)
        if block_id is None or self._keys[block_id] != key:
            return None
        return block_id

    def insert(self, key: BlockKey, block_id: int, group: int = 0) -> bool:
        """Publish `block_id` under `key`; False, and nothing changed, if the hash is taken."""
        if self._block_ids[group].setdefault(key.hash, block_id) != block_id:
            return False
        self._keys[block_id] = key
        self._groups[block_id] = group
        return True

    def remove(self, block_id: int) -> None:
        """Forget what `block_id` holds. Raises KeyError if it was not published."""
        key = self.key_of(block_id)
        del self._block_ids[self._groups[block_id]][key.hash]
        self._keys[block_id] = None

    def clear(self) -> None:
        """Forget everything."""
        for block_ids in self._block_ids:
            block_ids.clear()
        self._keys = [None] * len(self._keys)

    def items(self) -> dict[int, BlockKey]:
        """The published blocks and their keys."""
        return {block_id: key for block_id, key in enumerate(self._keys) if key is not None}

    def is_consistent(self) -> bool:
        """Both directions of the index say the same."""
        published = self.items()
        return len(self) == len(published) and all(
            self._block_ids[self._groups[block_id]].get(key.hash) == block_id
            for block_id, key in published.items()
        )

    def record_of(self, block_id: int) -> BlockRecord:
        """What a published block holds. Raises KeyError if it was not published."""
        key, group = self.key_of(block_id), self._groups[block_id]
        parent = self._block_ids[group].get(key.parent, NO_BLOCK)
        return BlockRecord(key.hash, parent, group)

    def key_of(self, block_id: int) -> BlockKey:
        """What a published block is found by. Raises KeyError if it was not published."""
        key = self._keys[block_id]
        if key is None:
            raise KeyError(block_id)
        return key

    def group_of(self, block_id: int) -> int:
        """The group that a published block belongs to."""
        return self._groups[block_id]
