"""Running ahead: steps are launched before it is known what the steps before them draw.

    num_steps 1   decide    1  2     3     4            the host is one step ahead of what it knows
                  conclude        1     2     3

A step is outstanding from its launch until it is concluded. Any number may be, because of

- one order: steps are decided, launched, carried out and concluded in the same order;
- one invariant: `Scheduler.schedule` takes free blocks; `Scheduler.update` takes none, it publishes
  and shares blocks that are held and lets go of those that a window has passed, which no step
  reads that is outstanding then or comes later. So what an outstanding step reads and writes
  stays its own;
- one exception: preempting and finishing a sequence free all its blocks at once. Whoever gets them
  writes them in a later step. A preempted sequence runs again only when all its tokens are known;
  that is another stay (`ScheduledSequence.stay`), and `update` publishes and shares nothing of a
  stay that is over.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Launched(Protocol):
    """A step that the device has been given."""

    @property
    def drawing(self) -> tuple[int, ...]:
        """Ids of the sequences that draw a token, in the order in which the tokens lie there."""
        ...

    @property
    def awaited(self) -> frozenset[int]:
        """Those of them that cannot go on before their token is known."""
        ...


LaunchedT = TypeVar("LaunchedT", bound=Launched)


class RunAhead(Generic[LaunchedT]):
    """The steps that are outstanding, oldest first."""

    def __init__(self, num_steps: int) -> None:
        """`num_steps` may be outstanding while another is decided; 0: each is concluded at once."""
        self._num_steps = num_steps
        self._outstanding: deque[LaunchedT] = deque()
        self._drawn_last: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._outstanding)

    @property
    def held_back(self) -> frozenset[int]:
        """Ids of sequences whose next logits depend on a token that is not known yet."""
        return frozenset().union(*(step.awaited for step in self._outstanding))

    @property
    def drawn_last(self) -> tuple[int, ...]:
        """Ids of the sequences that drew in the step launched last, in the order of its tokens.

        A device that keeps the tokens of one step alone finds those of the next step's sequences
        among them, as long as no more than one step is outstanding.
        """
        return self._drawn_last

    def advance(self, launched: LaunchedT | None) -> LaunchedT | None:
        """Enter the step just launched, None if there was nothing to compute.

        Returns the step to be concluded now: the oldest, if enough others are outstanding or none
        could be added.
        """
        if launched is not None:
            self._outstanding.append(launched)
            self._drawn_last = launched.drawing
            if len(self._outstanding) <= self._num_steps:
                return None
        return self._outstanding.popleft() if self._outstanding else None

    def clear(self) -> None:
        """Forget the outstanding steps, whose sequences have all ended or start over."""
        self._outstanding.clear()
