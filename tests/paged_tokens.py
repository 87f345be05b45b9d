"""A storage that remembers which token of which context was written to which slot.

The stand-in for K and V in tests of bookkeeping: what a slot holds is the whole run of tokens up
to the one written there, and who may see it, because that is what K and V depend on.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from pagoda.cache import BlockCopy, CacheManager, slot_mapping
from pagoda.cache.prefix import block_key


class PagedTokens:
    """Contexts by slot."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[tuple[str | int, ...] | None] = [None] * (num_blocks * block_size)

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Every source is read before any target is written."""
        size = self.block_size
        read = [
            (copy.target, self.slots[copy.source * size : (copy.source + 1) * size])
            for copy in copies
        ]
        for target, content in read:
            self.slots[target * size : (target + 1) * size] = content

    def write(
        self,
        block_ids: Sequence[int],
        tokens: Sequence[int],
        start: int,
        stop: int,
        salt: str = "",
    ) -> None:
        """Write the positions start … stop - 1 of `tokens`."""
        for position, slot in zip(
            range(start, stop), self._slots(block_ids, start, stop), strict=True
        ):
            self.slots[slot] = (salt, *tokens[: position + 1])

    def read(self, block_ids: Sequence[int], num_tokens: int) -> list[tuple[str | int, ...] | None]:
        """What the first `num_tokens` slots of a block table hold."""
        return [self.slots[slot] for slot in self._slots(block_ids, 0, num_tokens)]

    def holds(
        self, block_ids: Sequence[int], tokens: Sequence[int], num_tokens: int, salt: str = ""
    ) -> bool:
        """The table's first `num_tokens` slots hold exactly these tokens, written for `salt`."""
        expected = [(salt, *tokens[: position + 1]) for position in range(num_tokens)]
        return self.read(block_ids, num_tokens) == expected

    def check_published(self, cache: CacheManager) -> None:
        """Every block that `cache` can find holds what it is found by."""
        size = self.block_size
        for block_id, key in cache._index.items().items():
            context = self.slots[(block_id + 1) * size - 1]
            assert context is not None, f"block {block_id} is published and was never written"
            salt, *tokens = context
            assert self.holds_at(block_id, tokens, salt), "a published block is not whole"
            parent = cache.open(cache_salt=salt).root
            for start in range(0, len(tokens), size):
                found = block_key(parent, tokens[start : start + size])
                parent = found.hash
            assert found == key, f"block {block_id} is published as what it does not hold"

    def holds_at(self, block_id: int, tokens: Sequence[int], salt: str) -> bool:
        """The block holds the last tokens of `tokens`, each written after all before it."""
        size = self.block_size
        counts = range(len(tokens) - size + 1, len(tokens) + 1)
        expected = [(salt, *tokens[:count]) for count in counts]
        return self.slots[block_id * size : (block_id + 1) * size] == expected

    def _slots(self, block_ids: Sequence[int], start: int, stop: int) -> list[int]:
        positions = np.arange(start, stop)
        table = np.array([block_ids], dtype=np.int32)
        rows = np.zeros_like(positions)
        return slot_mapping(table, rows, positions, self.block_size).tolist()
