"""What every storage does alike: one allocation, cut into places, whose blocks go out and come in.

    place 0                            | place 1 …
    block 0       | block 1       | …  | block 0       | …

A place is that of one layer, or of one layer of each group: a block belongs to one group at a time
(`pagoda.cache.groups`). How the numbers of a block lie is each storage's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.own_format import is_own
from pagoda.cache.spec import CacheSpec
from pagoda.errors import InvalidOptionError
from pagoda.kernels.gpu.pinned import HostCopy, to_device
from pagoda.storage.block_copies import BlockCopies

BlockBytes = NDArray[np.uint8] | bytes | bytearray | memoryview


class BlockStorage(ABC):
    """K and V of `num_blocks` blocks of every layer that `spec` names, on one device."""

    def __init__(self, spec: CacheSpec, num_blocks: int, memory: torch.Tensor) -> None:
        """`memory`: uint8, `num_blocks * spec.block_bytes` of them."""
        self.spec = spec
        self.num_blocks = num_blocks
        self.size_bytes = num_blocks * spec.block_bytes
        assert memory.nbytes == self.size_bytes
        sizes = [num_blocks * place_bytes for place_bytes in spec.place_bytes]
        self._contents = tuple(part.view(num_blocks, -1) for part in memory.split(sizes))
        """A place each: [num_blocks, bytes of this place of a block] uint8."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.spec.block_size

    def _content_of_layers(self) -> tuple[torch.Tensor, ...]:
        """Of each layer the content of its place."""
        return tuple(self._contents[place] for place in self.spec.place_of_layers)

    @property
    def namespace(self) -> str:
        """How K and V of each layer are stored, in a word: blocks of another never match."""
        return ",".join(layer.dtype for layer in self.spec.layers)

    @property
    def centred_layers(self) -> tuple[int, ...]:
        """Numbers of the layers whose keys are stored less a part of their mean."""
        return ()

    def copy_blocks(
        self, sources: Sequence[int] | NDArray[np.int64], targets: Sequence[int] | NDArray[np.int64]
    ) -> None:
        """Copy the content of block `sources[i]` to block `targets[i]`, of all layers.

        All sources are read before any target is written, so a block may be both. Targets are
        distinct.
        """
        assert len(sources) == len(targets)
        if len(sources):
            self._copy(np.asarray([sources, targets], np.int64))

    @abstractmethod
    def _copy(self, pairs: NDArray[np.int64]) -> None:
        """`copy_blocks` for pairs: [2, one or more], the sources before the targets."""

    def begin_export(self, block_ids: Sequence[int]) -> BlockCopies:
        """Copies of blocks' contents over all layers on their way to the host.

        `wait` gives of each [spec.block_bytes] uint8, as the blocks are when what was launched
        before this is done. On a GPU nobody waits before that.
        """
        ids = to_device(np.asarray(block_ids, np.int64), self._contents[0].device)
        return HostCopy(torch.cat([content[ids] for content in self._contents], dim=1))

    def export_block(self, block_id: int) -> NDArray[np.uint8]:
        """A copy of a block's content over all layers, `spec.block_bytes` bytes."""
        [copy] = self.begin_export([block_id]).wait()
        return copy

    def import_blocks(self, block_ids: Sequence[int], data: Sequence[BlockBytes]) -> None:
        """Overwrite distinct blocks with what exports of blocks gave: for all that is launched
        after this. On a GPU nobody waits.

        Raises InvalidOptionError if any of `data` is not exactly a block's bytes long; nothing is
        changed then.
        """
        assert len(block_ids) == len(data)
        if not len(block_ids):
            return
        contents = [np.frombuffer(each, dtype=np.uint8) for each in data]
        for each in contents:
            if len(each) != self.spec.block_bytes:
                limit = f"a block of this cache takes {self.spec.block_bytes} bytes"
                raise InvalidOptionError("data", f"{len(each)} bytes", limit)
        self._import(block_ids, contents)

    def _import(self, block_ids: Sequence[int], contents: Sequence[NDArray[np.uint8]]) -> None:
        """`import_blocks` of one or more, [spec.block_bytes] each."""
        device = self._contents[0].device
        ids = to_device(np.asarray(block_ids, np.int64), device)
        parts = to_device(np.stack(contents), device)
        sizes = [content.shape[1] for content in self._contents]
        for content, part in zip(self._contents, parts.split(sizes, dim=1), strict=True):
            content[ids] = part

    def import_block(self, block_id: int, data: BlockBytes) -> None:
        """Overwrite a block with what `export_block` gave. Raises as `import_blocks` does."""
        self.import_blocks([block_id], [data])


def size_of(spec: CacheSpec, num_blocks: int) -> int:
    """Bytes of so many blocks. Raises InvalidOptionError for fewer than one."""
    if num_blocks < 1:
        raise InvalidOptionError("num_blocks", num_blocks, "must be at least 1")
    return num_blocks * spec.block_bytes


def require_format(
    layer: AttentionLayerSpec, formats: Collection[str], *, takes_own: bool = False
) -> None:
    """Refuse keys and values that a cache does not hold.

    takes_own: it holds those of codecs that say by their names what they are, beside `formats`.
    Raises InvalidOptionError for another format, and for values that are wider than keys.
    """
    if layer.dtype not in formats and not (takes_own and is_own(layer.dtype)):
        limit = f"the cache holds one of {', '.join(formats)}"
        raise InvalidOptionError("dtype", layer.dtype, limit)
    if layer.head_size_v not in (None, layer.head_size):
        raise InvalidOptionError("head_size_v", layer.head_size_v, "must be that of the keys")
