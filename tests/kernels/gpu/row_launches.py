"""What the compile check compiles of the kernels that go over rows and blocks; see `launch`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from launch import Launch, integers, numbers

from pagoda.kernels.gpu.activation import silu_mul
from pagoda.kernels.gpu.copy import copy_blocks
from pagoda.kernels.gpu.embed import embed
from pagoda.kernels.gpu.norm import add_rms_norm, rms_norm
from pagoda.kernels.gpu.rotary import rotate_and_store
from pagoda.kernels.gpu.windows import SinkQueries

WIDTHS = (576, 8192)
ROTARY_CASES = (
    # query heads, KV heads, head size, half, is normed and has sinks
    (32, 8, 128, 64, False),
    (9, 3, 64, 0, False),
    (24, 8, 80, 16, True),
)


def row_launches() -> Iterator[Launch]:
    """Norms and activations of some widths, rotations of some heads, and copies of blocks."""
    for width in WIDTHS:
        out, weight = numbers(64, width), numbers(width)
        stream = numbers(64, width, dtype=torch.float32)
        yield Launch(f"rms_norm {width}", partial(rms_norm, out, stream, weight, 1e-5))
        yield Launch(f"add_rms_norm {width}", partial(add_rms_norm, out, stream, out, weight, 1e-5))
        yield Launch(f"silu_mul {width}", partial(silu_mul, out, numbers(64, 2 * width)))
        drawn = numbers(64, dtype=torch.int64)
        ids, takes_drawn, places = integers(64), integers(64), integers(64)
        launch = partial(embed, stream, out, ids, takes_drawn, places, drawn)
        yield Launch(f"embed {width}", launch)
    for num_heads, num_kv_heads, head_dim, half, is_normed in ROTARY_CASES:
        norm = numbers(head_dim) if is_normed else None
        query = numbers(64, num_heads, head_dim)
        sinks = SinkQueries(query, integers(64)) if is_normed else None
        turns = numbers(4096, half, dtype=torch.float32)
        arguments = (
            query,
            numbers(64, (num_heads + 2 * num_kv_heads) * head_dim),
            numbers(2, 2, num_kv_heads, 16, head_dim),
            integers(64),
            numbers(64, dtype=torch.int64),
        )
        yield Launch(
            f"rotate_and_store D={head_dim} half={half} normed={is_normed}",
            partial(rotate_and_store, *arguments, turns, turns, norm, norm, 1e-6, sinks),
        )
    ids, layers = numbers(3, dtype=torch.int64), numbers(4, 2, dtype=torch.int64)
    memory, staging = integers(100_000), integers(3, 4, 2048)
    yield Launch("copy_blocks", partial(copy_blocks, memory, staging, layers, ids, ids))
