"""How many tokens of an answer are thought."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pagoda.server.text_offsets import TextOffsets


class ThoughtTokens:
    """Counts the tokens of one choice that begin within its thoughts, marks included."""

    def __init__(self, text_bytes: Callable[[int], bytes]) -> None:
        self._text_bytes = text_bytes
        self._offsets = TextOffsets()
        self._num_seen = self._thought_end = 0
        self.num = 0
        self._places: deque[int] = deque()
        """Where those tokens begin that were no thought yet."""

    def count(self, token_ids: Sequence[int], thought_end: int) -> int:
        """Of all `token_ids` so far, where thoughts so far end there, in characters."""
        if thought_end == self._thought_end:
            return self.num
        self._thought_end = thought_end
        new = token_ids[self._num_seen :]
        self._num_seen = len(token_ids)
        self._places.extend(self._offsets.of(map(self._text_bytes, new)))
        while self._places and self._places[0] < thought_end:
            self._places.popleft()
            self.num += 1
        return self.num
