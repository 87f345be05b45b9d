"""Attention of single layers, without the rest of a step: for tests and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import Layer, RowRoutines, attend, row_routines
from pagoda.kernels.cpu.attention_scratch import scratch_at
from pagoda.kernels.cpu.attention_tiling import AttentionTiling, TilingAddresses
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.page_product import HeadRoutines, head_routines
from pagoda.kernels.cpu.pages import NO_CODES, CodeFields, LayerPages
from pagoda.kernels.cpu.team import PHASE_BYTES, first_phase, phases, team_of
from pagoda.kernels.cpu.vector import LINE_BYTES
from pagoda.kernels.page_layout import PageLayout, plain_layout


class CodedBlocks(NamedTuple):
    """How blocks of codes, or of latents, are read."""

    form: PageForm
    layout: PageLayout
    codes: CodeFields


def _plain(blocks: Array, shape: HeadShape) -> CodedBlocks:
    form = PageForm(blocks.dtype == np.uint16, shape.head_dim, shape.block_size)
    layout = plain_layout(shape.num_kv_heads, shape.head_dim, shape.block_size, blocks.itemsize)
    return CodedBlocks(form, layout, NO_CODES)


@kernel
def _attend_alone(
    places: int, layers: Array, place: tuple[int, ...], layout: PageLayout, codes: CodeFields,
    item_size: int, tiling: TilingAddresses, shape: HeadShape, routines: HeadRoutines,
    row_routines: RowRoutines, memory: int, memory_bytes: int, num_threads: int,
) -> None:  # fmt: skip
    """Attention of one layer after the other, each with its own blocks.

    place: the numbers of a `Layer` but for those and its pages; tuples within tuples do not go to
    threads.
    """
    for thread in prange(num_threads):
        team = team_of(thread, num_threads, places)
        start = memory + thread * memory_bytes
        scratch = scratch_at(start, tiling.most_rows, shape, routines)
        for number in range(layers.shape[0]):
            own = Layer(
                place[0], place[1], place[2], place[3], place[4], place[5], layers[number],
                place[6], place[7], place[8], LayerPages(layout, item_size, codes),
            )  # fmt: skip
            phase = first_phase(places, num_threads) + 2 * number * PHASE_BYTES
            attend(
                phase, phase + PHASE_BYTES, team, own, tiling, shape, routines,
                row_routines, scratch,
            )  # fmt: skip


def paged_attention(
    out: Array, queries: Array, layers: Sequence[Array], tiling: AttentionTiling, shape: HeadShape,
    scale: float, num_threads: int, coded: CodedBlocks | None = None,
    sink_queries: Array | None = None, logit_cap: float | None = None,
    sink_logits: Array | None = None,
) -> None:  # fmt: skip
    """The attention of some layers alone, by all threads; the last is what stays in `out`.

    out: [rows, num_heads * value_dim], written, and layers, blocks of each:
    [num_blocks, 2 * num_kv_heads * head_dim * block_size], laid out as `storage` says, are float32
    or bfloat16 bits; the latter bytes where they are `coded`. queries: [rows, at least
    num_heads * head_dim] float32, heads first, the same for all; sink_queries: likewise, what
    meets sinks, where the tiling has any. scale multiplies q · k; logit_cap and sink_logits,
    [num_heads] float32, are as `Layer` says. All three are times log2(e).
    """
    factor, cap = (np.array([each or 0.0], np.float32) for each in (scale, logit_cap))
    form, layout, codes = coded or _plain(layers[0], shape)
    sinks = queries if sink_queries is None else sink_queries
    place = (
        out.ctypes.data, out.strides[0], queries.ctypes.data, queries.strides[0],
        sinks.ctypes.data, sinks.strides[0], factor.ctypes.data,
        0 if logit_cap is None else cap.ctypes.data,
        0 if sink_logits is None else sink_logits.ctypes.data,
    )  # fmt: skip
    routines = head_routines(form)
    size = scratch_at(0, tiling.most_rows, shape, routines).end
    memory = np.empty(num_threads * size + LINE_BYTES, np.uint8)
    counters = phases(2 * len(layers), num_threads)
    _attend_alone(
        counters.ctypes.data, np.array([each.ctypes.data for each in layers]), place,
        layout, codes, form.item_size, tiling.addresses(), shape, routines,
        row_routines(form, out.dtype == np.uint16),
        -(-memory.ctypes.data // LINE_BYTES) * LINE_BYTES, size, num_threads,
    )  # fmt: skip
