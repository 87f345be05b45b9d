"""The memory that the largest step on a GPU takes between its kernels, counted from shapes.

The engine allocates exactly this (`execution/gpu/workspace.py` says what is in it); the planner
counts it without PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from pagoda.errors import UnsupportedModelError
from pagoda.kernels.gpu.expert_tiles import first_of_many, most_tiles
from pagoda.kernels.gpu.parts import PREFILL_PARTS, decode_parts
from pagoda.models.decoder import AttentionSpec, DecoderLayer, ExpertsSpec
from pagoda.sizing.alignment import aligned
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

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of what every row goes through; 0: there are experts, and none that is shared"""
    sees_sinks: bool = False
    """Beside a window: its queries are there twice."""
    experts: ExpertsShape | None = None

    @property
    def group_size(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def halves(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Widths of what is alive together: in attention, and in the plain feed-forward part."""
        inner, num_like_queries = self.intermediate_size, 3 if self.sees_sinks else 2
        return (self.qkv_width, *[self.query_width] * num_like_queries), (2 * inner, inner)


def require_grouped(layer: DecoderLayer) -> AttentionSpec:
    """Its attention, which GPUs have kernels for.

    Raises `UnsupportedModelError` for latent attention.
    """
    if isinstance(layer.attention, AttentionSpec):
        return layer.attention
    limit = "latent attention runs on a CPU: --device cpu"
    raise UnsupportedModelError("kv_lora_rank", layer.attention.rank, limit)


def layer_shape(layer: DecoderLayer, *, sees_sinks: bool = False) -> LayerShape:
    """What of a layer decides how large its activations are; raises as `require_grouped` does."""
    attention, mlp = require_grouped(layer), layer.mlp
    heads = (attention.num_heads, attention.num_kv_heads, attention.head_dim)
    if not isinstance(mlp, ExpertsSpec):
        return LayerShape(*heads, mlp.intermediate_size, sees_sinks)
    inner = 0 if mlp.shared is None else mlp.shared.intermediate_size
    num_logits = mlp.num_experts + mlp.shared_gate
    experts = ExpertsShape(mlp.num_experts, mlp.num_used, mlp.intermediate_size, num_logits)
    return LayerShape(*heads, inner, sees_sinks, experts)


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
        halves = [sum(map(self._rows_bytes, half)) for layer in layers for half in layer.halves]
        arrays = [
            layer.experts.arrays(self.step.num_tokens, shape.hidden_size)
            for layer in layers
            if layer.experts is not None
        ]
        return max(*halves, *(each.num_bytes(shape.dtype_bytes) for each in arrays))

    @property
    def num_parts(self) -> int:
        """Partial sums of attention, of decode or of prefill."""
        most_heads = max(layer.num_heads for layer in self.shape.layers)
        return max(decode_parts(self.step.num_sequences, most_heads), PREFILL_PARTS)

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
        head_dims = {layer.head_dim for layer in shape.layers}
        # A part is a sum for each number of a head, and a mass.
        partial = sum(self.num_parts * (dim + 1) * FLOAT32_BYTES for dim in head_dims)
        return self.arena_bytes + rows + last + self.logits_bytes + partial

    def _rows_bytes(self, width: int) -> int:
        return aligned(width * self.step.num_tokens * self.shape.dtype_bytes)
