"""JSON put together from parts, each of which is quick to write.

The serialiser holds the interpreter's lock for as long as one call of it lasts: for a whole answer
with log-probabilities that would be long enough for every stream to notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

_NUM_TOGETHER = 64


def items_json(items: Sequence[Any]) -> bytes:
    """The items of a list, with commas between them and no brackets around them."""
    return b",".join(to_json(part)[1:-1] for part in _parts(items))


def list_json(items: Iterable[bytes]) -> bytes:
    """A list of what is JSON already."""
    return b"[" + b",".join(items) + b"]"


def object_json(body: BaseModel, **fields: bytes) -> bytes:
    """The JSON of `body`, these fields replaced by what is JSON already; they come last."""
    rest = body.model_dump_json(exclude=set(fields)).encode()
    added = [b'"%s":%s' % (name.encode(), value) for name, value in fields.items()]
    return b",".join([rest[:-1], *added]) + b"}"


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _NUM_TOGETHER):
        yield items[start : start + _NUM_TOGETHER]
