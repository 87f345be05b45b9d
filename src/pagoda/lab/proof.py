"""Whether a cache is what it claims: all that attention knows of earlier tokens is in the pool.

    A … | last chunk    the bytes of A's blocks are kept, and the logits of the last chunk
    B … | last chunk    other logits: earlier tokens are read
    B … | last chunk    A's bytes written over B's before it: the first logits, to the last bit

So whatever attention takes from A went through the bytes that the lab counts: keys and values that
were kept anywhere else would be B's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache.block import HOLE
from pagoda.errors import IntegrityError
from pagoda.lab.reader import Reader

_NUM_CHUNKS = 3


def prove(reader: Reader, token_ids: Sequence[int]) -> None:
    """Raises `IntegrityError` unless the reader's pool is what it attends to.

    `token_ids` are more than a chunk of the reader's.
    """
    own = list(token_ids[: _NUM_CHUNKS * reader.chunk])
    num_before = (len(own) - 1) // reader.chunk * reader.chunk
    other = _others(own[:num_before]) + own[num_before:]
    stored: list[NDArray[np.uint8]] = []

    def keep() -> None:
        stored.extend(reader.storage.export_block(block_id) for block_id in _held(reader))

    def write_over() -> None:
        for block_id, data in zip(_held(reader), stored, strict=True):
            reader.storage.import_block(block_id, data)

    plain = _last_chunk(reader, own, keep)
    if torch.equal(_last_chunk(reader, other, lambda: None), plain):
        raise IntegrityError(f"{reader.method}: attention reads no earlier tokens")
    if not torch.equal(_last_chunk(reader, other, write_over), plain):
        raise IntegrityError(f"{reader.method}: attention reads more than what the pool holds")


def _others(token_ids: Sequence[int]) -> list[int]:
    """As many tokens, another one at each place: the same ones backwards, and 0, or 1 for a 0,
    where that changes nothing."""
    pairs = zip(token_ids, reversed(token_ids), strict=True)
    return [int(own == 0) if own == other else other for own, other in pairs]


def _held(reader: Reader) -> list[int]:
    return [block_id for block_id in reader.block_ids.tolist() if block_id != HOLE]


def _last_chunk(
    reader: Reader, token_ids: Sequence[int], change: Callable[[], None]
) -> torch.Tensor:
    """The logits of the last chunk, which is read after a `change` of the pool."""
    num_before = (len(token_ids) - 1) // reader.chunk
    with closing(reader.read(token_ids)) as chunks:
        for _ in range(num_before):
            next(chunks)
        change()
        return next(chunks).clone()
