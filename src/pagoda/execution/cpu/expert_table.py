"""A layer's experts as compiled code takes them: whole numbers, most of them addresses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagoda.errors import UnsupportedModelError
from pagoda.execution.cpu.addresses import Addresses, address_of
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.execution.cpu.workspace import Workspace
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.experts import (
    MOST_EXPERTS,
    ExpertsFields,
    ExpertsMemory,
    experts_routine,
    experts_row,
)
from pagoda.kernels.cpu.grouped_product import GroupedWeight
from pagoda.kernels.cpu.int8_rows import record_bytes
from pagoda.kernels.cpu.multiply import product_routines
from pagoda.kernels.cpu.route import RouteFields
from pagoda.models.decoder import ExpertsSpec
from pagoda.models.expert_weights import ExpertsWeights

_FLOAT, _INT, _BYTE = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint8)


def expert_fields(
    spec: ExpertsSpec,
    weights: ExpertsWeights[PanelMatrix],
    dtype: torch.dtype,
    gate_routine: int,
    kept: Addresses,
) -> Array:
    """The row of one layer, `experts_row`: [fields] int64.

    dtype: of what products take, float32 or bfloat16; gate_routine: address of what gates, for the
    activation and dtype. What the row has addresses of is added to `kept`, but for weights in
    panels. Raises UnsupportedModelError for more experts than kernels can route to.
    """
    if spec.num_experts > MOST_EXPERTS:
        limit = f"at most {MOST_EXPERTS} are covered"
        raise UnsupportedModelError("num_experts", spec.num_experts, limit)
    return np.array(
        experts_row(
            _own_fields(spec, weights, dtype, gate_routine, kept),
            _route_fields(spec, weights, kept),
            product_routines(dtype == torch.bfloat16),
        ),
        np.int64,
    )


def _route_fields(
    spec: ExpertsSpec, weights: ExpertsWeights[PanelMatrix], kept: Addresses
) -> RouteFields:
    return RouteFields(
        num_experts=spec.num_experts,
        num_used=spec.num_used,
        uses_softmax=int(spec.scoring == "softmax"),
        is_normalised=int(spec.normalised),
        num_groups=spec.num_groups,
        num_used_groups=spec.num_used_groups,
        group_top=spec.group_top,
        correction=0 if weights.correction is None else kept.floats(weights.correction),
        scale=kept.one(spec.scale),
    )


def _own_fields(
    spec: ExpertsSpec,
    weights: ExpertsWeights[PanelMatrix],
    dtype: torch.dtype,
    gate_routine: int,
    kept: Addresses,
) -> ExpertsFields:
    shared_inner = 0 if spec.shared is None else spec.shared.intermediate_size
    hidden_size = weights.router.shape[1]
    return ExpertsFields(
        routine=experts_routine().address,
        router=weights.router.address,
        router_bias=kept.bias(weights.router_bias, weights.router.shape[0]),
        table=kept.of(_table(spec, weights, hidden_size, kept)),
        gate_routine=gate_routine,
        hidden=hidden_size,
        inner=spec.intermediate_size,
        weight_size=dtype.itemsize,
        shared_gate=address_of(weights.shared_gate),
        shared_up=address_of(weights.shared_up),
        shared_down=address_of(weights.shared_down),
        shared_gate_bias=kept.bias(weights.shared_gate_bias, shared_inner),
        shared_up_bias=kept.bias(weights.shared_up_bias, shared_inner),
        shared_down_bias=kept.bias(weights.shared_down_bias, hidden_size),
        shared_inner=shared_inner,
        is_shared_gated=int(spec.shared_gate),
    )


def _table(
    spec: ExpertsSpec, weights: ExpertsWeights[PanelMatrix], hidden_size: int, kept: Addresses
) -> Array:
    """[experts, 2, fields of `GroupedWeight`] int64"""
    count, inner = spec.num_experts, spec.intermediate_size
    gate_biases = kept.biases(weights.gate_bias, count, inner)
    up_biases = kept.biases(weights.up_bias, count, inner)
    down_biases = kept.biases(weights.down_bias, count, hidden_size)
    gate_up = map(GroupedWeight, *_addresses(weights.gate, weights.up), gate_biases, up_biases)
    [downs] = _addresses(weights.down)
    down = (
        GroupedWeight(address, 0, bias, 0) for address, bias in zip(downs, down_biases, strict=True)
    )
    return np.array([*zip(gate_up, down, strict=True)], np.int64)


def _addresses(*matrices: Sequence[PanelMatrix]) -> list[list[int]]:
    return [[matrix.address for matrix in each] for each in matrices]


def experts_memory(
    workspace: Workspace,
    specs: Sequence[ExpertsSpec],
    hidden_size: int,
    num_rows: int,
    dtype: np.dtype[np.generic],
    *,
    rounds_rows: bool,
) -> Array:
    """`ExpertsMemory` for a step of so many rows: [fields] int64, good until the workspace grows.

    specs: of all layers that share it; dtype: the weights', bfloat16 as uint16.
    """
    inner = max(spec.intermediate_size for spec in specs)
    num_experts = max(spec.num_experts for spec in specs)
    shared = max(0 if spec.shared is None else spec.shared.intermediate_size for spec in specs)
    used = max(spec.num_used for spec in specs)
    places = num_rows * used

    def address(name: str, rows: int, width: int, kind: np.dtype[np.generic]) -> int:
        return workspace.address(f"expert {name}", rows, width, kind)

    memory = ExpertsMemory(
        logits=address("logits", num_rows, num_experts + 1, _FLOAT),
        chosen=address("chosen", num_rows, used, _INT),
        weights=address("weights", num_rows, used, _FLOAT),
        starts=address("starts", 1, num_experts + 1, _INT),
        sources=address("sources", places, 1, _INT),
        places=address("places", num_rows, used, _INT),
        gathered=address("gathered", places, hidden_size, dtype),
        gated=address("gated", places, inner, dtype),
        out=address("out", places, hidden_size, _FLOAT),
        records=(
            address("records", places, record_bytes(max(hidden_size, inner)), _BYTE)
            if rounds_rows
            else 0
        ),
        shared_gated=address("shared gated", num_rows, shared, dtype),
        shared_out=address("shared out", num_rows, hidden_size if shared else 0, _FLOAT),
    )
    return np.array(memory, np.int64)
