"""The arrays that hold K and V of one device: where a block lies, how it is copied and moved.

One allocation; the layers lie one after the other, and within a layer the blocks:

    layer 0                                            | layer 1 …
    block 0                        | block 1           |
    K head 0, K head 1, … V head 0, V head 1, …        |

Numbers that are summed over lie together in groups of four bytes: one float32, or two bfloat16,
which a CPU multiplies and adds in one instruction. A head's keys are kept transposed,
`[head_size / group, block_size, group]`, so that a group of 16 tokens is one vector and scores need
no sum across lanes; its values are `[block_size / group, head_size, group]`.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache.spec import AttentionLayerSpec, CacheSpec, LayerSpec
from pagoda.errors import InvalidOptionError
from pagoda.kernels.array import Array

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The dtypes a plain storage can hold."""

_HUGE_PAGE = 2 * 2**20
_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE, for which Python 3.11 has no name."""


@dataclass(frozen=True, slots=True)
class LayerStorage:
    """One layer's part of the allocation: views on the same bytes, so writing to one is to all."""

    num_kv_heads: int
    head_size: int
    block_size: int
    blocks: torch.Tensor
    """[num_blocks, numbers of this layer in a block], contiguous"""
    keys: torch.Tensor
    """[num_blocks, num_kv_heads, head_size / group, block_size, group]"""
    values: torch.Tensor
    """[num_blocks, num_kv_heads, block_size / group, head_size, group]"""
    array: Array
    """The same as `blocks`, for kernels; bfloat16 is seen as its bits, uint16."""
    content: NDArray[np.uint8]
    """[num_blocks, bytes of this layer in a block]"""


class KVStorage:
    """K and V of `num_blocks` blocks of every layer that `spec` names, in main memory.

    No page of the memory, 2 MiB where the system has huge ones, is taken before something is
    written to it or `populate` gets to it. Raises InvalidOptionError for a dtype that is no plain
    number here, for fewer than one block, and for bfloat16 heads or blocks of odd size.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int) -> None:
        if num_blocks < 1:
            raise InvalidOptionError("num_blocks", num_blocks, "must be at least 1")
        self.spec = spec
        self.num_blocks = num_blocks
        self.size_bytes = num_blocks * spec.block_bytes
        self._map = _map_memory(self.size_bytes)
        self._memory = torch.frombuffer(self._map, dtype=torch.uint8)
        layers = []
        start = 0
        for layer_spec in spec.layers:
            block_bytes = layer_spec.block_bytes(spec.block_size)
            stop = start + num_blocks * block_bytes
            content = self._memory[start:stop].view(num_blocks, block_bytes)
            layers.append(_view_layer(layer_spec, spec.block_size, content))
            start = stop
        self.layers: tuple[LayerStorage, ...] = tuple(layers)

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.spec.block_size

    def populate(self) -> Iterator[None]:
        """Have the system provide the memory, one huge page a turn, the first blocks first.

        What is stored stays, so blocks may be in use. A page that a step writes to for the first
        time holds the step up, by 5 ms on a virtual machine whose host finds the memory only then.
        Ends at once where the system cannot do it (it takes Linux 5.14).
        """
        if not sys.platform.startswith("linux"):
            return
        sizes = [self.num_blocks * layer.block_bytes(self.block_size) for layer in self.spec.layers]
        starts = [0, *accumulate(sizes)]
        for offset in range(0, max(sizes), _HUGE_PAGE):
            for start, size in zip(starts, sizes, strict=False):
                first = (start + offset) // mmap.PAGESIZE * mmap.PAGESIZE
                last = start + min(offset + _HUGE_PAGE, size)
                if first < last:
                    try:
                        self._map.madvise(_POPULATE_WRITE, first, last - first)
                    except OSError:
                        return
                    yield

    def copy_blocks(
        self, sources: Sequence[int] | NDArray[np.int64], targets: Sequence[int] | NDArray[np.int64]
    ) -> None:
        """Copy the content of block `sources[i]` to block `targets[i]`, in all layers.

        All sources are read before any target is written, so a block may be both. Targets are
        distinct.
        """
        source_ids = torch.as_tensor(sources, dtype=torch.int64)
        target_ids = torch.as_tensor(targets, dtype=torch.int64)
        assert len(source_ids) == len(target_ids)
        if len(source_ids) == 0:
            return
        for layer in self.layers:
            layer.blocks[target_ids] = layer.blocks[source_ids]

    def export_block(self, block_id: int) -> NDArray[np.uint8]:
        """A copy of a block's content over all layers, `spec.block_bytes` bytes."""
        return np.concatenate([layer.content[block_id] for layer in self.layers])

    def import_block(self, block_id: int, data: NDArray[np.uint8] | bytes | memoryview) -> None:
        """Overwrite a block with what `export_block` gave.

        Raises InvalidOptionError if `data` is not exactly a block's bytes long.
        """
        content = np.frombuffer(data, dtype=np.uint8)
        if len(content) != self.spec.block_bytes:
            limit = f"a block of this cache takes {self.spec.block_bytes} bytes"
            raise InvalidOptionError("data", f"{len(content)} bytes", limit)
        start = 0
        for layer in self.layers:
            target = layer.content[block_id]
            target[:] = content[start : start + len(target)]
            start += len(target)


def _map_memory(size_bytes: int) -> mmap.mmap:
    """Memory that is aligned to a page, zero, and committed page by page on first use."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # Linux alone has it
        return mmap.mmap(-1, size_bytes)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Blocks lie anywhere: with small pages a processor looks up each of their addresses anew.
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _view_layer(spec: LayerSpec, block_size: int, content: torch.Tensor) -> LayerStorage:
    # The attention layer is the only kind so far; another kind will bring its own view.
    assert isinstance(spec, AttentionLayerSpec)
    if spec.dtype not in TORCH_DTYPES:
        limit = f"the cache holds one of {', '.join(TORCH_DTYPES)}"
        raise InvalidOptionError("dtype", spec.dtype, limit)
    if spec.head_size_v not in (None, spec.head_size):
        raise InvalidOptionError("head_size_v", spec.head_size_v, "must be that of the keys")
    dtype = TORCH_DTYPES[spec.dtype]
    blocks = content.view(dtype)
    heads, size, group = spec.num_kv_heads, spec.head_size, 4 // dtype.itemsize
    for name, number in (("block_size", block_size), ("head_size", size)):
        if number % group:
            raise InvalidOptionError(name, number, f"must be even for a cache in {spec.dtype}")
    keys, values = blocks.view(len(blocks), 2, heads, size * block_size).unbind(1)
    return LayerStorage(
        num_kv_heads=heads,
        head_size=size,
        block_size=block_size,
        blocks=blocks,
        keys=keys.unflatten(2, (size // group, block_size, group)),
        values=values.unflatten(2, (block_size // group, size, group)),
        array=as_array(blocks),
        content=content.numpy(),
    )


def as_array(tensor: torch.Tensor) -> Array:
    """The same memory as a NumPy array; bfloat16 is seen as its bits, uint16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()
