"""Items by class and age, of which the oldest of the least worthy list goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Lists = list[list[OrderedDict[int, int]]]


class AgeLists:
    """A list for each class and range of ages, in each the oldest item first.

    Ages are differences of a clock that whoever uses this passes in. An item is in one list.
    """

    def __init__(self, num_classes: int, bounds: Sequence[float]) -> None:
        """`bounds`: the ages at which one range ends and the next begins, growing."""
        self._bounds = tuple(bounds)
        self._lists: Lists = [
            [OrderedDict() for _ in range(len(self._bounds) + 1)] for _ in range(num_classes)
        ]
        ages = range(len(self._bounds), -1, -1)
        self._ranked = [row[age] for age in ages for row in self._lists]
        self._list_of: dict[int, OrderedDict[int, int]] = {}

    def put(self, item: int, kind: int, last_used: int) -> None:
        """An item that is not here, of class `kind`, used just now."""
        ages = self._lists[kind][0]
        ages[item] = last_used
        self._list_of[item] = ages

    def put_oldest(self, item: int, kind: int, last_used: int, age: int) -> None:
        """An item that is not here, in range number `age`, as the oldest of it.

        So comes the parent of what just went, which was the oldest there.
        """
        ages = self._lists[kind][age]
        ages[item] = last_used
        ages.move_to_end(item, last=False)
        self._list_of[item] = ages

    def drop(self, item: int) -> bool:
        """Take an item out; False if it is not here."""
        ages = self._list_of.pop(item, None)
        if ages is None:
            return False
        del ages[item]
        return True

    def pop(self) -> int:
        """Take out the oldest item of the first list, as ranked, that has one.

        Raises KeyError when there is none.
        """
        for ages in self._ranked:
            if ages:
                item, _ = ages.popitem(last=False)
                del self._list_of[item]
                return item
        raise KeyError("nothing is here")

    def pop_used_by(self, limit: int) -> int | None:
        """Take out the oldest item of the first list whose oldest was last used by then."""
        for ages in self._ranked:
            if ages:
                item = next(iter(ages))
                if ages[item] <= limit:
                    self.drop(item)
                    return item
        return None

    def age(self, now: int) -> None:
        """Move items to the range of their age; each moves once for each range it passes."""
        for row in self._lists:
            for number in range(len(self._bounds) - 1, -1, -1):
                younger, older = row[number], row[number + 1]
                limit = now - self._bounds[number]
                while younger:
                    item, last_used = next(iter(younger.items()))
                    if last_used >= limit:
                        break
                    del younger[item]
                    older[item] = last_used
                    self._list_of[item] = older

    def rank(self, order: Sequence[tuple[int, int]]) -> None:
        """Whom `pop` takes first: class and range of each list, the least worthy first."""
        self._ranked = [self._lists[kind][age] for kind, age in order]

    def __len__(self) -> int:
        return len(self._list_of)
