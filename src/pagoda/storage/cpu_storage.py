"""The arrays that hold K and V of one device: where a block lies, how it is copied and moved.

One allocation; the layers' places lie one after the other, and within a place the blocks:

    place of layer 0                                   | of layer 1 …
    block 0                        | block 1           |
    K head 0, K head 1, … V head 0, V head 1, …        |

Numbers that are summed over lie together in groups of four bytes: one float32, or two bfloat16,
which a CPU multiplies and adds in one instruction. A head's keys are kept transposed,
`[head_size / group, block_size, group]`, so that a group of 16 tokens is one vector and scores need
no sum across lanes; its values are `[block_size / group, head_size, group]`. What a codec makes of
them lies likewise, byte by byte: a head's keys `[bytes of a key, block_size]`, its values plane by
plane, each `[block_size, bytes of the plane]` (`kernels.vector_code`), with their scales behind
(`kernels.page_layout`). A latent, which is key and value, lies as a key, its codes too
(`kernels.latent_code`).
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

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.spec import CacheSpec, WindowedLayer
from pagoda.codecs import CALIBRATED, CODECS, LATENT_CODECS, Codec, codec_of
from pagoda.errors import InvalidOptionError
from pagoda.kernels.array import Array
from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.page_layout import (
    PageLayout,
    coded_latent_layout,
    coded_layout,
    latent_layout,
    plain_layout,
)
from pagoda.storage.block_copies import BlockCopies
from pagoda.storage.block_storage import (
    BlockStorage,
    require_format,
    size_of,
)

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The dtypes a plain storage can hold."""

STORED_FORMATS = (*TORCH_DTYPES, *CODECS, *CALIBRATED)
"""All that keys and values of a layer can be stored in."""
STORED_LATENTS = (*TORCH_DTYPES, *LATENT_CODECS)
"""All that latents can be."""

_HUGE_PAGE = 2 * 2**20
_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE, for which Python 3.11 has no name."""


@dataclass(frozen=True, slots=True)
class CPULayer:
    """One layer's part of the allocation: views on the same bytes, so writing to one is to all."""

    num_kv_heads: int
    head_size: int
    block_size: int
    codec: Codec | None
    """None: plain numbers."""
    layout: PageLayout
    blocks: torch.Tensor
    """[num_blocks, numbers of its place in a block], contiguous; bytes where they are coded"""
    array: Array
    """The same as `blocks`, for kernels; bfloat16 is seen as its bits, uint16."""
    content: NDArray[np.uint8]
    """[num_blocks, bytes of its place in a block]"""
    value_size: int | None = None
    """Values are the first so many numbers of keys; None: they lie by themselves."""
    latent: LatentCode | None = None
    """How those numbers are coded; None: they are plain, or lie by themselves."""

    @property
    def keys(self) -> torch.Tensor:
        """[num_blocks, num_kv_heads, head_size / group, block_size, group], of plain numbers."""
        group = 4 // self.blocks.dtype.itemsize
        return self._vectors(0).unflatten(2, (self.head_size // group, self.block_size, group))

    @property
    def values(self) -> torch.Tensor:
        """[num_blocks, num_kv_heads, block_size / group, head_size, group], of plain numbers."""
        group = 4 // self.blocks.dtype.itemsize
        return self._vectors(1).unflatten(2, (self.block_size // group, self.head_size, group))

    def _vectors(self, side: int) -> torch.Tensor:
        assert self.codec is None
        assert self.value_size is None
        numbers = 2 * self.num_kv_heads * self.head_size * self.block_size
        return self.blocks[:, :numbers].unflatten(1, (2, self.num_kv_heads, -1))[:, side]


class CPUStorage(BlockStorage):
    """K and V of `num_blocks` blocks of every layer that `spec` names, in main memory.

    No page of the memory, 2 MiB where the system has huge ones, is taken before something is
    written to it or `populate` gets to it. Raises InvalidOptionError for a format that is not
    known here, for fewer than one block, and for bfloat16 heads or blocks of odd size.
    """

    def __init__(
        self, spec: CacheSpec, num_blocks: int, codecs: Sequence[Codec | None] | None = None
    ) -> None:
        """codecs: of each layer, of the formats that `spec` names; None: as `codec_of` says."""
        size_bytes = size_of(spec, num_blocks)
        for layer in spec.layers:
            _require_held(layer)
        if codecs is None:
            codecs = [codec_of(layer.dtype) for layer in spec.layers]
        self.codecs = tuple(codecs)
        self._map = _map_memory(size_bytes)
        super().__init__(spec, num_blocks, torch.frombuffer(self._map, dtype=torch.uint8))
        self.layers: tuple[CPULayer, ...] = tuple(
            _view_layer(layer, codec, spec.block_size, content)
            for layer, codec, content in zip(
                spec.layers, self.codecs, self._content_of_layers(), strict=True
            )
        )

    @property
    def namespace(self) -> str:
        """See `BlockStorage`; codecs that were found otherwise are others."""
        found = [digest for codec in self.codecs if codec for digest in codec.digests]
        return " ".join((super().namespace, *found))

    @property
    def centred_layers(self) -> tuple[int, ...]:
        """See `BlockStorage`."""
        return tuple(
            number
            for number, codec in enumerate(self.codecs)
            if codec is not None and codec.key_mean is not None
        )

    def populate(self) -> Iterator[None]:
        """Have the system provide the memory, one huge page a turn, the first blocks first.

        What is stored stays, so blocks may be in use. A page that a step writes to for the first
        time holds the step up, by 5 ms on a virtual machine whose host finds the memory only then.
        Ends at once where the system cannot do it (it takes Linux 5.14).
        """
        if not sys.platform.startswith("linux"):
            return
        sizes = [self.num_blocks * place_bytes for place_bytes in self.spec.place_bytes]
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

    # NumPy moves a row at a time, where PyTorch moves a byte at a time: a fortieth of the time.

    def begin_export(self, block_ids: Sequence[int]) -> BlockCopies:
        """See `BlockStorage`. Each block has memory of its own: pieces of one size leave no holes
        behind when they are let go one by one."""
        places = [content.numpy() for content in self._contents]
        return _Copied([np.concatenate([place[each] for place in places]) for each in block_ids])

    def _import(self, block_ids: Sequence[int], contents: Sequence[NDArray[np.uint8]]) -> None:
        start = 0
        for content in self._contents:
            place = content.numpy()
            stop = start + place.shape[1]
            for block_id, each in zip(block_ids, contents, strict=True):
                place[block_id] = each[start:stop]
            start = stop

    def _copy(self, pairs: NDArray[np.int64]) -> None:
        sources, targets = pairs
        for content in self._contents:
            place = content.numpy()
            place[targets] = place[sources]


class _Copied:
    """See `BlockCopies`; there from the beginning."""

    is_done = True

    def __init__(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        self._blocks = blocks

    def wait(self) -> Sequence[NDArray[np.uint8]]:
        return self._blocks


def _map_memory(size_bytes: int) -> mmap.mmap:
    """Memory that is aligned to a page, zero, and committed page by page on first use."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # Linux alone has it
        return mmap.mmap(-1, size_bytes)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Blocks lie anywhere: with small pages a processor looks up each of their addresses anew.
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _require_held(layer: WindowedLayer) -> None:
    """Raises InvalidOptionError for what main memory does not hold so."""
    if layer.vectors is not None:
        require_format(layer.vectors, STORED_FORMATS, takes_own=True)
    elif layer.dtype not in STORED_LATENTS:
        limit = f"a cache of latents holds one of {', '.join(STORED_LATENTS)}"
        raise InvalidOptionError("dtype", layer.dtype, limit)


def _view_layer(
    layer: WindowedLayer, codec: Codec | None, block_size: int, content: torch.Tensor
) -> CPULayer:
    plain, latent = TORCH_DTYPES.get(layer.dtype), None
    blocks = content if plain is None else content.view(plain)
    kept = layer.latents
    if kept is not None:
        num_kv_heads, head_size, value_size = 1, kept.rank + kept.rope_size, kept.rank
        latent = _latent_code(kept)
        layout = _latent_layout(kept, latent, block_size)
    else:
        assert layer.vectors is not None
        num_kv_heads, head_size = layer.vectors.num_kv_heads, layer.vectors.head_size
        value_size, layout = None, _layout(layer.vectors, codec, block_size)
    assert layout.block_bytes == layer.block_bytes(block_size)
    # From block to block: where layers are stored in different formats, a place may be wider.
    layout = layout._replace(block_bytes=content.shape[1])
    return CPULayer(
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        codec=codec,
        layout=layout,
        blocks=blocks,
        array=as_array(blocks),
        content=content.numpy(),
        value_size=value_size,
        latent=latent,
    )


def _layout(spec: AttentionLayerSpec, codec: Codec | None, block_size: int) -> PageLayout:
    heads, size = spec.num_kv_heads, spec.head_size
    if codec is not None:
        return coded_layout(heads, block_size, codec.key.code(size), codec.value.code(size))
    _require_groups(spec.dtype, block_size=block_size, head_size=size)
    return plain_layout(heads, size, block_size, TORCH_DTYPES[spec.dtype].itemsize)


def _latent_code(spec: LatentLayerSpec) -> LatentCode | None:
    codec = LATENT_CODECS.get(spec.dtype)
    return None if codec is None else codec.code(spec.rank, spec.rope_size)


def _latent_layout(spec: LatentLayerSpec, code: LatentCode | None, block_size: int) -> PageLayout:
    if code is not None:
        return coded_latent_layout(code, block_size)
    sizes = {"kv_lora_rank": spec.rank, "qk_rope_head_dim": spec.rope_size}
    _require_groups(spec.dtype, block_size=block_size, **sizes)
    width = spec.rank + spec.rope_size
    return latent_layout(width, block_size, TORCH_DTYPES[spec.dtype].itemsize)


def _require_groups(dtype: str, **sizes: int) -> None:
    """Raises InvalidOptionError for a size that numbers of four bytes together do not make."""
    for name, number in sizes.items():
        if number % (4 // TORCH_DTYPES[dtype].itemsize):
            raise InvalidOptionError(name, number, f"must be even for a cache in {dtype}")


def as_array(tensor: torch.Tensor) -> Array:
    """The same memory as a NumPy array; bfloat16 is seen as its bits, uint16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()
