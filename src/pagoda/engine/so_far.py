"""What a list that only grows has held at one time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar, overload

T = TypeVar("T")


class SoFar(Sequence[T]):
    """The first items of `growing`, to which others may be appended: not a copy, so it costs as
    little for a million items as for one. It equals a list of the same items."""

    __slots__ = ("_growing", "_num")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, growing: list[T]) -> None:
        self._growing = growing
        self._num = len(growing)

    def __len__(self) -> int:
        return self._num

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        places = range(self._num)[place]
        if isinstance(places, int):
            return self._growing[places]
        if places.step == 1:
            return self._growing[places.start : places.stop]
        return [self._growing[each] for each in places]

    def __iter__(self) -> Iterator[T]:
        return islice(self._growing, self._num)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | SoFar):
            return NotImplemented
        return self[:] == other[:]

    def __repr__(self) -> str:
        return repr(self[:])
