"""The feed-forward part of a layer on a GPU where each row goes to some of many experts.

    shared: gate and up | gate | down                to delta, where there is a shared expert
    router | route | sort | gate and up | down       of a row, as many parts as it has experts
    combine                                          to delta

As a plain part it waits for nothing. What a row is made of is in one order, whatever is beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagoda.execution.gpu.product import product, product_in_float32
from pagoda.execution.gpu.workspace import LayerMemory
from pagoda.kernels.gpu.activation import apply_gate
from pagoda.kernels.gpu.combine import combine
from pagoda.kernels.gpu.expert_rows import sort_rows
from pagoda.kernels.gpu.grouped_product import gated_product, grouped_product
from pagoda.kernels.gpu.route import Routing, route
from pagoda.models.decoder import ExpertsSpec
from pagoda.models.expert_weights import ExpertsWeights


class Experts(NamedTuple):
    """Those of a layer: E of inner size I."""

    spec: ExpertsSpec
    routing: Routing
    weights: ExpertsWeights[torch.Tensor]
    gate: torch.Tensor
    """[E, I, h], the weights' own memory, as the next two"""
    up: torch.Tensor
    """[E, I, h]"""
    down: torch.Tensor
    """[E, h, I]"""

    @classmethod
    def of(cls, spec: ExpertsSpec, weights: ExpertsWeights[torch.Tensor]) -> Experts:
        """Of weights that lie as `GPUMemory` puts them: each expert's behind those before it."""
        routing = Routing(
            spec.num_experts, spec.num_used, spec.scoring == "softmax", spec.normalised,
            spec.scale, spec.num_groups, spec.num_used_groups, spec.group_top,
        )  # fmt: skip
        stacks = map(stack, (weights.gate, weights.up, weights.down))
        return cls(spec, routing, weights, *stacks)

    def run(self, delta: torch.Tensor, hidden: torch.Tensor, memory: LayerMemory) -> None:
        """Write to delta what the experts make of hidden: [T, h], of the weights' dtype."""
        spec, weights, own = self.spec, self.weights, memory.experts
        assert own is not None
        if spec.shared is not None:
            self._run_shared(delta, hidden, memory)
        product_in_float32(own.logits, hidden, weights.router)
        route(
            own.chosen, own.weights, own.logits, weights.router_bias, weights.correction,
            self.routing,
        )  # fmt: skip
        sort_rows(own.rows, own.chosen)
        gated_product(
            own.gated, hidden, own.rows, self.gate, self.up, weights.gate_bias, weights.up_bias,
            spec.activation.value,
        )  # fmt: skip
        grouped_product(own.parts, own.gated, own.rows, self.down, weights.down_bias)
        combine(
            delta, own.parts, own.weights,
            has_shared=spec.shared is not None, gate_column=spec.num_experts,
            logits=own.logits if spec.shared_gate else None,
        )  # fmt: skip

    def _run_shared(self, delta: torch.Tensor, hidden: torch.Tensor, memory: LayerMemory) -> None:
        weights, inner = self.weights, memory.gated.shape[1]
        assert weights.shared_gate is not None
        assert weights.shared_up is not None
        assert weights.shared_down is not None
        gate, up = memory.gate_up[:, :inner], memory.gate_up[:, inner:]
        product(gate, hidden, weights.shared_gate, weights.shared_gate_bias)
        product(up, hidden, weights.shared_up, weights.shared_up_bias)
        apply_gate(memory.gated, memory.gate_up, self.spec.activation.value)
        product(delta, memory.gated, weights.shared_down, weights.shared_down_bias)


def stack(matrices: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Matrices that lie one behind the other in one memory, [E, rows, columns], where they are."""
    first = matrices[0]
    memory, size = first.untyped_storage().data_ptr(), first.numel()
    for number, matrix in enumerate(matrices):
        assert matrix.untyped_storage().data_ptr() == memory
        assert matrix.storage_offset() == first.storage_offset() + number * size
        assert matrix.shape == first.shape
        assert matrix.is_contiguous()
    return first.as_strided((len(matrices), *first.shape), (size, *first.stride()))
