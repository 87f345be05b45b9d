"""The values of a GGUF file's metadata: where each lies, and what it is once it is asked for.

A value is skipped when the header is read and decoded when it is looked up, so that a file that is
refused has cost no memory. Arrays in arrays are refused, as llama.cpp does: no writer makes them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.errors import ModelError

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
SCALARS |= {12: "d"}
"""Type → struct's letter."""
_UINT64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class StoredValue:
    """One value in the file."""

    kind: int
    """Its type, or that of its items."""
    length: int | None
    """Items of an array; None: no array."""
    start: int
    """Of the first item, in bytes from the start of the file."""


class GGUFMetadata(Mapping[str, Any]):
    """The metadata by key. Looking a value up decodes it anew.

    Raises `ModelError` where a string is not UTF-8.
    """

    def __init__(self, data: mmap.mmap, values: Mapping[str, StoredValue]) -> None:
        self._data = data
        self._values = values

    def __getitem__(self, key: str) -> Any:
        stored = self._values[key]
        try:
            items = self._items(stored.kind, stored.start, stored.length or 0)
            return items if stored.length is not None else self._one(stored)
        except UnicodeDecodeError as error:
            raise ModelError(key, error.object, "must be text in UTF-8") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _one(self, stored: StoredValue) -> Any:
        [value] = self._items(stored.kind, stored.start, 1)
        return value

    def _items(self, kind: int, start: int, length: int) -> list[Any]:
        if kind == STRING:
            return self._strings(start, length)
        return list(struct.unpack_from(f"<{length}{SCALARS[kind]}", self._data, start))

    def _strings(self, at: int, length: int) -> list[str]:
        # the vocabulary comes through here: a tight loop, for it is most of the file's metadata
        data, size_of = self._data, _UINT64.unpack_from
        strings = []
        for _ in range(length):
            start = at + 8
            at = start + size_of(data, at)[0]
            strings.append(str(data[start:at], "utf-8"))
        return strings
