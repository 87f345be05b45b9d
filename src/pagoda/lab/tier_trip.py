"""Blocks stored in the lossy form of a tier and loaded again, as frames that nobody keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pagoda.cache.block import HOLE
from pagoda.storage.block_storage import BlockStorage
from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.names import BlockName
from pagoda.tiers.packing import Packing
from pagoda.tiers.seal import Checksum

_NOBODYS = bytes(32)


class TierTrip:
    """Of one pool."""

    def __init__(self, storage: BlockStorage, packing: Packing) -> None:
        self._storage = storage
        self._frames = FrameFormat(_NOBODYS, storage.spec.block_bytes, Checksum(), packing=packing)
        self._num_tokens = self._num_bytes = 0

    @property
    def bytes_per_token(self) -> float | None:
        """Of all frames so far; None: there were none."""
        return self._num_bytes / self._num_tokens if self._num_tokens else None

    def take(self, block_ids: NDArray[np.int32], start: int, stop: int) -> None:
        """Send the blocks that tokens from `start` to `stop` have filled, of a sequence that has
        `block_ids`, there and back."""
        size, num_groups = self._storage.block_size, len(self._storage.spec.groups)
        for number in range(start // size, stop // size):
            for group in range(num_groups):
                block_id = int(block_ids[number * num_groups + group])
                if block_id != HOLE:
                    self._take(BlockName(_NOBODYS, group, number), block_id)
            self._num_tokens += size

    def _take(self, name: BlockName, block_id: int) -> None:
        frame = self._frames.encode(name, self._storage.export_block(block_id).data)
        self._storage.import_block(block_id, self._frames.decode(name, frame))
        self._num_bytes += len(frame)
