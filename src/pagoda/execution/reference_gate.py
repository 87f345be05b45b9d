"""The plain truth about gates."""

from __future__ import annotations

import torch
from torch.nn import functional

from pagoda.models.decoder import Activation

_STEEPNESS, _LIMIT = 1.702, 7.0


def gated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """What an activation makes of gate and up."""
    if activation is Activation.CLAMPED_SWIGLU:
        gate, up = gate.clamp(max=_LIMIT), up.clamp(-_LIMIT, _LIMIT)
        return gate * (_STEEPNESS * gate).sigmoid() * (up + 1)
    return activated(gate, activation) * up


def activated(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """What an activation makes of x alone."""
    if activation is Activation.GELU_TANH:
        return functional.gelu(x, approximate="tanh")
    if activation is Activation.GELU:
        return functional.gelu(x)
    assert activation is Activation.SILU, activation
    return functional.silu(x)
