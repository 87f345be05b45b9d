"""A whole step of a decoder in one compiled function: from token ids to logits, over all layers.

Every thread runs the same function and takes its share of each phase (see `team`); Python is called
once a step. One layer is nine phases, each a barrier:

    norm | qkv | rotary and write | attention | merge | o | norm | gate and up | down

A projection adds straight to the residual stream, which is float32, and the gate is applied where
the sums of gate and up are still in cache. So only what the next product reads is rounded to the
weights' dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import AttentionPlan, Scratch, attend, new_scratch
from pagoda.kernels.cpu.fingerprint import FINGERPRINT
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.norm import rms_norm
from pagoda.kernels.cpu.panels import (
    multiply,
    multiply_add,
    multiply_gate,
    multiply_plain,
    new_sums,
    read_row,
)
from pagoda.kernels.cpu.product import HeadRoutines, PanelRoutines
from pagoda.kernels.cpu.rotary import rotate_and_write
from pagoda.kernels.cpu.team import claim, finish, phases

_PHASES = 9
_ITEM_ROWS = 4


class LayerTables(NamedTuple):
    """What a run of layers of one shape is made of; the first axis is the layer.

    h is the hidden size, D the head size, Q the width of q, k and v together, I the inner size.
    """

    matrices: Array
    """[layers, 5] int64: addresses of qkv, o, gate, up and down in panels."""
    input_norm: Array
    """[layers, h] float32, as all of the following but where it is said"""
    qkv_bias: Array
    """[layers, Q]"""
    q_norm: Array
    """[layers, D]; [layers, 0]: no norm"""
    k_norm: Array
    """As `q_norm`."""
    o_bias: Array
    """[layers, h]"""
    post_norm: Array
    """[layers, h]"""
    gate_up_bias: Array
    """[layers, 2 I]"""
    down_bias: Array
    """[layers, h]"""
    cosines: Array
    """[tables, positions, most rotary_dim / 2]"""
    sines: Array
    """As `cosines`."""
    rotary: Array
    """[layers, 2] int64: which table, and rotary_dim / 2."""
    blocks: Array
    """[layers] int64: address of the layer's blocks."""
    scales: Array
    """[layers]: times log2(e), multiplies q · k."""
    windows: Array
    """[layers] int64: tokens that a row sees, its own included."""


class Step(NamedTuple):
    """One step's rows and where they go; activations are written by every layer in turn."""

    slot_mapping: Array
    """[rows] int64"""
    stream: Array
    """[rows, h] float32: the residual stream, changed"""
    rows: Array
    """[rows] int64: 0, 1, 2, …"""
    hidden: Array
    """[rows, h] of the weights' dtype, written"""
    qkv: Array
    """[rows, Q] float32, written"""
    attended: Array
    """[rows, num_heads * D] of the weights' dtype, written"""
    gated: Array
    """[rows, I] of the weights' dtype, written"""


@njit(error_model="numpy")
def _run_layer(
    counters: Array, num_threads: int, layer: int, step: Step, plan: AttentionPlan,
    tables: LayerTables, like: Array, shape: HeadShape, heads: HeadRoutines, panels: PanelRoutines,
    eps: np.float32, following: int, scratch: Scratch, sums: Array,
) -> None:  # fmt: skip
    qkv, o, gate, up, down = tables.matrices[layer]
    hidden, stream = step.hidden, step.stream
    first = layer * _PHASES
    blocks = tables.blocks[layer]
    table, half = tables.rotary[layer]
    rms_norm(counters[first], hidden, stream, step.rows, tables.input_norm[layer], eps)
    multiply(
        counters[first + 1], num_threads, panels, sums, step.qkv, hidden, qkv, 0,
        step.qkv.shape[1], o, tables.qkv_bias[layer],
    )  # fmt: skip
    rotate_and_write(
        counters[first + 2], step.qkv, blocks, like, step.slot_mapping, plan.positions, shape,
        tables.cosines[table, :, :half], tables.sines[table, :, :half],
        tables.q_norm[layer], tables.k_norm[layer], eps,
    )  # fmt: skip
    attend(
        counters[first + 3], counters[first + 4], step.attended, step.qkv, blocks, like, plan,
        shape, heads, tables.scales[layer], tables.windows[layer], scratch,
    )  # fmt: skip
    multiply_add(
        counters[first + 5], num_threads, panels, sums, stream, step.attended, o, 0,
        stream.shape[1], gate, tables.o_bias[layer],
    )  # fmt: skip
    rms_norm(counters[first + 6], hidden, stream, step.rows, tables.post_norm[layer], eps)
    multiply_gate(
        counters[first + 7], num_threads, panels, sums, step.gated, hidden, gate, up,
        step.gated.shape[1], down, tables.gate_up_bias[layer],
    )  # fmt: skip
    multiply_add(
        counters[first + 8], num_threads, panels, sums, stream, step.gated, down, 0,
        stream.shape[1], following, tables.down_bias[layer],
    )  # fmt: skip


def _layers_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def run_layers(
        step: Step, plan: AttentionPlan, tables: LayerTables, like: Array, shape: HeadShape,
        heads: HeadRoutines, panels: PanelRoutines, eps: np.float32, num_threads: int,
    ) -> None:  # fmt: skip
        """Run all layers of `tables` in order over the rows of `step`, and write their K and V.

        like: an array of the cache's dtype; eps: float32, of every norm.
        """
        _ = fingerprint
        num_layers = tables.matrices.shape[0]
        counters = phases(num_layers * _PHASES)
        for _ in prange(num_threads):
            scratch, sums = new_scratch(plan, shape, heads, like), new_sums()
            for layer in range(num_layers):
                following = tables.matrices[min(layer + 1, num_layers - 1), 0]
                _run_layer(
                    counters,
                    num_threads,
                    layer,
                    step,
                    plan,
                    tables,
                    like,
                    shape,
                    heads,
                    panels,
                    eps,
                    following,
                    scratch,
                    sums,
                )

    return run_layers


def _embed_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def embed(
        stream: Array, token_ids: Array, embedding: int, vocab_size: int, like: Array,
        num_threads: int,
    ) -> None:  # fmt: skip
        """stream[r] = the embedding of token_ids[r].

        stream: [rows, width] float32, written; token_ids: [rows] int64. embedding: address of
        [vocab_size, width] in panels; like: an array of its dtype.
        """
        _ = fingerprint
        rows = token_ids.shape[0]
        counters = phases(1)
        for _ in prange(num_threads):
            total = (rows + _ITEM_ROWS - 1) // _ITEM_ROWS
            mine = 0
            item = claim(counters[0])
            while item < total:
                for r in range(item * _ITEM_ROWS, min((item + 1) * _ITEM_ROWS, rows)):
                    read_row(stream[r], embedding, token_ids[r], vocab_size, like)
                mine += 1
                item = claim(counters[0])
            finish(counters[0], mine, total)

    return embed


def _logits_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def project(
        logits: Array, hidden: Array, stream: Array, rows: Array, norm: Array, eps: np.float32,
        lm_head: int, routines: PanelRoutines, num_threads: int,
    ) -> None:  # fmt: skip
        """logits = norm(stream[rows]) · lm_head.

        logits: [num_rows, vocab_size] float32, written; hidden: [num_rows, width] of the weights'
        dtype, written; stream: [any, width] float32; rows: [num_rows] int64; norm: [width] float32;
        lm_head: address of [vocab_size, width] in panels.
        """
        _ = fingerprint
        counters = phases(2)
        for _ in prange(num_threads):
            sums = new_sums()
            rms_norm(counters[0], hidden, stream, rows, norm, eps)
            multiply_plain(
                counters[1], num_threads, routines, sums, logits, hidden, lm_head, 0,
                logits.shape[1], lm_head, norm,
            )  # fmt: skip

    return project


run_layers = _layers_kernel(FINGERPRINT)
embed = _embed_kernel(FINGERPRINT)
project = _logits_kernel(FINGERPRINT)
