"""How many free blocks a sequence takes, so that who admits it knows that it can go on.

Full attention takes a block for every `block_size` tokens. A window takes no more than are kept at
once, while a step's tokens are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache.block import HOLE, BlockTable
from pagoda.cache.match import PrefixMatch
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.window import AttentionWindow


@dataclass(frozen=True, slots=True)
class BlocksNeeded:
    """The arithmetic of one cache."""

    block_size: int
    under_way_tokens: int
    """Tokens of a sequence that are reserved and not committed, at most."""

    def to_admit(
        self, windows: Sequence[AttentionWindow], num_tokens: int, match: PrefixMatch
    ) -> int:
        """New blocks of a sequence of `num_tokens` that begins with `match`, copies among them."""
        num_groups = len(windows)
        num_matched = len(match.block_ids) // num_groups
        copies = 1 if match.num_tokens % self.block_size else 0
        total = 0
        for group, window in enumerate(windows):
            new = copies + num_blocks_for(num_tokens, self.block_size) - num_matched
            if not window.is_full:
                held = sum(each != HOLE for each in match.block_ids[group::num_groups])
                next_stop = min(num_tokens, match.num_tokens + self.under_way_tokens)
                next_new = copies + num_blocks_for(next_stop, self.block_size) - num_matched
                new = min(new, max(next_new, self._most(window, num_tokens) - held))
            total += new
        return total

    def to_cover(self, table: BlockTable, stop: int) -> int:
        """What a table lacks for the positions up to `stop - 1`, of all groups."""
        lacking = num_blocks_for(stop, self.block_size) - len(table)
        return max(lacking, 0) * table.num_groups

    def to_go_on(self, table: BlockTable, num_tokens: int) -> int:
        """What a table lacks for so many tokens, and a block of each group for what follows."""
        lacking = max(num_blocks_for(num_tokens, self.block_size) - len(table), 0)
        total = 0
        for group, window in enumerate(table.windows):
            new = lacking
            if lacking and not window.is_full:
                held = table.num_held(group, self.block_size)
                new = min(new, max(0, self._most(window, num_tokens) - held))
            total += new + 1
        return total

    def _most(self, window: AttentionWindow, num_tokens: int) -> int:
        return window.num_blocks(num_tokens, self.block_size, self.under_way_tokens)
