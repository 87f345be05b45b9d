"""How many numbers a model's weights are, part by part, from its config.

attention   hidden × (heads + 2 × kv_heads + heads) × head_dim
latent      hidden × q_rank + q_rank × heads × (nope + rope) + hidden × (rank + rope)
            + rank × heads × (nope + v) + heads × v × hidden
MLP         3 × hidden × intermediate, 2 × where there is no gate
experts     as many MLPs, a router of hidden × experts, and the shared expert
embeddings  vocabulary × hidden, twice where the output head is its own
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda.cache.layer import CachedLayer
from pagoda.cache.state import StateLayerSpec
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.part import Parts
from pagoda.models.registry import weight_names
from pagoda.models.weight_parts import FEED_FORWARD, DecoderParts, LayerParts
from pagoda.planning.architecture import Architecture
from pagoda.planning.fields import language_config, mlp_width
from pagoda.planning.patterns import indices
from pagoda.sizing.experts_read import share_read

_NO_GATE = (
    "gpt2", "gptj", "gpt_bigcode", "bloom", "opt", "mpt", "falcon", "phi",
    "nemotron", "nemotron_h", "nemotronh", "whisper",
)  # fmt: skip
_SHARED_WIDTHS = (
    "shared_expert_intermediate_size", "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)  # fmt: skip
_NO_MLP = ("mamba", "mamba2", "falcon_mamba")


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Numbers of one layer."""

    attention: int
    """Attention or recurrence, and norms."""
    mlp: int
    """What every token goes through: a dense MLP, a shared expert, the router."""
    experts: int = 0
    """All experts together."""
    num_experts: int = 0
    experts_per_token: int = 0

    @property
    def total(self) -> int:
        return self.attention + self.mlp + self.experts

    @property
    def active(self) -> int:
        """Numbers that one token is multiplied with."""
        if not self.num_experts:
            return self.attention + self.mlp
        return self.attention + self.mlp + self.experts * self.experts_per_token // self.num_experts

    def share_read(self, num_tokens: int) -> float:
        """The share of its experts that a step of so many tokens reads; 1 where there are none."""
        if not self.num_experts:
            return 1.0
        return share_read(self.experts_per_token / self.num_experts, num_tokens)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of a model."""

    embedding: int
    head: int
    """The output head's own; 0 where it is the embedding again."""
    layers: tuple[LayerParameters, ...]
    other: int = 0
    """What the total has beside: the last norm, a vision tower, an encoder."""
    looked_up: int = 0
    """Of `other`, tables that are looked up for every layer (Gemma 3n and 4)."""

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.other + sum(part.total for part in self.layers)

    @property
    def active(self) -> int:
        """Numbers that one token is multiplied with, the head included and the lookup not."""
        return (self.head or self.embedding) + sum(part.active for part in self.layers)

    @property
    def visited(self) -> int:
        """What publishers call active: all but the experts not chosen and the layers' tables."""
        at_rest = sum(part.total - part.active for part in self.layers)
        return self.total - at_rest - self.looked_up

    def share_read(self, num_tokens: int) -> float | None:
        """The share of all experts that a step of so many tokens reads; None: there are none."""
        experts = sum(part.experts for part in self.layers)
        if not experts:
            return None
        return sum(part.experts * part.share_read(num_tokens) for part in self.layers) / experts


def count_parameters(
    config: ModelConfig,
    model: Architecture,
    total: int | None = None,
    kinds: DecoderParts | None = None,
) -> Parameters:
    """The parts of a model; where the `total` is known the rest is `other`.

    A part is scaled down where the parts come to more than the total. `kinds`: what a decoder that
    Pagoda runs is made of, by whatever names, where that is at hand (`DecoderParts.of_kinds`).
    """
    decoder = model.decoder
    if decoder is not None:
        names = weight_names(decoder.architecture, "directory", ())
        counted = _count_by_parts(decoder, kinds or DecoderParts.of_kinds(decoder, names))
    else:
        counted = _count_by_fields(language_config(config), model)
    if total is None:
        return counted
    embedding, layers = counted.embedding, counted.layers
    other = total - (counted.total - counted.other)
    if other >= 0:
        looked_up = min(other, _looked_up(language_config(config), len(layers)))
        return Parameters(embedding, counted.head, layers, other, looked_up)
    if total <= embedding:
        text = language_config(config)
        vocabulary = text.integer("vocab_size")
        raise text.error("vocab_size", vocabulary, f"the embedding has more than {total} numbers")
    head = counted.head if total > 2 * embedding else 0
    share = (total - embedding - head) / sum(part.total for part in layers)
    return Parameters(embedding, head, tuple(_scaled(part, share) for part in layers))


def _count_by_parts(decoder: DecoderSpec, kinds: DecoderParts) -> Parameters:
    """To the last number; `other` are the last norm and a bias of logits."""
    return Parameters(
        _numbers_in(kinds.embedding),
        _numbers_in(kinds.lm_head),
        decoder.of_each_layer(map(_of_layer, kinds.layers)),
        _numbers_in(kinds.final_norm, kinds.logit_bias),
    )


def _of_layer(parts: LayerParts) -> LayerParameters:
    mlp = _numbers_in(*(parts.own[field] for field in FEED_FORWARD))
    mixing = _numbers_in(*parts.own.values()) - mlp
    experts = parts.experts
    if experts is None:
        return LayerParameters(mixing, mlp)
    mlp = _numbers_in(*experts.every_row_reads)
    chosen = experts.times * _numbers_in(*experts.of_chosen)
    return LayerParameters(mixing, mlp, chosen, experts.num_experts, experts.num_used)


def _numbers_in(*weights: Parts) -> int:
    return sum(math.prod(part.shape) for parts in weights for part in parts if not part.is_one)


def _count_by_fields(text: ModelConfig, model: Architecture) -> Parameters:
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    tied = text.boolean("tie_word_embeddings", default=model.model_type in ("gemma", "gemma2"))
    embedding = vocabulary * hidden
    layers = tuple(
        _layer(text, model, index, kept, hidden) for index, kept in enumerate(model.layers)
    )
    return Parameters(embedding, 0 if tied else embedding, layers)


def _looked_up(text: ModelConfig, num_layers: int) -> int:
    rows = text.optional_integer("vocab_size_per_layer_input", minimum=0)
    width = text.optional_integer("hidden_size_per_layer_input", minimum=0)
    return (rows or 0) * (width or 0) * num_layers


def _scaled(part: LayerParameters, share: float) -> LayerParameters:
    return LayerParameters(
        round(part.attention * share), round(part.mlp * share), round(part.experts * share),
        part.num_experts, part.experts_per_token,
    )  # fmt: skip


def _layer(
    config: ModelConfig, model: Architecture, index: int, kept: tuple[CachedLayer, ...], hidden: int
) -> LayerParameters:
    mixing = sum(_mixing(config, layer, hidden) for layer in kept)
    if not kept and _shares_cache(config, model, index):
        heads, size = config.integer("num_attention_heads"), config.integer("head_dim")
        mixing = 2 * hidden * heads * size
    mixing += 2 * hidden
    if config.values.get("hybrid_override_pattern") is not None:
        letters = config.string("hybrid_override_pattern")
        if len(letters) != len(model.layers):
            limit = f"must have {len(model.layers)} letters"
            raise config.error("hybrid_override_pattern", letters, limit)
        # One thing a layer: attention, a state, an MLP or experts.
        if letters[index] in "M*":
            return LayerParameters(mixing, 0)
        if letters[index] == "-":
            return LayerParameters(hidden, _mlp(config, model, hidden, _dense_width(config, index)))
    return _feed_forward(config, model, index, hidden, mixing)


def _shares_cache(config: ModelConfig, model: Architecture, index: int) -> bool:
    shared = config.integer("num_kv_shared_layers", default=0, minimum=0)
    return index >= len(model.layers) - shared


def _mixing(config: ModelConfig, layer: CachedLayer, hidden: int) -> int:
    if isinstance(layer, StateLayerSpec):
        conv = layer.conv_width + layer.group_width * layer.groups
        values = config.integer("linear_num_value_heads", default=0, minimum=0)
        width = values * config.integer("linear_value_head_dim", default=1) or layer.conv_width
        return hidden * (conv + width) + width * hidden
    heads = config.integer("num_attention_heads")
    kept = layer.vectors
    if kept is None:
        return _latent(config, hidden, heads, config.integer("kv_lora_rank"))
    size_v = kept.head_size_v or kept.head_size
    return hidden * (heads * kept.head_size + heads * size_v + kept.values_per_token)


def _latent(config: ModelConfig, hidden: int, heads: int, rank: int) -> int:
    rope, nope = config.integer("qk_rope_head_dim"), config.integer("qk_nope_head_dim", default=128)
    size_v = config.integer("v_head_dim", default=nope)
    q_rank = config.optional_integer("q_lora_rank")
    width = heads * (nope + rope)
    queries = hidden * width if q_rank is None else hidden * q_rank + q_rank * width
    keys = hidden * (rank + rope) + rank * heads * (nope + size_v)
    index = config.optional_integer("index_head_dim") or 0
    index_heads = config.integer("index_n_heads", default=0, minimum=0)
    indexer = (q_rank or hidden) * index_heads * index + hidden * (index + index_heads)
    return queries + keys + heads * size_v * hidden + indexer


def _feed_forward(
    config: ModelConfig, model: Architecture, index: int, hidden: int, mixing: int
) -> LayerParameters:
    num_experts = config.optional_integer("num_experts", minimum=0) or 0
    if not num_experts or not _has_experts(config, index):
        return LayerParameters(mixing, _mlp(config, model, hidden, _dense_width(config, index)))
    width = config.optional_integer("moe_intermediate_size") or config.integer("intermediate_size")
    shared = sum(config.optional_integer(name, minimum=0) or 0 for name in _SHARED_WIDTHS)
    num_shared = config.optional_integer("n_shared_experts", minimum=0) or 0
    num_shared = 0 if shared else num_shared
    if model.model_type.startswith("llama4"):
        num_shared = 1
    always = _mlp(config, model, hidden, shared + num_shared * width) + hidden * num_experts
    experts = num_experts * _mlp(config, model, hidden, width)
    per_token = config.integer("num_experts_per_tok", default=1)
    if per_token > num_experts:
        raise config.error("num_experts_per_tok", per_token, f"at most {num_experts}, all experts")
    return LayerParameters(mixing, always, experts, num_experts, per_token)


def _dense_width(config: ModelConfig, index: int) -> int:
    """The MLP's width; GPT-2's kind leaves it out where it is four times the hidden size."""
    named = config.optional_integer("intermediate_size_mlp")
    if named is not None:
        return named
    if config.values.get("model_type") in _NO_MLP:
        return 0
    width = mlp_width(config, index)
    return 4 * config.integer("hidden_size") if width is None else width


def _mlp(config: ModelConfig, model: Architecture, hidden: int, width: int) -> int:
    return (2 if model.model_type in _NO_GATE else 3) * hidden * width


def _has_experts(config: ModelConfig, index: int) -> bool:
    """Whether the layer's MLP is one of experts: each family has its own way to say so."""
    listed = config.values.get("moe_layers")
    if isinstance(listed, list):
        return index in listed
    if config.values.get("mlp_only_layers") and index in indices(config, "mlp_only_layers"):
        return False
    if index < config.integer("first_k_dense_replace", default=0, minimum=0):
        return False
    period = config.optional_integer("expert_layer_period")
    if period is not None:
        return index % period == config.integer("expert_layer_offset", default=0, minimum=0)
    for name in ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval"):
        step = config.optional_integer(name)
        if step is not None:
            return (index + 1) % step == 0
    return True
