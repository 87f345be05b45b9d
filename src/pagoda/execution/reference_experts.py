"""The plain truth about experts: every row by itself, every product written out."""

from __future__ import annotations

import torch
from torch.nn import functional

from pagoda.execution.reference_gate import gated
from pagoda.models.decoder import ExpertsSpec
from pagoda.models.expert_weights import ExpertsWeights

_LEAST_SUM = 1e-20


def run_experts(
    x: torch.Tensor, spec: ExpertsSpec, weights: ExpertsWeights[torch.Tensor]
) -> torch.Tensor:
    """What a layer's experts make of x: [num_tokens, hidden_size] to the same shape, in x's dtype.

    Each row's results are added in the order of experts.
    """
    logits = _linear(x, weights.router, None)
    shared_gate = logits[:, spec.num_experts :].sigmoid()
    logits = logits[:, : spec.num_experts]
    if weights.router_bias is not None:
        logits = logits + weights.router_bias.to(x.dtype)
    chosen, shares = route(logits, spec, weights.correction)
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for expert, share in zip(chosen[row].tolist(), shares[row], strict=True):
            out[row] += share * _run_expert(x[row], spec, weights, expert)
    if weights.shared_gate is None or weights.shared_up is None or weights.shared_down is None:
        return out
    gate = _linear(x, weights.shared_gate, weights.shared_gate_bias)
    up = _linear(x, weights.shared_up, weights.shared_up_bias)
    inner = gated(gate, up, spec.activation)
    shared = _linear(inner, weights.shared_down, weights.shared_down_bias)
    return out + (shared * shared_gate if spec.shared_gate else shared)


def route(
    logits: torch.Tensor, spec: ExpertsSpec, correction: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's experts, ascending, and their weights: [rows, num_used] both.

    logits: [rows, num_experts]. Of equal scores that of the lower number is higher.
    """
    scores = logits.softmax(dim=-1) if spec.scoring == "softmax" else logits.sigmoid()
    values = scores if correction is None else scores + correction.to(scores.dtype)
    if spec.num_used_groups < spec.num_groups:
        by_group = values.view(len(values), spec.num_groups, -1)
        group_scores = by_group.sort(dim=-1, descending=True)[0][..., : spec.group_top].sum(dim=-1)
        is_out = torch.ones_like(group_scores, dtype=torch.bool)
        is_out.scatter_(1, _highest(group_scores, spec.num_used_groups), False)
        values = by_group.masked_fill(is_out[..., None], -torch.inf).view_as(values)
    chosen = _highest(values, spec.num_used).sort(dim=-1)[0]
    weights = scores.gather(1, chosen)
    if spec.normalised:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _LEAST_SUM)
    return chosen, weights * spec.scale


def _highest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Where they are: [rows, count]."""
    return values.sort(dim=-1, descending=True, stable=True)[1][:, :count]


def _run_expert(
    x: torch.Tensor, spec: ExpertsSpec, weights: ExpertsWeights[torch.Tensor], expert: int
) -> torch.Tensor:
    """One row, [hidden_size], to the same."""

    def own(biases: torch.Tensor | None) -> torch.Tensor | None:
        return None if biases is None else biases[expert]

    gate = _linear(x, weights.gate[expert], own(weights.gate_bias))
    up = _linear(x, weights.up[expert], own(weights.up_bias))
    inner = gated(gate, up, spec.activation)
    return _linear(inner, weights.down[expert], own(weights.down_bias))


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
