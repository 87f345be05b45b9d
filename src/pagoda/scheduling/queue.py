"""The order in which sequences get their turn, and the queue of those that wait for a seat."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import suppress

from pagoda.scheduling.sequence import Sequence

Order = Callable[[Sequence], tuple[float, ...]]


def first_come_first_served(sequence: Sequence) -> tuple[float, ...]:
    """Earlier arrival goes first."""
    return (sequence.request.arrival_time, sequence.sequence_id)


def by_priority(sequence: Sequence) -> tuple[float, ...]:
    """Lower priority value goes first, then earlier arrival."""
    request = sequence.request
    return (request.options.priority, request.arrival_time, sequence.sequence_id)


POLICIES: dict[str, Order] = {"fcfs": first_come_first_served, "priority": by_priority}
"""Scheduling policies by the name users give; an order must be strict and must not change."""


class OrderedSequences:
    """Sequences kept in a policy's order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=self._order)

    def discard(self, sequence: Sequence) -> None:
        """No effect if it is not among them."""
        with suppress(ValueError):
            self.remove(sequence)

    def emptied(self) -> OrderedSequences:
        """None yet, in the same order."""
        return OrderedSequences(self._order)

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError if it is not among them."""
        at = bisect_left(self._sequences, self._order(sequence), key=self._order)
        if at == len(self._sequences) or self._sequences[at] is not sequence:
            raise ValueError(f"{sequence} is not here")
        del self._sequences[at]

    def last(self) -> Sequence:
        """The one whose turn comes last. Raises IndexError when there is none."""
        return self._sequences[-1]

    def __iter__(self) -> Iterator[Sequence]:
        """In order, over those that are here now, even if some are removed meanwhile."""
        return iter(tuple(self._sequences))

    def __len__(self) -> int:
        return len(self._sequences)
