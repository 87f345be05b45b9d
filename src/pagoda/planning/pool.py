"""The pool of one rank: an architecture, how it is spread over devices, and how it is stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.formats import (
    FLOAT_DTYPES,
    FORMATS,
    LATENT_BYTES,
    LATENT_FORMATS,
    canonical,
)
from pagoda.cache.groups import form_groups
from pagoda.cache.latent import PACKED_FP8, LatentLayerSpec
from pagoda.cache.layer import CachedLayer
from pagoda.cache.own_format import is_own
from pagoda.cache.state import StateLayerSpec
from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.planning.architecture import Architecture
from pagoda.planning.groups import GroupedPool, aligned_block_size, stages_of
from pagoda.planning.releases import Release
from pagoda.sizing.cache_formats import AUTO, CacheFormats

DEFAULT_BLOCK_SIZE = 16
LATENT_BLOCK_SIZE = 64
CPU_BLOCK_SIZE = 128
STATE_ALIGNMENT = 16
MAMBA_CACHE_MODES = ("none", "align", "all")
_PADDED_BYTES = 256
_EXPANDED_SIZE = 256
"""Numbers of a head where latents are expanded: keys of 192 and values of 128, both padded."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What decides the pool beside the model."""

    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[int | str, ...] = ()
    """Layers that keep the dtype of the weights: numbers, ranges, sliding_window."""
    dtype: str | None = None
    """The weights' dtype, and the cache's where `kv_cache_dtype` is auto; None: the model's."""
    block_size: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    pipeline_split: tuple[int, ...] | None = None
    context_parallel_size: int = 1
    under_way_tokens: int = 2048
    mamba_cache_mode: str = "none"
    """How states serve prefix sharing; how many a request holds: `none` one, `align` two, `all` one
    for each block."""
    mamba_block_size: int | None = None
    """Tokens between states where all are kept; None: the model's chunk."""
    drafted_tokens: int = 0
    """Tokens that a draft proposes in a step: recurrent layers keep a state for each."""
    encoder_tokens: int | None = None
    packs_sparse_latents: bool = True
    """fp8 of sparse latents is the packed format that kernels of Hopper read."""
    state_dtype: str | None = None
    """The recurrent states' dtype; None: the model's, float32 where its config says so."""

    def __post_init__(self) -> None:
        names = (
            "block_size", "tensor_parallel_size", "pipeline_parallel_size",
            "context_parallel_size", "under_way_tokens", "mamba_block_size",
        )  # fmt: skip
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidOptionError(name, value, "must be at least 1")
        if self.drafted_tokens < 0:
            raise InvalidOptionError("drafted_tokens", self.drafted_tokens, "must be at least 0")
        if self.mamba_cache_mode not in MAMBA_CACHE_MODES:
            limit = f"one of {', '.join(MAMBA_CACHE_MODES)}"
            raise InvalidOptionError("mamba_cache_mode", self.mamba_cache_mode, limit)
        if self.state_dtype not in (None, *FLOAT_DTYPES):
            limit = f"one of {', '.join(FLOAT_DTYPES)}"
            raise InvalidOptionError("mamba_ssm_cache_dtype", self.state_dtype, limit)


def rank_layers(model: Architecture, options: PoolOptions) -> list[list[CachedLayer]]:
    """For each layer of the model, what one rank keeps of it."""
    adapted = {layer: _adapted(layer, model, options) for layer in set(model.cached_layers)}
    kept = [[adapted[layer] for layer in layers] for layers in model.layers]
    kv_dtype = canonical(options.kv_cache_dtype)
    # In hybrids vLLM guards none.
    formats = CacheFormats(kv_dtype, options.kv_cache_dtype_skip_layers)
    left_out = formats.layers_left_out(model.windowed, guards=not model.has_states)
    if kv_dtype == AUTO:
        return kept
    for_latents = (*LATENT_BYTES, *LATENT_FORMATS)
    if kv_dtype not in (*FORMATS, *for_latents) and not is_own(kv_dtype):
        known = ("auto", *FORMATS, *LATENT_BYTES)
        raise InvalidOptionError("kv_cache_dtype", kv_dtype, f"one of {', '.join(known)}")
    if kv_dtype in for_latents and not model.has_latents:
        raise InvalidOptionError("kv_cache_dtype", kv_dtype, "is for latent attention (MLA) alone")
    if kv_dtype.startswith("fp8") and options.packs_sparse_latents and model.has_sparse_latents:
        kv_dtype = PACKED_FP8
    return [
        [layer if index in left_out else layer.stored_as(kv_dtype) for layer in layers]
        for index, layers in enumerate(kept)
    ]


def build_pool(model: Architecture, options: PoolOptions, release: Release) -> GroupedPool:
    """The pool of the rank that can hold fewest blocks."""
    per_layer = rank_layers(_as_cached(model, release), options)
    layers = [layer for kept in per_layer for layer in kept]
    if not layers:
        raise UnsupportedModelError("model", model.model_type, "keeps nothing in a cache")
    block_size = _block_size(model, options, layers)
    pool = GroupedPool(
        groups=form_groups(layers, block_size, mixed=release.forms_groups),
        stages=_cached_stages(per_layer, options),
        under_way_tokens=options.under_way_tokens,
        context_parallel_size=options.context_parallel_size,
        reserved_blocks=release.reserved_blocks,
    )
    if not pool.block_bytes:
        raise UnsupportedModelError("model", model.model_type, "keeps nothing in a cache")
    return pool


def _adapted(layer: CachedLayer, model: Architecture, options: PoolOptions) -> CachedLayer:
    own = layer.sharded(options.tensor_parallel_size)
    own = own.computed_in(options.dtype or model.dtype, options.state_dtype)
    mode = options.mamba_cache_mode
    own = own.for_requests(2 if mode == "align" else 1, options.encoder_tokens)
    if not isinstance(own, StateLayerSpec):
        return own
    return replace(own.drafting(options.drafted_tokens), keeps_every_block=mode == "all")


def _as_cached(model: Architecture, release: Release) -> Architecture:
    """The model with its latents as the release keeps them."""
    if release.latent_form == "whole" or not model.has_latents:
        return model
    layers = tuple(
        tuple(_old_latent(layer, model, release) for layer in kept) for kept in model.layers
    )
    return replace(model, layers=layers)


def _old_latent(layer: CachedLayer, model: Architecture, release: Release) -> CachedLayer:
    if not isinstance(layer, LatentLayerSpec):
        return layer
    if release.latent_form == "padded":
        return replace(layer, alignment=_PADDED_BYTES)
    return AttentionLayerSpec(max(1, model.num_heads), _EXPANDED_SIZE, layer.dtype)


def _block_size(model: Architecture, options: PoolOptions, layers: Sequence[CachedLayer]) -> int:
    if all(layer.kind == StateLayerSpec.kind for layer in layers):
        return options.block_size or model.max_model_len or DEFAULT_BLOCK_SIZE
    default = LATENT_BLOCK_SIZE if model.has_latents else DEFAULT_BLOCK_SIZE
    block_size, alignment = options.block_size or default, STATE_ALIGNMENT
    if options.mamba_cache_mode == "all":
        chunk = options.mamba_block_size or model.state_chunk
        alignment = math.lcm(chunk, max(block_size, STATE_ALIGNMENT))
    return aligned_block_size(layers, block_size, alignment)


def _cached_stages(
    per_layer: Sequence[Sequence[CachedLayer]], options: PoolOptions
) -> tuple[range, ...]:
    """The stages' layers, counted as cached layers: a layer may keep nothing, or two things."""
    starts = [0]
    for kept in per_layer:
        starts.append(starts[-1] + len(kept))
    stages = stages_of(len(per_layer), options.pipeline_parallel_size, options.pipeline_split)
    return tuple(range(starts[stage.start], starts[stage.stop]) for stage in stages)
