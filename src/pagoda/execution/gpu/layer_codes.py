"""What kernels need to know of a layer's codec: its form, tables and matrices, on the device."""

from __future__ import annotations

import numpy as np
import torch

from pagoda.codecs import Codec, VectorCodec
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.code_form import PageCodes, VectorTables
from pagoda.storage.gpu_storage import GPUStorage


def layer_codes(storage: GPUStorage, device: torch.device) -> list[PageCodes | None]:
    """Of all layers, those alike sharing tables; None where numbers are plain."""
    made: dict[tuple[Codec, int, int], PageCodes] = {}
    found: list[PageCodes | None] = []
    for layer in storage.layers:
        if layer.codec is None:
            found.append(None)
            continue
        shape = (layer.codec, layer.num_kv_heads, layer.head_size)
        if shape not in made:
            made[shape] = page_codes(*shape, layer.block_size, device)
        found.append(made[shape])
    return found


def page_codes(
    codec: Codec, num_kv_heads: int, head_size: int, block_size: int, device: torch.device
) -> PageCodes:
    """For layers of so many heads. Matrices that heads have in common are kept once.

    Raises `InvalidOptionError` for heads that cannot be coded.
    """

    def on_device(values: Array) -> torch.Tensor:
        """The same for each head."""
        there = torch.from_numpy(np.ascontiguousarray(values)).to(device)
        return there.expand(num_kv_heads, *there.shape)

    def turn(matrix: Array | None) -> torch.Tensor | None:
        return None if matrix is None else on_device(matrix)

    def tables(side: VectorCodec, matrix: torch.Tensor | None) -> VectorTables:
        code = side.code(head_size)
        if side.levels is None:
            return VectorTables(code, side.fit, False, None, None, matrix)
        levels, bounds = (on_device(each).contiguous() for each in side.levels.for_kernels())
        steps = np.arange(len(side.levels.values))
        is_even = np.array_equal(side.levels.values, steps)
        return VectorTables(code, side.fit, is_even, levels, bounds, matrix)

    key, value = codec.key.matrix(head_size), codec.value.matrix(head_size)
    key_turn = turn(key)
    return PageCodes(
        num_kv_heads,
        block_size,
        tables(codec.key, key_turn),
        tables(codec.value, turn(value)),
        query_turn=key_turn,
        output_turn=turn(None if value is None else value.T),
    )
