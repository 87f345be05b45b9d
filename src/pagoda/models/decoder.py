"""A model is data: everything the executor must know about a decoder, and nothing it computes.

Families differ in this data, not in forward code. One layer, as the executor runs it:

    x = x + residual_scale · norm(o_proj(attention(rope(qk_norm(qkv_proj(norm(x)))))))
    x = x + residual_scale · norm(down_proj(act(gate) * up)),  gate, up = gate_up_proj(norm(x))

Which of the four norms there are is `NormPlacement`; without a gate act(up) takes its place. Before
the first layer x is the embedding times `embedding_scale`; behind the last one

    logits = cap((lm_head(norm(x)) + bias) · logit_scale),  cap(y) = logit_cap · tanh(y / logit_cap)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.latent import LatentLayerSpec, latent_format
from pagoda.cache.layers import SlidingWindowLayerSpec, keeping
from pagoda.cache.spec import CacheSpec
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import ModelError

T = TypeVar("T")

_ANGLE_BYTES = 4


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one kind of layer.

    `inv_freq` holds `rotary_dim / 2` angles per position, the context extension already applied
    (`pagoda.models.rope_types`); cosine and sine are multiplied by `attention_factor`. The
    half-split layout is used: of a head's first `rotary_dim` values, value i is rotated with value
    i + rotary_dim / 2; the others stay.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


class Learned(Enum):
    """What a norm of rows has learned."""

    NOTHING = "nothing"
    """All weights are 1 (OLMo 1, arXiv 2402.00838)."""
    WEIGHT = "weight"
    WEIGHT_AND_BIAS = "weight and bias"


@dataclass(frozen=True, slots=True)
class NormSpec:
    """How rows are normed, everywhere in a decoder:

        x / sqrt(mean(x²) + eps) · (weight + offset) + bias

    RMS norm (arXiv 1910.07467), or layer norm (arXiv 1607.06450) where the mean is taken off first.
    """

    eps: float
    is_centred: bool = False
    """Takes the mean off x, but not where heads are normed."""
    weight_offset: float = 0.0
    """Added to every weight, in float32; not where there are biases."""
    learned: Learned = Learned.WEIGHT
    """By rows; norms of heads have weights."""

    @property
    def is_shifted(self) -> bool:
        """Whether there are biases."""
        return self.learned is Learned.WEIGHT_AND_BIAS


class QKNorm(Enum):
    """What of a row's queries, and of its keys, is normed together."""

    HEAD = "head"
    """Each head for itself, all with the same weights."""
    ROW = "row"
    """All heads as one row."""


class NormPlacement(NamedTuple):
    """Which norms a layer has."""

    attention: bool
    """Of what attention takes."""
    attention_output: bool
    """Of what it adds to the stream."""
    mlp: bool
    """Of what the feed-forward part takes."""
    mlp_output: bool
    """Of what it adds to the stream."""
    is_parallel: bool = False
    """The feed-forward part takes the stream that attention takes, under a norm of its own, or what
    attention takes of it."""


PRE_NORM = NormPlacement(attention=True, attention_output=False, mlp=True, mlp_output=False)
POST_NORM = NormPlacement(attention=False, attention_output=True, mlp=False, mlp_output=True)
SANDWICH_NORM = NormPlacement(attention=True, attention_output=True, mlp=True, mlp_output=True)
PARALLEL_NORM = NormPlacement(
    attention=True, attention_output=False, mlp=False, mlp_output=False, is_parallel=True
)
PARALLEL_NORMS = PARALLEL_NORM._replace(mlp=True)


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Multiplies q·k before the softmax, usually head_dim ** -0.5."""
    rope: RopeSpec | None
    """None: a layer without positions (NoPE)."""
    sliding_window: int | None = None
    """A token sees itself and the `sliding_window - 1` tokens before it; None: all."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QKNorm | None = None
    """RMS norm of queries and keys before RoPE."""
    logit_cap: float | None = None
    """A score s becomes cap · tanh(s / cap) before the softmax (Gemma 2, arXiv 2408.00118)."""
    sink_logits: bool = False
    """Each query head has a learned logit without a value that takes part in the softmax."""

    @property
    def pair_size(self) -> int:
        """Products of a head for a token and one that it attends to: of scores, of values."""
        return 2 * self.head_dim

    @property
    def ignores_shifts(self) -> bool:
        """Whether what is added to all scores of a query changes nothing."""
        return self.logit_cap is None and not self.sink_logits

    def num_weights(self, hidden_size: int) -> int:
        """Numbers in its matrices."""
        return 2 * hidden_size * (self.num_heads + self.num_kv_heads) * self.head_dim

    def cached_as(self, form: str) -> AttentionLayerSpec | SlidingWindowLayerSpec:
        """What the layer keeps, in a format."""
        kept = AttentionLayerSpec(self.num_kv_heads, self.head_dim, form)
        if self.sliding_window is None:
            return kept
        return SlidingWindowLayerSpec(kept, self.sliding_window)


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Multi-head latent attention of one layer (DeepSeek-V2, arXiv 2405.04434).

        c = norm(latent rows of kv_down · x)          q = q_up · norm(q_down · x), or q_proj · x
        key of a head = [key_up · c, rope(shared)]    value of a head = value_up · c

    `shared` is what else kv_down makes of x, one key for all heads. A query is of `nope_dim`
    numbers that meet key_up · c, and of `rope_dim` that are rotated.
    """

    num_heads: int
    q_rank: int | None
    """Numbers of what queries are made of; None: of x itself."""
    rank: int
    """Numbers of the latent, c."""
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    """Multiplies q·k before the softmax."""
    rope: RopeSpec
    norm_eps: float = 1e-6
    """Of both norms of what is made of x; not the decoder's."""
    down_bias: bool = False
    """Of q_down and kv_down."""
    output_bias: bool = False

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query."""
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        """Numbers that a token leaves in the cache: latent and shared key."""
        return self.rank + self.rope_dim

    @property
    def pair_size(self) -> int:
        """As `AttentionSpec`'s, the least of two ways: with keys and values made of the latent, or
        with the latent itself."""
        return self.rope_dim + min(self.nope_dim + self.value_dim, 2 * self.rank)

    def num_weights(self, hidden_size: int) -> int:
        """Numbers in its matrices."""
        queries, made_of = self.num_heads * self.query_dim, self.q_rank or hidden_size
        q_down = 0 if self.q_rank is None else hidden_size * self.q_rank
        kv_up = self.rank * self.num_heads * (self.nope_dim + self.value_dim)
        o = self.num_heads * self.value_dim * hidden_size
        return q_down + made_of * queries + hidden_size * self.cached_dim + kv_up + o

    def cached_as(self, form: str) -> LatentLayerSpec:
        """What the layer keeps, in a format; raises as `latent_format` does."""
        return LatentLayerSpec(self.rank, self.rope_dim, latent_format(form))


class Activation(Enum):
    """The function of a gate, or of what has none."""

    SILU = "silu"
    """x / (1 + exp(-x))"""
    GELU = "gelu"
    """x / 2 · (1 + erf(x / √2)) (arXiv 1606.08415)"""
    GELU_TANH = "gelu_tanh"
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (arXiv 1606.08415)"""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """x · sigmoid(1.702 x) for x at most 7, times up + 1, up from -7 to 7 (arXiv 2508.10925)"""


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """Feed-forward part of one layer."""

    intermediate_size: int
    activation: Activation = Activation.SILU
    bias: bool = False
    is_gated: bool = True

    @property
    def num_matrices(self) -> int:
        """Gate, up and down, or up and down alone."""
        return 2 + self.is_gated

    def __post_init__(self) -> None:
        if not self.is_gated and self.activation is Activation.CLAMPED_SWIGLU:
            limit = "is a function of gate and up, and there is no gate"
            raise ModelError("activation", self.activation.value, limit)


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Feed-forward part of one layer in which each row goes to some of many experts.

        scores = scoring(router · x)
        chosen = the `num_used` highest of scores + correction, in the best groups alone
        weights = scores of the chosen, / their sum where they are normalised, · scale
        y = Σ weight · expert(x) + shared(x) · sigmoid(shared gate · x)

    Softmax over all scores, normalised, is softmax over the logits of the chosen ones. Raises
    `ModelError` for numbers that contradict one another.
    """

    num_experts: int
    num_used: int
    """Experts of each row."""
    intermediate_size: int
    """Of each expert."""
    activation: Activation = Activation.SILU
    """Of the shared expert too."""
    bias: bool = False
    """Of each expert's gate, up and down."""
    router_bias: bool = False
    scoring: str = "softmax"
    """softmax or sigmoid"""
    normalised: bool = True
    scale: float = 1.0
    correction_bias: bool = False
    """Added to scores for choosing, not for weights (DeepSeek-V3, arXiv 2412.19437)."""
    num_groups: int = 1
    """Of equally many experts, one after the other."""
    num_used_groups: int = 1
    """Groups that a row's experts are chosen from."""
    group_top: int = 1
    """1 or 2: a group is as good as the sum of so many of its highest scores."""
    shared: MLPSpec | None = None
    """An expert that every row goes to."""
    shared_gate: bool = False
    """Whether what the shared expert makes of a row is multiplied with a sigmoid."""

    def __post_init__(self) -> None:
        experts, groups = self.num_experts, self.num_groups
        if not 1 <= groups <= experts or experts % groups:
            raise ModelError("num_groups", groups, f"must divide the {experts} experts")
        if not 1 <= self.num_used_groups <= groups:
            raise ModelError("num_used_groups", self.num_used_groups, f"1 to {groups} groups")
        group_size = experts // groups
        if not 1 <= self.group_top <= min(2, group_size):
            raise ModelError("group_top", self.group_top, f"1 to {min(2, group_size)} of a group")
        most = self.num_used_groups * group_size
        if not 1 <= self.num_used <= most:
            raise ModelError("num_used", self.num_used, f"1 to {most} experts")
        if self.scoring not in ("softmax", "sigmoid"):
            raise ModelError("scoring", self.scoring, "softmax or sigmoid")
        if self.shared is None and self.shared_gate:
            raise ModelError("shared_gate", self.shared_gate, "there is no shared expert")
        if self.shared is not None and self.shared.activation != self.activation:
            limit = f"must be {self.activation.value}, as of the other experts"
            raise ModelError("shared.activation", self.shared.activation.value, limit)
        if self.shared is not None and not self.shared.is_gated:
            raise ModelError("shared.is_gated", False, "the other experts have gates")


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One decoder layer."""

    attention: AttentionSpec | LatentAttentionSpec
    mlp: MLPSpec | ExpertsSpec
    norms: NormPlacement = PRE_NORM
    residual_scale: float = 1.0
    """Multiplies what each half adds to the stream."""


class LayerKind(NamedTuple):
    """Layers of a decoder that are alike."""

    layer: DecoderLayer
    numbers: tuple[int, ...]
    """Those of all that are like it."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A whole decoder-only model."""

    architecture: str
    """Name of the architecture as the checkpoint gives it, e.g. LlamaForCausalLM."""
    vocab_size: int
    hidden_size: int
    layers: tuple[DecoderLayer, ...]
    norm: NormSpec
    tie_word_embeddings: bool
    max_position_embeddings: int
    """Longest sequence the model was made for, in tokens, context extension included."""
    dtype: str
    """Dtype of the checkpoint's weights: float32, float16 or bfloat16."""
    embedding_scale: float = 1.0
    logit_bias: bool = False
    """Whether a bias is added to logits, which is stored beside the weight of their product."""
    logit_scale: float = 1.0
    logit_cap: float | None = None
    """None: logits are not capped."""
    num_predicting_layers: int = 0
    """Layers behind these that checkpoints may have, for tokens further on; they are not run
    (DeepSeek-V3, arXiv 2412.19437)."""

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Its layers, those that are one object together: a family makes each kind once. Equal
        layers that are not one object are two kinds, which is slower, not wrong."""
        found: dict[int, list[int]] = {}
        for number, layer in enumerate(self.layers):
            found.setdefault(id(layer), []).append(number)
        return tuple(LayerKind(self.layers[own[0]], tuple(own)) for own in found.values())

    def of_each_layer(self, of_kinds: Iterable[T]) -> tuple[T, ...]:
        """For each layer what there is for its kind."""
        found = {
            number: own
            for kind, own in zip(self.kinds, of_kinds, strict=True)
            for number in kind.numbers
        }
        return tuple(found[number] for number in range(len(self.layers)))

    def angle_bytes(self, num_positions: int) -> int:
        """Bytes of the tables of angles for so many positions, which engines make at their start.

        A cosine and a sine in float32 for each angle of each kind of layer.
        """
        ropes = {kind.layer.attention.rope for kind in self.kinds}
        num_angles = sum(len(rope.inv_freq) for rope in ropes if rope is not None)
        return 2 * _ANGLE_BYTES * num_angles * num_positions

    def cache_spec(
        self,
        block_size: int,
        formats: str | Sequence[str],
        *,
        retention: AttentionWindow = FULL_ATTENTION,
        under_way_tokens: int = 0,
    ) -> CacheSpec:
        """The cache this model needs, K and V stored in one format, or each layer in its own.

        retention: what is kept of every sequence at most. under_way_tokens: see `CacheSpec`.
        """
        if isinstance(formats, str):
            formats = (formats,) * len(self.layers)
        layers = tuple(
            keeping(layer.attention.cached_as(form), retention)
            for layer, form in zip(self.layers, formats, strict=True)
        )
        return CacheSpec(layers, block_size, under_way_tokens)
