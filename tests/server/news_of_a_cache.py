"""What viewers of a cache are told, taken apart for tests."""

from __future__ import annotations

import zlib
from base64 import b64decode
from typing import Any, NamedTuple

import numpy as np

from pagoda.server.cache_news import MapNews


class Cell(NamedTuple):
    owner: int
    state: int
    age: int
    lost: int


def cells_of(told: MapNews | dict[str, Any]) -> list[Cell]:
    """The map's cells, from what is sent of it."""
    news = told if isinstance(told, MapNews) else MapNews(**told)
    planes = np.frombuffer(zlib.decompress(b64decode(news.packed)), np.uint8).reshape(2, -1)
    assert planes.shape[1] == news.num_cells
    return [
        Cell(owner, bits & 3, bits >> 2 & 15, bits >> 6)
        for owner, bits in zip(*planes.tolist(), strict=True)
    ]
