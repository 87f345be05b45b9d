"""One decoder layer: its weights and its part of the cache in the form that a step needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.execution.linear import Linear
from pagoda.execution.plan import DecodePlan
from pagoda.execution.prefill import attend_prefill
from pagoda.execution.rope import RotaryTables
from pagoda.execution.workspace import Buffer, Workspace
from pagoda.kernels.cpu.activation import silu_mul
from pagoda.kernels.cpu.attention import decode_attention_kernel
from pagoda.kernels.cpu.norm import add_rms_norm
from pagoda.kernels.cpu.rotary import rotate_and_write
from pagoda.models.decoder import LayerSpec
from pagoda.storage.kv_storage import LayerStorage, as_array

if TYPE_CHECKING:
    from pagoda.models.weights import LayerWeights

_LOG2_E = 1.4426950408889634
_NO_WINDOW = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Layer:
    """Data of one layer and the two halves of what it does."""

    spec: LayerSpec
    storage: LayerStorage
    tables: RotaryTables
    eps: np.float32
    input_norm: NDArray
    q_norm: NDArray
    k_norm: NDArray
    post_norm: NDArray
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear

    @classmethod
    def of(
        cls,
        spec: LayerSpec,
        weights: LayerWeights,
        storage: LayerStorage,
        tables: RotaryTables,
        eps: float,
    ) -> Layer:
        """From the weights as they were loaded, which are shared, not copied."""
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
            qkv=Linear.of(weights.qkv, weights.qkv_bias),
            o=Linear.of(weights.o, weights.o_bias),
            gate_up=Linear.of(weights.gate_up, weights.gate_up_bias),
            down=Linear.of(weights.down, weights.down_bias),
        )

    def run(self, work: Workspace) -> None:
        """Read the stream and its pending delta, leave a new delta; write K and V of the step."""
        hidden, delta = work.hidden, work.delta
        add_rms_norm(hidden.array, work.stream_array, delta.array, self.input_norm, self.eps)
        self._attend(work)
        add_rms_norm(hidden.array, work.stream_array, delta.array, self.post_norm, self.eps)
        gate_up = work.buffer("gate_up", self.gate_up.width)
        gated = work.buffer("gated", self.gate_up.width // 2)
        self.gate_up(gate_up.padded, hidden.padded)
        silu_mul(gated.array, gate_up.array)
        self.down(delta.padded, gated.padded)

    def _attend(self, work: Workspace) -> None:
        qkv = work.buffer("qkv", self.qkv.width)
        attended = work.buffer("attended", self.o.weight.shape[0])
        self.qkv(qkv.padded, work.hidden.padded)
        rotate_and_write(
            qkv.array,
            self.storage.key_array,
            self.storage.value_array,
            work.batch.slot_mapping,
            work.batch.positions,
            self.tables.cosines,
            self.tables.sines,
            self.q_norm,
            self.k_norm,
            self.eps,
        )
        if work.plan.decode is not None:
            self._decode(attended, qkv, work.plan.decode)
        for plan in work.plan.prefills:
            rows = slice(plan.start, plan.stop)
            queries = qkv.tensor[rows, : attended.tensor.shape[1]]
            attend_prefill(attended.tensor[rows], queries, self.storage, plan, self.spec.attention)
        self.o(work.delta.padded, attended.padded)

    def _decode(self, attended: Buffer, qkv: Buffer, plan: DecodePlan) -> None:
        spec = self.spec.attention
        block_size = self.storage.keys.shape[3]
        group_size = spec.num_heads // spec.num_kv_heads
        decode_attention = decode_attention_kernel(spec.head_dim, group_size, block_size)
        num_pieces = len(plan.work_sequences) * spec.num_kv_heads
        decode_attention(
            attended.array,
            qkv.array,
            self.storage.key_array,
            self.storage.value_array,
            plan.block_tables,
            plan.context_lens,
            plan.rows,
            plan.work_sequences,
            plan.work_splits,
            np.float32(spec.scale * _LOG2_E),
            _NO_WINDOW if spec.sliding_window is None else spec.sliding_window,
            np.empty((num_pieces, group_size, spec.head_dim), np.float32),
            np.empty((num_pieces, group_size, 2), np.float32),
        )
