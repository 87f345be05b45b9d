"""The memory that the largest step on a GPU takes between its kernels, counted from shapes.

The engine allocates exactly this (`execution/gpu/workspace.py` says what is in it); the planner
counts it without PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pagoda.kernels.gpu.parts import PREFILL_PARTS, decode_parts
from pagoda.sizing.alignment import aligned
from pagoda.sizing.step_limits import StepLimits

FLOAT32_BYTES = 4


class LayerShape(NamedTuple):
    """What decides how large a layer's activations are."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    sees_sinks: bool = False
    """Beside a window: its queries are there twice."""

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
        """Widths of what is alive together: in attention, and in the feed-forward part."""
        inner, num_like_queries = self.intermediate_size, 3 if self.sees_sinks else 2
        return (self.qkv_width, *[self.query_width] * num_like_queries), (2 * inner, inner)


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
        halves = [half for layer in self.shape.layers for half in layer.halves]
        return max(sum(map(self._rows_bytes, half)) for half in halves)

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
