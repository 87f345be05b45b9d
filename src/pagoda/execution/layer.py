"""One decoder layer: its weights and its part of the cache in the form that a step needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from pagoda.execution.linear import Linear, linear
from pagoda.execution.rope import RotaryTables
from pagoda.execution.workspace import HeadShape, Workspace
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.activation import silu_mul
from pagoda.kernels.cpu.attention import paged_attention_kernel
from pagoda.kernels.cpu.norm import add_rms_norm
from pagoda.kernels.cpu.rotary import rotate_and_write
from pagoda.models.decoder import DecoderLayer
from pagoda.models.weights import LayerWeights
from pagoda.storage.kv_storage import LayerStorage, as_array

_LOG2_E = 1.4426950408889634
_NO_WINDOW = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Layer:
    """Data of one layer and the two halves of what it does."""

    spec: DecoderLayer
    storage: LayerStorage
    tables: RotaryTables
    eps: np.float32
    input_norm: Array
    q_norm: Array
    k_norm: Array
    post_norm: Array
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
    shape: HeadShape
    attention: Callable[..., None]
    """The kernel for heads of this shape."""

    @classmethod
    def of(
        cls,
        spec: DecoderLayer,
        weights: LayerWeights,
        storage: LayerStorage,
        tables: RotaryTables,
        eps: float,
    ) -> Layer:
        """From the weights as they were loaded, which are shared, not copied."""
        attention = spec.attention
        group_size = attention.num_heads // attention.num_kv_heads
        shape = HeadShape(attention.num_kv_heads, group_size, attention.head_dim)
        kernel = paged_attention_kernel(attention.head_dim, group_size, storage.block_size)
        no_norm = torch.empty(0, dtype=weights.input_norm.dtype)
        return cls(
            spec=spec,
            storage=storage,
            tables=tables,
            eps=np.float32(eps),
            input_norm=as_array(weights.input_norm),
            q_norm=as_array(no_norm if weights.q_norm is None else weights.q_norm),
            k_norm=as_array(no_norm if weights.k_norm is None else weights.k_norm),
            post_norm=as_array(weights.post_norm),
            qkv=linear(weights.qkv, weights.qkv_bias),
            o=linear(weights.o, weights.o_bias),
            gate_up=linear(weights.gate_up, weights.gate_up_bias),
            down=linear(weights.down, weights.down_bias),
            shape=shape,
            attention=kernel,
        )

    def run(self, work: Workspace) -> None:
        """Read the stream and its pending delta, leave a new delta; write K and V of the step."""
        hidden, delta = work.hidden, work.delta
        add_rms_norm(hidden.array, work.stream_array, delta.array, self.input_norm, self.eps)
        self._attend(work)
        add_rms_norm(hidden.array, work.stream_array, delta.array, self.post_norm, self.eps)
        gate_up = work.buffer("gate_up", self.gate_up.out_width)
        gated = work.buffer("gated", self.gate_up.out_width // 2)
        self.gate_up(gate_up, hidden)
        silu_mul(gated.array, gate_up.array)
        self.down(delta, gated)

    def _attend(self, work: Workspace) -> None:
        qkv = work.buffer("qkv", self.qkv.out_width)
        attended = work.buffer("attended", self.o.in_width)
        self.qkv(qkv, work.hidden)
        spec, storage = self.spec.attention, self.storage
        rotate_and_write(
            qkv.array,
            storage.array,
            work.batch.slot_mapping,
            work.batch.positions,
            self.tables.cosines,
            self.tables.sines,
            self.q_norm,
            self.k_norm,
            storage.num_kv_heads,
            storage.block_size,
            self.eps,
        )
        plan, parts = work.plan_attention(self.shape)
        self.attention(
            attended.array,
            qkv.array,
            storage.array,
            work.batch.block_tables,
            work.batch.positions,
            plan.work,
            plan.merges,
            parts,
            np.float32(spec.scale * _LOG2_E),
            _NO_WINDOW if spec.sliding_window is None else spec.sliding_window,
            work.num_threads,
        )
        self.o(work.delta, attended)
