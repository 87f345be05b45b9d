"""Blocks of coded latents, made number by number by the codec's plain truth."""

from __future__ import annotations

import numpy as np

from pagoda.codecs import LatentCodec
from pagoda.kernels.array import Array
from pagoda.kernels.reference import bfloat16_bits


def coded_blocks(codec: LatentCodec, rank: int, vectors: Array) -> Array:
    """[num_blocks, bytes of a block] uint8 of latents and shared keys.

    vectors: [num_blocks, block_size, rank + rope_size] float32; of a token with a NaN every bit is
    set.
    """
    code = codec.code(rank, vectors.shape[-1] - rank)
    num_blocks, block_size, _ = vectors.shape
    content = np.full((num_blocks, code.token_bytes * block_size), 0xFF, np.uint8)
    codes = content[:, : rank * block_size].reshape(num_blocks, rank, block_size)
    start, end = (size * block_size for size in (code.shared_start, code.scales_start))
    shared = content[:, start:end].view(np.uint16).reshape(num_blocks, -1, block_size, 2)
    scales = content[:, end:].view(np.float32).reshape(num_blocks, -1, block_size)
    for block, token in np.argwhere(np.isfinite(vectors).all(-1)):
        vector = vectors[block, token]
        for number, first in enumerate(range(0, rank, codec.group_size)):
            group = vector[first : min(first + codec.group_size, rank)]
            found, scale, _ = codec.group.encode(group)
            codes[block, first : first + len(group), token] = found
            scales[block, number, token] = scale
        shared[block, :, token] = bfloat16_bits(vector[rank:]).reshape(-1, 2)
    return content
