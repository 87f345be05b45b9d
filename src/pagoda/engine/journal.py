"""What an engine tells of the lives of its requests, to whoever keeps a record of the day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagoda.scheduling import Sequence as RunningSequence


class Journal(Protocol):
    """Is told in the engine's thread, which waits: every method returns at once and raises nothing.

    `num_turns` counts the turns before, in each of which a step was launched, concluded, or both.
    """

    def turn_begins(self, num_turns: int) -> None:
        """A turn begins; again with the same number, where nothing was done in it."""
        ...

    def came(self, sequences: Sequence[RunningSequence], num_turns: int) -> None:
        """The choices of a request wait from now on. Requests come in order."""
        ...

    def went(self, sequences: Sequence[RunningSequence], num_turns: int) -> None:
        """They have ended, each as its `ending` says, or were given up. Perhaps they never came."""
        ...


class NoJournal:
    """Nobody keeps a record."""

    def turn_begins(self, num_turns: int) -> None:
        """Nobody is told."""

    def came(self, sequences: Sequence[RunningSequence], num_turns: int) -> None:
        """Nobody is told."""

    def went(self, sequences: Sequence[RunningSequence], num_turns: int) -> None:
        """Nobody is told."""
