"""A storage that remembers which token of which context was written to which slot.

The stand-in for K and V in tests of bookkeeping: what a slot holds is the whole run of tokens up
to the one written there, and who may see it, because that is what K and V depend on.
"""

from collections.abc import Iterable, Sequence

from pagoda.cache import AttentionWindow, BlockCopy, CacheManager
from pagoda.cache.prefix import BlockKey, block_key
from pagoda.cache.window import FULL_ATTENTION


class PagedTokens:
    """Contexts by slot."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[tuple[str | int, ...] | None] = [None] * (num_blocks * block_size)
        self._keys: dict[tuple[str | int, ...], BlockKey] = {}
        """What each context is to be found by, once it was asked: hashing takes most of a check."""
        self._found_right: dict[int, tuple[object, ...]] = {}
        """Of blocks that were checked: what they held, and what they were found by."""

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
        table: Sequence[int],
        tokens: Sequence[int],
        start: int,
        stop: int,
        salt: str = "",
        num_groups: int = 1,
    ) -> None:
        """Write the positions start … stop - 1 of `tokens`, for every group of a table's blocks."""
        for group in range(num_groups):
            for position in range(start, stop):
                slot = self._slot(table[group::num_groups], position)
                self.slots[slot] = (salt, group, *tokens[: position + 1])

    def holds(
        self,
        table: Sequence[int],
        tokens: Sequence[int],
        num_tokens: int,
        salt: str = "",
        windows: Sequence[AttentionWindow] = (FULL_ATTENTION,),
        first_row: int | None = None,
    ) -> bool:
        """All that rows see from `first_row` on (the next one, if None), up to position
        `num_tokens - 1`, is these tokens, written for `salt`."""
        first_row = num_tokens if first_row is None else first_row
        for group, window in enumerate(windows):
            block_ids = table[group :: len(windows)]
            for position in range(num_tokens):
                if position < window.sinks or position > first_row - window.window:
                    if block_ids[position // self.block_size] < 0:
                        return False
                    found = self.slots[self._slot(block_ids, position)]
                    if found != (salt, group, *tokens[: position + 1]):
                        return False
        return True

    def check_published(self, cache: CacheManager) -> None:
        """Every block that `cache` can find holds what it is found by."""
        size, index = self.block_size, cache._blocks.index
        for block_id, key in index.items().items():
            own = self.slots[block_id * size : (block_id + 1) * size]
            told = (own, key, index.group_of(block_id))
            if self._found_right.get(block_id) == told:
                continue
            context = own[-1]
            assert context is not None, f"block {block_id} is published and was never written"
            salt, group, *tokens = context
            assert group == index.group_of(block_id)
            assert self.holds_at(block_id, tokens, salt, group), "a published block is not whole"
            if context not in self._keys:
                self._keys[context] = self._key(cache, salt, tokens)
            found = self._keys[context]
            assert found == key, f"block {block_id} is published as what it does not hold"
            self._found_right[block_id] = told

    def _key(self, cache: CacheManager, salt: str, tokens: Sequence[int]) -> BlockKey:
        """Of the last block of `tokens`, written for `salt`."""
        tenant, own_salt, retention = seen_by(salt)
        parent = cache.open(tenant=tenant, cache_salt=own_salt, retention=retention).root
        for start in range(0, len(tokens), self.block_size):
            found = block_key(parent, tokens[start : start + self.block_size])
            parent = found.hash
        return found

    def holds_at(self, block_id: int, tokens: Sequence[int], salt: str, group: int) -> bool:
        """The block holds the last tokens of `tokens`, each written after all before it."""
        size = self.block_size
        counts = range(len(tokens) - size + 1, len(tokens) + 1)
        expected = [(salt, group, *tokens[:count]) for count in counts]
        return self.slots[block_id * size : (block_id + 1) * size] == expected

    def _slot(self, block_ids: Sequence[int], position: int) -> int:
        return block_ids[position // self.block_size] * self.block_size + position % self.block_size


def written_for(salt: str, retention: AttentionWindow, tenant: str = "") -> str:
    """Whose K and V they are: what a retention leaves out makes them others."""
    return f"{tenant}|{salt}|{retention.window}|{retention.sinks}"


def seen_by(written: str) -> tuple[str, str, AttentionWindow]:
    """The tenant, salt and retention of `written_for`."""
    tenant, salt, *numbers = written.split("|")
    return tenant, salt, AttentionWindow(*map(int, numbers))
