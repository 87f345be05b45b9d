"""What a model keeps in the cache, layer by layer, from its config alone.

A family that Pagoda runs is read by the engine's own reader (`pagoda.planning.covered`). For the
others, and for latents, which engines keep in ways of their own, the rule of the family says which
kind each layer is (`pagoda.planning.patterns`); a builder for each kind turns the fields into what
it keeps. Families differ in rows of tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.layer import CachedLayer
from pagoda.cache.layers import (
    ChunkedLayerSpec,
    CrossAttentionLayerSpec,
    SlidingWindowLayerSpec,
)
from pagoda.cache.state import StateLayerSpec
from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.registry import decoder_spec
from pagoda.planning.covered import covered_shape
from pagoda.planning.fields import (
    dtype_of,
    longest_of,
    model_type_of,
    per_layer,
    read_language,
    text_config,
)
from pagoda.planning.patterns import (
    CROSS,
    FULL,
    Family,
    layer_types,
    window_everywhere,
)
from pagoda.planning.states import STATES

ENCODER_TOKENS = 1500
"""Tokens of half a minute of sound, as Whisper hears it."""
_MOST_LAYERS = 1024
"""Many times those of any model; each is looked at one by one."""
_STATE_CHUNK = 256
_ASSUMED_FAMILY = Family(window_everywhere)
_TYPE_FIELDS = ("layer_types", "layers_block_type")
_MULTI_HEAD_LATENTS = ("minicpm3",)
"""Families with `kv_lora_rank` whose engines expand the latent and cache all heads."""


@dataclass(frozen=True)
class Architecture:
    """A model's shape, as far as its cache goes."""

    model_type: str
    dtype: str
    """The dtype of weights and activations where nothing else is said."""
    layers: tuple[tuple[CachedLayer, ...], ...]
    """For each layer of the model what it keeps: mostly one thing, or nothing, or two."""
    num_heads: int
    """Heads of queries, which tensor parallelism has to divide. 0: no attention."""
    max_model_len: int | None
    """Positions it was made for."""
    extended_max_model_len: int | None
    """The same by engines that take YaRN's factor as not yet applied."""
    assumed: tuple[str, ...] = ()
    """What had to be assumed, in words."""
    state_chunk: int = 256
    """Tokens that a recurrent layer computes together, between which it can keep its state."""
    latent_pair_size: int = 0
    """Products of a head for a token and one that it attends to, where it is by a latent.

    The least of two ways: with keys and values made of the latent, qk_nope + rope + v, or with the
    latent itself, 2 × rank + rope (DeepSeek-V2, section 2.1).
    """
    decoder: DecoderSpec | None = None
    """A family that Pagoda runs: what its engine's reader made of the config."""

    @cached_property
    def cached_layers(self) -> tuple[CachedLayer, ...]:
        """All that its layers keep, one after the other."""
        return tuple(layer for kept in self.layers for layer in kept)

    @property
    def windowed(self) -> tuple[bool, ...]:
        """Of each layer, whether it has a sliding window."""
        kind = SlidingWindowLayerSpec.kind
        return tuple(any(layer.kind == kind for layer in kept) for kept in self.layers)

    @property
    def has_states(self) -> bool:
        return any(layer.kind == StateLayerSpec.kind for layer in self.cached_layers)

    @property
    def has_latents(self) -> bool:
        return any(layer.latents is not None for layer in self.cached_layers)

    @property
    def has_sparse_latents(self) -> bool:
        """Latents beside which an indexer keeps keys of its own."""
        kept = [layer.latents for layer in self.cached_layers]
        return any(latents is not None and latents.index_size for latents in kept)


def read_architecture(config: ModelConfig) -> Architecture:
    """The shape that a config describes.

    A `model_type` that is not known is read by the fields that most models share, and said so in
    `assumed`. Raises `ModelError` for a field that is missing or makes no sense.
    """
    text, family = read_language(config)
    try:
        decoder = covered_shape(text)
    except UnsupportedModelError as error:
        return _read_by_rules(text, family or _ASSUMED_FAMILY, doubt="" if family else str(error))
    if decoder is not None and not (family and _has_latents(decoder)):
        longest = longest_of(text, extends_yarn=False), longest_of(text, extends_yarn=True)
        return _of_decoder(decoder, model_type_of(text), dtype_of(text), longest)
    if family is not None:
        return _read_by_rules(text, family)
    doubt = f"model type {model_type_of(text)!r} is not known"
    return _read_by_rules(text, _ASSUMED_FAMILY, doubt=doubt)


def _has_latents(decoder: DecoderSpec) -> bool:
    return any(_layer_of(kind.layer, decoder.dtype).vectors is None for kind in decoder.kinds)


def read_architecture_in_pagoda(config: ModelConfig) -> Architecture:
    """The shape of a model as Pagoda's engine reads it, and runs it.

    Raises what the engine raises: `UnsupportedModelError` for what it does not run, `ModelError`
    for a field that is missing or wrong.
    """
    decoder = decoder_spec(config)
    longest = decoder.max_position_embeddings
    shape = _of_decoder(decoder, model_type_of(config), decoder.dtype, (longest, longest))
    if text_config(config).values.get("torch_dtype"):
        return shape
    return replace(shape, assumed=(f"the config names no dtype: taken for {decoder.dtype}",))


def _of_decoder(
    decoder: DecoderSpec, model_type: str, dtype: str, longest: tuple[int | None, int | None]
) -> Architecture:
    """`longest`: positions that the model was made for, and those with YaRN's factor applied."""
    return Architecture(
        model_type=model_type,
        dtype=dtype,
        layers=decoder.of_each_layer((_layer_of(kind.layer, dtype),) for kind in decoder.kinds),
        num_heads=decoder.layers[0].attention.num_heads,
        max_model_len=longest[0],
        extended_max_model_len=longest[1],
        latent_pair_size=decoder.layers[0].attention.pair_size,
        decoder=decoder,
    )


def _layer_of(layer: DecoderLayer, dtype: str) -> CachedLayer:
    return layer.attention.cached_as(dtype)


def _read_by_rules(text: ModelConfig, family: Family, doubt: str = "") -> Architecture:
    """The shape of a model that Pagoda does not run; `doubt`: why its family had to be assumed."""
    usual = "read as a decoder that keeps num_key_value_heads × head_dim keys and values"
    dtype = dtype_of(text)
    num_layers = text.integer("num_hidden_layers")
    if num_layers > _MOST_LAYERS:
        raise text.error("num_hidden_layers", num_layers, f"must be at most {_MOST_LAYERS}")
    words = _words(text, num_layers, family)
    builder = _Builder(text, dtype, num_layers, family)
    return Architecture(
        model_type=model_type_of(text),
        dtype=dtype,
        layers=tuple(
            tuple(builder.build(part, layer) for part in word.split("+") if part in _BUILDERS)
            for layer, word in enumerate(words)
        ),
        num_heads=text.optional_integer("num_attention_heads", minimum=0) or 0,
        max_model_len=longest_of(text, extends_yarn=False),
        extended_max_model_len=longest_of(text, extends_yarn=True),
        assumed=(f"{doubt}: {usual} in every layer",) if doubt else (),
        state_chunk=text.optional_integer("mamba_chunk_size")
        or text.optional_integer("chunk_size")
        or _STATE_CHUNK,
        latent_pair_size=_latent_pair_size(text),
    )


def _latent_pair_size(config: ModelConfig) -> int:
    rank = config.optional_integer("kv_lora_rank", minimum=0)
    rope = config.optional_integer("qk_rope_head_dim", minimum=0)
    if not rank or rope is None:
        return 0
    nope = config.integer("qk_nope_head_dim", default=128)
    return rope + min(nope + config.integer("v_head_dim", default=nope), 2 * rank)


def _words(config: ModelConfig, num_layers: int, family: Family) -> list[str]:
    found = (layer_types(config, num_layers, name) for name in _TYPE_FIELDS)
    words = next((words for words in found if words), None) or family.rule(config, num_layers)
    num_shared = config.integer("num_kv_shared_layers", default=0, minimum=0)
    if num_shared > num_layers:
        raise config.error("num_kv_shared_layers", num_shared, f"at most {num_layers}")
    return [*words[: num_layers - num_shared], *["nothing"] * num_shared]


@dataclass(frozen=True, slots=True)
class _Builder:
    config: ModelConfig
    dtype: str
    num_layers: int
    family: Family

    def build(self, kind: str, layer: int) -> CachedLayer:
        return _BUILDERS[kind](self, layer)

    def full(self, layer: int) -> CachedLayer:
        if self.config.optional_integer("kv_lora_rank") is not None:
            return self._latent()
        heads = self.config.optional_integer("num_global_key_value_heads")
        size = self.config.optional_integer("global_head_dim")
        own = self._attention(layer)
        return AttentionLayerSpec(
            heads or own.num_kv_heads, size or own.head_size, self.dtype, own.head_size_v
        )

    def sliding(self, layer: int) -> CachedLayer:
        own = self._attention(layer)
        heads = self.config.optional_integer("swa_num_key_value_heads")
        size = self.config.optional_integer("swa_head_dim")
        size_v = self.config.optional_integer("swa_v_head_dim")
        attention = AttentionLayerSpec(
            heads or own.num_kv_heads, size or own.head_size, self.dtype, size_v or own.head_size_v
        )
        return SlidingWindowLayerSpec(attention, self.config.integer("sliding_window"))

    def chunked(self, layer: int) -> CachedLayer:
        chunk = self.config.integer("attention_chunk_size")
        return ChunkedLayerSpec(self._attention(layer), chunk)

    def cross(self, layer: int) -> CachedLayer:
        tokens = self.config.integer("max_source_positions", default=ENCODER_TOKENS)
        return CrossAttentionLayerSpec(self._attention(layer), tokens)

    def state(self, layer: int) -> CachedLayer:
        if self.family.state is None:
            raise self.config.error(
                "layer_types", "a recurrent layer", "is not known for this model type"
            )
        return STATES[self.family.state](self.config, self.dtype)

    def _attention(self, layer: int) -> AttentionLayerSpec:
        config = self.config
        heads = config.integer("num_attention_heads")
        one_for_all = config.boolean("multi_query", default=False) and not config.boolean(
            "new_decoder_architecture", default=False
        )
        # Falcon 7B's config names 71 KV heads all the same.
        kv_heads = 1
        if not one_for_all:
            kv_heads = per_layer(config, "num_key_value_heads", self.num_layers, heads)[layer]
        if kv_heads > heads or heads % kv_heads:
            raise config.error(
                "num_key_value_heads", kv_heads, f"must divide the {heads} attention heads"
            )
        size = config.optional_integer("head_dim")
        if config.values.get("model_type") in _MULTI_HEAD_LATENTS:
            kv_heads = heads
            size = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")
        if size is None:
            hidden = config.integer("hidden_size")
            if hidden % heads:
                raise config.error("head_dim", None, f"{hidden} / {heads} heads is no whole number")
            size = hidden // heads
        size_v = config.optional_integer("v_head_dim")
        if config.values.get("model_type") in _MULTI_HEAD_LATENTS:
            size_v = size  # padded
        return AttentionLayerSpec(kv_heads, size, self.dtype, None if size_v == size else size_v)

    def _latent(self) -> CachedLayer:
        config = self.config
        if config.values.get("model_type") in _MULTI_HEAD_LATENTS:
            return self._attention(0)
        return LatentLayerSpec(
            config.integer("kv_lora_rank"),
            config.integer("qk_rope_head_dim"),
            self.dtype,
            config.optional_integer("index_head_dim") or 0,
            config.optional_integer("index_topk"),
        )


_BUILDERS: MappingProxyType[str, Callable[[_Builder, int], CachedLayer]] = MappingProxyType(
    {
        FULL: _Builder.full,
        "sliding": _Builder.sliding,
        "chunked": _Builder.chunked,
        CROSS: _Builder.cross,
        "state": _Builder.state,
    }
)
