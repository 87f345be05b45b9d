"""What kernels need to know of a layer's codec: its form, tables and matrices, on the device."""

from __future__ import annotations

import numpy as np
import torch

from pagoda.codecs import Codec, SideCodec
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.code_form import PageCodes, VectorTables
from pagoda.kernels.vector_code import VectorCode
from pagoda.storage.gpu_storage import GPUStorage


def layer_codes(storage: GPUStorage, device: torch.device) -> list[PageCodes | None]:
    """Of all layers, those alike sharing tables; None where numbers are plain.

    Blocks may be wider than a layer needs, which lies where another group has larger ones.
    """
    made: dict[tuple[Codec, int, int], PageCodes] = {}
    found: list[PageCodes | None] = []
    for layer in storage.layers:
        if layer.codec is None:
            found.append(None)
            continue
        shape = (layer.codec, layer.num_kv_heads, layer.head_size)
        if shape not in made:
            made[shape] = page_codes(*shape, layer.block_size, device)
        found.append(made[shape]._replace(block_bytes=layer.blocks.shape[1]))
    return found


def page_codes(
    codec: Codec, num_kv_heads: int, head_size: int, block_size: int, device: torch.device
) -> PageCodes:
    """For layers of so many heads. Matrices that heads have in common are kept once.

    Raises `InvalidOptionError` for heads that cannot be coded.
    """

    def of_each_head(values: Array | None, num_axes: int) -> torch.Tensor | None:
        """What each head has, or all have; `num_axes`: of one head's."""
        if values is None:
            return None
        there = torch.from_numpy(np.ascontiguousarray(values)).to(device)
        return there.expand(num_kv_heads, *there.shape[-num_axes:])

    def tables(side: SideCodec, turn: torch.Tensor | None) -> VectorTables:
        code = side.code(head_size)
        if side.tables is None:
            return VectorTables(code, side.fit, False, None, None, None, turn)
        tables = (of_each_head(each, 1) for each in (*side.tables, side.weights))
        levels, bounds, weights = (None if each is None else each.contiguous() for each in tables)
        is_even = _is_even(side.tables[0], code)
        return VectorTables(code, side.fit, is_even, levels, bounds, weights, turn)

    keys, values = codec.key.basis(head_size), codec.value.basis(head_size)
    return PageCodes(
        num_kv_heads,
        block_size,
        tables(codec.key, of_each_head(keys and keys.vectors, 2)),
        tables(codec.value, of_each_head(values and values.vectors, 2)),
        query_turn=of_each_head(keys and keys.queries, 2),
        output_turn=of_each_head(values and values.queries.swapaxes(-1, -2), 2),
    )


def _is_even(levels: Array, code: VectorCode) -> bool:
    """Whether all codes stand for themselves."""
    return not code.has_paths and all(
        np.array_equal(levels[2**width : 2 ** (width + 1)], np.arange(2**width))
        for width in set(code.widths)
    )
