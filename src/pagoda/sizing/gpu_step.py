"""The memory that the largest step on a GPU takes between its kernels, counted from shapes.

The engine allocates exactly this (`execution/gpu/workspace.py` says what is in it); the planner
counts it without PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from pagoda.kernels.gpu.expert_tiles import first_of_many, most_tiles
from pagoda.kernels.gpu.parts import PREFILL_PARTS
from pagoda.models.decoder import DecoderLayer, ExpertsSpec
from pagoda.sizing.alignment import aligned
from pagoda.sizing.gpu_attention import AttentionShape, attention_shape
from pagoda.sizing.step_limits import StepLimits

FLOAT32_BYTES = 4


class ExpertArrays(NamedTuple):
    """Shapes of what is alive together where rows go to experts: T rows, P = T · num_used pairs."""

    logits: tuple[int, int]
    """[T, experts], and a column more for the shared expert's gate; float32"""
    chosen: tuple[int, int]
    """[T, num_used] int32"""
    weights: tuple[int, int]
    """[T, num_used] float32"""
    order: tuple[int]
    """[P] int32"""
    counts: tuple[int]
    """[experts] int32"""
    tiles: tuple[int, int]
    """[most tiles, 3] int32"""
    gated: tuple[int, int]
    """[P, I], the weights' dtype"""
    parts: tuple[int, int]
    """[P, h]; likewise"""

    def num_bytes(self, dtype_bytes: int) -> int:
        """Of all, each where an array may begin."""
        *small, gated, parts = (math.prod(shape) for shape in self)
        return sum(aligned(FLOAT32_BYTES * count) for count in small) + sum(
            aligned(dtype_bytes * count) for count in (gated, parts)
        )


class ExpertsShape(NamedTuple):
    """What decides how large the activations of a layer's experts are."""

    num_experts: int
    num_used: int
    """Experts of each row."""
    intermediate_size: int
    num_logits: int
    """The router's, and one where the shared expert has a gate."""

    @property
    def rows_of_many(self) -> int:
        """Rows from which on they go through experts in large tiles."""
        return -(-first_of_many(self.num_experts) // self.num_used)

    def arrays(self, num_tokens: int, hidden_size: int) -> ExpertArrays:
        """In any step of so many tokens, whatever their experts are."""
        pairs, experts = num_tokens * self.num_used, self.num_experts
        return ExpertArrays(
            logits=(num_tokens, self.num_logits),
            chosen=(num_tokens, self.num_used),
            weights=(num_tokens, self.num_used),
            order=(pairs,),
            counts=(experts,),
            tiles=(most_tiles(pairs, experts), 3),
            gated=(pairs, self.intermediate_size),
            parts=(pairs, hidden_size),
        )


class LayerShape(NamedTuple):
    """What decides how large a layer's activations are."""

    attention: AttentionShape
    intermediate_size: int
    """Of what every row goes through; 0: there are experts, and none that is shared"""
    experts: ExpertsShape | None = None
    is_gated: bool = True
    """Of that: whether products make a gate beside it"""

    @property
    def halves(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Shapes, of each token, of what is alive together: in attention, and in the plain
        feed-forward part."""
        inner = self.intermediate_size
        return self.attention.arrays, (((1 + self.is_gated) * inner,), (inner,))


def layer_shape(layer: DecoderLayer, *, sees_sinks: bool = False) -> LayerShape:
    """What of a layer decides how large its activations are; raises as `attention_shape` does."""
    attention, mlp = attention_shape(layer.attention, sees_sinks=sees_sinks), layer.mlp
    if not isinstance(mlp, ExpertsSpec):
        return LayerShape(attention, mlp.intermediate_size, is_gated=mlp.is_gated)
    inner = 0 if mlp.shared is None else mlp.shared.intermediate_size
    num_logits = mlp.num_experts + mlp.shared_gate
    experts = ExpertsShape(mlp.num_experts, mlp.num_used, mlp.intermediate_size, num_logits)
    return LayerShape(attention, inner, experts)


class ModelShape(NamedTuple):
    """What decides how large a model's activations are."""

    hidden_size: int
    vocab_size: int
    layers: tuple[LayerShape, ...]
    """Each shape once."""
    dtype_bytes: int
    """Bytes of one number of the weights, and of what products read and write."""


class LargestStep(NamedTuple):
    """The most that memory is kept for."""

    num_tokens: int
    num_sequences: int
    num_logit_rows: int

    @classmethod
    def of(cls, limits: StepLimits, max_prompt_logit_rows: int) -> LargestStep:
        """A row of logits for each sequence, and so many more for the tokens of prompts."""
        tokens, sequences = limits
        tokens = max(tokens, sequences)
        return cls(tokens, sequences, min(sequences + max_prompt_logit_rows, tokens))


@dataclass(frozen=True, slots=True)
class WorkspaceSize:
    """Bytes of the memory that all layers and all steps share."""

    shape: ModelShape
    step: LargestStep

    @property
    def arena_bytes(self) -> int:
        """What is alive together in one half of a layer, in the largest half of any layer."""
        layers, shape = self.shape.layers, self.shape
        halves = [sum(map(self._array_bytes, half)) for layer in layers for half in layer.halves]
        arrays = [
            layer.experts.arrays(self.step.num_tokens, shape.hidden_size)
            for layer in layers
            if layer.experts is not None
        ]
        return max(*halves, *(each.num_bytes(shape.dtype_bytes) for each in arrays))

    @property
    def num_parts(self) -> dict[int, int]:
        """Partial sums of attention, of decode or of prefill, by how many numbers one has."""
        found: dict[int, int] = {}
        for attention in (layer.attention for layer in self.shape.layers):
            dim, parts = attention.summed_dim, attention.decode_parts(self.step.num_sequences)
            found[dim] = max(found.get(dim, PREFILL_PARTS), parts)
        return found

    @property
    def logits_bytes(self) -> int:
        return self.step.num_logit_rows * self.shape.vocab_size * FLOAT32_BYTES

    @property
    def size_bytes(self) -> int:
        """All of it."""
        shape, step = self.shape, self.step
        # The residual stream in float32, what products read, and what they add.
        rows = step.num_tokens * shape.hidden_size * (FLOAT32_BYTES + 2 * shape.dtype_bytes)
        last = step.num_logit_rows * shape.hidden_size * shape.dtype_bytes
        # A part is a sum for each number, and a mass.
        partial = sum(count * (dim + 1) * FLOAT32_BYTES for dim, count in self.num_parts.items())
        return self.arena_bytes + rows + last + self.logits_bytes + partial

    def _array_bytes(self, shape: tuple[int, ...]) -> int:
        """Of one array, where tokens have that shape."""
        return aligned(math.prod(shape) * self.step.num_tokens * self.shape.dtype_bytes)
