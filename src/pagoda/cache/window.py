"""Which tokens a row of attention sees, by position alone, and which blocks that lets go of.

    sinks 2, window 4, the row at position 9      0 1 · · · · 6 7 8 9
                                                  sinks       window, its own position included

Full attention, a sliding window and StreamingLLM (Xiao et al., arXiv 2309.17453) are three values
of it. What a row sees depends on nothing but its position, so which blocks a sequence still needs
follows from how far it has come.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.cache.slots import num_blocks_for
from pagoda.errors import InvalidOptionError

EVERY_TOKEN = 2**31 - 1
"""A window that no sequence is longer than."""


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """The row at position p sees positions 0 … sinks - 1 and p - window + 1 … p."""

    window: int = EVERY_TOKEN
    sinks: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidOptionError("window", self.window, "must be at least 1")
        if self.sinks < 0:
            raise InvalidOptionError("sinks", self.sinks, "must be at least 0")

    def __str__(self) -> str:
        """As options name it."""
        if self.is_full:
            return "full"
        if self.sinks:
            return f"streaming:sinks={self.sinks},window={self.window}"
        return f"window:{self.window}"

    @property
    def is_full(self) -> bool:
        """A row sees every token before it."""
        return self.window == EVERY_TOKEN

    def first_in_window(self, position: int) -> int:
        """The first token of the window of the row at `position`."""
        return max(0, position - self.window + 1)

    def unseen_blocks(self, position: int, block_size: int) -> range:
        """Numbers of the blocks that no row from `position` on sees any token of."""
        first = num_blocks_for(self.sinks, block_size)
        return range(first, max(first, self.first_in_window(position) // block_size))

    def position_that_lets_go(self, number: int, block_size: int) -> int:
        """The first position from which on no row sees block `number`, which holds no sink."""
        return (number + 1) * block_size + self.window - 1

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` keeps at most, of which that many are computed in
        one step.

            blocks(min(window - 1 + tokens under way, tokens)) + 1 + blocks(sinks)

        A window's blocks go only once a step is settled, and it need not begin with a block. The
        formula is vLLM's, with the sinks added; it may be one more than there are.
        """
        if self.is_full:
            return num_blocks_for(num_tokens, block_size)
        kept = min(self.window - 1 + under_way_tokens, num_tokens)
        return num_blocks_for(kept, block_size) + 1 + num_blocks_for(self.sinks, block_size)

    def narrowed(self, other: AttentionWindow) -> AttentionWindow:
        """What is seen where a layer sees this and a request keeps `other`: what is fewer tokens.

        A layer whose own window is narrower keeps to it, and gets no sinks.
        """
        return other if other.window + other.sinks <= self.window + self.sinks else self


FULL_ATTENTION = AttentionWindow()
