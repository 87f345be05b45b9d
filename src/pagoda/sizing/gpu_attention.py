"""What attention of one layer keeps between its kernels on a GPU, counted from shapes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pagoda.errors import UnsupportedModelError
from pagoda.kernels.gpu.parts import MOST_LATENT_HEADS, decode_parts, latent_decode_parts
from pagoda.models.decoder import AttentionSpec, LatentAttentionSpec

_LEAST_HEAD_DIM, _MOST_HEAD_DIM = 16, 256
_LEAST_RANK, _MOST_RANK, _MOST_ROPE = 16, 512, 128


class AttentionShape(Protocol):
    """What decides how large the activations of a layer's attention are."""

    @property
    def arrays(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what is alive together, of each token; the weights' dtype."""
        ...

    @property
    def summed_dim(self) -> int:
        """Numbers of a partial sum."""
        ...

    def decode_parts(self, num_sequences: int) -> int:
        """Partial sums that decode attention leaves at once, of up to so many sequences."""
        ...


class GroupedShape(NamedTuple):
    """Of keys and values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sees_sinks: bool = False
    """Beside a window: its queries are there twice."""

    @property
    def group_size(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def arrays(self) -> tuple[tuple[int, ...], ...]:
        """qkv, queries, what they see, and perhaps queries for sinks."""
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        num_like_queries = 3 if self.sees_sinks else 2
        return (qkv,), *[(self.num_heads, self.head_dim)] * num_like_queries

    @property
    def summed_dim(self) -> int:
        return self.head_dim

    def decode_parts(self, num_sequences: int) -> int:
        return decode_parts(num_sequences, self.num_heads)


class LatentShape(NamedTuple):
    """Of latents."""

    num_heads: int
    q_rank: int
    """0: queries are made of the stream."""
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query before it is absorbed."""
        return self.nope_dim + self.rope_dim

    @property
    def width(self) -> int:
        """Numbers that a token leaves in the cache."""
        return self.rank + self.rope_dim

    @property
    def arrays(self) -> tuple[tuple[int, ...], ...]:
        """What queries are made of, queries, latent and key, absorbed queries, what they see, and
        values made of it."""
        heads = self.num_heads
        return (
            (self.q_rank,), (heads, self.query_dim), (self.width,), (heads, self.width),
            (heads, self.rank), (heads, self.value_dim),
        )  # fmt: skip

    @property
    def summed_dim(self) -> int:
        return self.rank

    def decode_parts(self, num_sequences: int) -> int:
        return latent_decode_parts(num_sequences, self.num_heads)


def attention_shape(
    attention: AttentionSpec | LatentAttentionSpec, *, sees_sinks: bool
) -> AttentionShape:
    """What of attention decides how large its activations are.

    Raises `UnsupportedModelError` for heads and latents that no kernel takes.
    """
    if isinstance(attention, AttentionSpec):
        return _grouped_shape(attention, sees_sinks)
    return _latent_shape(attention)


def _grouped_shape(attention: AttentionSpec, sees_sinks: bool) -> GroupedShape:
    num_heads, num_kv_heads = attention.num_heads, attention.num_kv_heads
    shape = GroupedShape(num_heads, num_kv_heads, attention.head_dim, sees_sinks)
    _require_within("head_dim", shape.head_dim, _LEAST_HEAD_DIM, _MOST_HEAD_DIM, "on a GPU")
    if 16 * num_kv_heads < num_heads:
        limit = f"at least a sixteenth of the {num_heads} heads on a GPU"
        raise UnsupportedModelError("num_key_value_heads", num_kv_heads, limit)
    return shape


def _latent_shape(attention: LatentAttentionSpec) -> LatentShape:
    where = "on a GPU, where keys are latents"
    _require_within("kv_lora_rank", attention.rank, _LEAST_RANK, _MOST_RANK, where)
    _require_within("qk_rope_head_dim", attention.rope_dim, 2, _MOST_ROPE, where)
    _require_within("num_attention_heads", attention.num_heads, 1, MOST_LATENT_HEADS, where)
    return LatentShape(
        attention.num_heads, attention.q_rank or 0, attention.rank, attention.nope_dim,
        attention.rope_dim, attention.value_dim,
    )  # fmt: skip


def _require_within(field: str, value: int, least: int, most: int, where: str) -> None:
    if not least <= value <= most:
        raise UnsupportedModelError(field, value, f"{least} to {most} {where}")
