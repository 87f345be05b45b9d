"""What the compile check compiles of the kernels that go over rows and blocks; see `launch`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from launch import Launch, integers, numbers

from pagoda.kernels.gpu.activation import ACTIVATIONS, apply_activation, apply_gate
from pagoda.kernels.gpu.copy import copy_blocks
from pagoda.kernels.gpu.embed import embed
from pagoda.kernels.gpu.head_norms import NO_NORMS, HeadNorms
from pagoda.kernels.gpu.logits import adjust_logits
from pagoda.kernels.gpu.norm import RowNorm, add_and_norm, norm_rows
from pagoda.kernels.gpu.rotary import rotate_and_store
from pagoda.kernels.gpu.windows import SinkQueries

WIDTHS = (576, 8192)
RMS, CENTRED, OFFSET = RowNorm(1e-5), RowNorm(1e-5, is_centred=True), RowNorm(1e-6, False, 1.0)
ROTARY_CASES = (
    # query heads, KV heads, head size, half, what is normed (and has sinks)
    (32, 8, 128, 64, ""),
    (9, 3, 64, 0, ""),
    (24, 8, 80, 16, "heads"),
    (40, 8, 128, 64, "rows"),
)


def row_launches() -> Iterator[Launch]:
    """Norms and activations of some widths, rotations of some heads, and copies of blocks."""
    for width in WIDTHS:
        out, weight = numbers(64, width), numbers(width)
        stream = numbers(64, width, dtype=torch.float32)
        yield Launch(f"norm_rows {width}", partial(norm_rows, out, stream, weight, RMS))
        yield Launch(f"norm_rows {width}, none", partial(norm_rows, out, stream, None, RMS))
        add = partial(add_and_norm, out, stream, out)
        yield Launch(f"add_and_norm {width}", partial(add, weight, RMS))
        yield Launch(f"add_and_norm {width}, centred", partial(add, weight, CENTRED))
        yield Launch(f"add_and_norm {width}, both", partial(add, weight, OFFSET, weight, 0.5))
        yield Launch(
            f"add_and_norm {width}, stream", partial(add_and_norm, None, stream, out, None, RMS)
        )
        for activation in ACTIVATIONS:
            gate = partial(apply_gate, out, numbers(64, 2 * width), activation)
            yield Launch(f"apply_gate {activation} {width}", gate)
        for activation in ACTIVATIONS[:-1]:
            alone = partial(apply_activation, out, stream, activation)
            yield Launch(f"apply_activation {activation} {width}", alone)
        yield Launch(f"adjust_logits {width}", partial(adjust_logits, stream, 0.0625, 30.0))
        drawn = numbers(64, dtype=torch.int64)
        ids, takes_drawn, places = integers(64), integers(64), integers(64)
        launch = partial(embed, stream, out, ids, takes_drawn, places, drawn)
        yield Launch(f"embed {width}", launch)
        yield Launch(f"embed {width}, scaled", partial(launch, 50.5))
    for num_heads, num_kv_heads, head_dim, half, normed in ROTARY_CASES:
        norms = {
            "": NO_NORMS,
            "heads": HeadNorms(numbers(head_dim), numbers(head_dim), 1e-6),
            "rows": HeadNorms(
                numbers(num_heads * head_dim), numbers(num_kv_heads * head_dim), 1e-6, 1.0, True
            ),
        }  # fmt: skip
        query = numbers(64, num_heads, head_dim)
        sinks = SinkQueries(query, integers(64)) if normed else None
        turns = numbers(4096, half, dtype=torch.float32)
        arguments = (
            query,
            numbers(64, (num_heads + 2 * num_kv_heads) * head_dim),
            numbers(2, 2, num_kv_heads, 16, head_dim),
            integers(64),
            numbers(64, dtype=torch.int64),
        )
        yield Launch(
            f"rotate_and_store D={head_dim} half={half} normed={normed}",
            partial(rotate_and_store, *arguments, turns, turns, norms[normed], sinks),
        )
    ids, layers = numbers(3, dtype=torch.int64), numbers(4, 2, dtype=torch.int64)
    memory, staging = integers(100_000), integers(3, 4, 2048)
    yield Launch("copy_blocks", partial(copy_blocks, memory, staging, layers, ids, ids))
