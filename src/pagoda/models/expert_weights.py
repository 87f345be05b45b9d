"""The weights of a layer's experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import torch

M = TypeVar("M")
"""What matrices are: tensors, or weights in panels."""


@dataclass(frozen=True, slots=True)
class ExpertsWeights(Generic[M]):
    """As an `ExpertsSpec` says; matrices are [out, in].

    h is the hidden size, E the number of experts, I their inner size, S that of the shared expert.
    """

    router: M
    """[E, h], or, where the shared expert has a gate, [E + 1, h], of which that is the last row."""
    gate: tuple[M, ...]
    """E of [I, h]"""
    up: tuple[M, ...]
    """E of [I, h]"""
    down: tuple[M, ...]
    """E of [h, I]"""
    router_bias: torch.Tensor | None = None
    """[E]"""
    correction: torch.Tensor | None = None
    """[E]"""
    gate_bias: torch.Tensor | None = None
    """[E, I]"""
    up_bias: torch.Tensor | None = None
    """[E, I]"""
    down_bias: torch.Tensor | None = None
    """[E, h]"""
    shared_gate: M | None = None
    """[S, h]"""
    shared_up: M | None = None
    """[S, h]"""
    shared_down: M | None = None
    """[h, S]"""
    shared_gate_bias: torch.Tensor | None = None
    """[S]"""
    shared_up_bias: torch.Tensor | None = None
    """[S]"""
    shared_down_bias: torch.Tensor | None = None
    """[h]"""

    def tensors(self) -> Iterator[Any]:
        """All that there are."""
        for field in fields(self):
            value = getattr(self, field.name)
            yield from value if isinstance(value, tuple) else () if value is None else (value,)
