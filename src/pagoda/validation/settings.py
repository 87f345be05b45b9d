"""What a post leaves open about a start-up: every possibility, the likeliest first.

What is stated stands. What is not takes vLLM's default, and where the default hangs on something
that is not said either (the release, how states are shared, the tokens of a batch), each value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pagoda.cache.latent import PACKED_FP8, LatentLayerSpec
from pagoda.cache.layer import CachedLayer
from pagoda.cache.layers import (
    ChunkedLayerSpec,
    CrossAttentionLayerSpec,
    SlidingWindowLayerSpec,
)
from pagoda.cache.state import StateLayerSpec
from pagoda.planning.architecture import Architecture
from pagoda.planning.groups import kinds_of, stages_of
from pagoda.planning.pool import LATENT_BLOCK_SIZE, MAMBA_CACHE_MODES, PoolOptions
from pagoda.planning.releases import Release, releases_told
from pagoda.validation.observed import Observation

_BATCHES = (8192, 2048, 16_384)
"""Defaults of max_num_batched_tokens: large devices, others, and offline use on large ones."""
_LATENT_BLOCKS = (LATENT_BLOCK_SIZE, 128, 32, 16)
_OTHER_DEVICE = re.compile(r"\b(cpu|npu|ascend|hpu|gaudi|xpu|tpu)\b", re.IGNORECASE)
"""Devices whose blocks have 128 tokens where nothing is said."""
_WINDOWED = (SlidingWindowLayerSpec.kind, ChunkedLayerSpec.kind)
_MOST_DRAFTED = 8
_NO_DRAFT = (0, 0)


@dataclass(frozen=True, slots=True)
class Setting:
    """One possibility: model, rules, options and what of it was not stated."""

    model: Architecture
    """With the layers of its draft."""
    release: Release
    options: PoolOptions
    unstated: tuple[str, ...]
    counts_layers: bool = False
    """What a request needs was counted layer by layer, without the padding of groups."""


def settings_of(seen: Observation, model: Architecture) -> Iterator[Setting]:
    """Every possibility that the post leaves open, the most likely first."""
    for drafted in _drafts(seen, model):
        yield from _with_draft(seen, model, drafted)


@dataclass(frozen=True, slots=True)
class _Possibility:
    """One value for everything that may have been left open."""

    release: Release
    keeps_all: bool
    """Windows free nothing."""
    mode: str
    state_dtype: str | None
    stored: str
    block_size: int | None
    under_way_tokens: int
    encoder_tokens: int | None
    counts_layers: bool
    draft: tuple[int, int]
    """Its layers, and the tokens that it proposes."""

    def oddity(self, usual_block: int | None) -> int:
        """By how much it is out of the ordinary."""
        odd = (
            self.keeps_all, self.mode == "all", self.state_dtype is not None,
            self.block_size != usual_block, self.counts_layers,
        )  # fmt: skip
        return sum(odd)


def _with_draft(
    seen: Observation, model: Architecture, draft: tuple[int, int]
) -> Iterator[Setting]:
    kinds = set(kinds_of(model.cached_layers))
    is_windowed = bool(kinds.intersection(_WINDOWED))
    batches = (seen.max_num_batched_tokens,) if seen.max_num_batched_tokens else _BATCHES
    modes = (seen.mamba_cache_mode,) if seen.mamba_cache_mode else MAMBA_CACHE_MODES
    is_mixed = len({layer.shares_blocks_with for layer in model.cached_layers}) > 1
    blocks = _block_sizes(seen, kinds)
    values = itertools.product(
        releases_of_model(seen, model),
        (False, True) if is_windowed else (False,),
        modes if model.has_states else ("none",),
        (None, "float32") if model.has_states else (None,),
        _stored_forms(seen, model),
        blocks,
        [n * times for n in batches for times in (1, 2)] if is_windowed else [batches[0]],
        (None, *batches) if CrossAttentionLayerSpec.kind in kinds else (None,),
        (False, True) if is_mixed and seen.needed_gib is not None else (False,),
        [draft],
    )
    possible = [_Possibility(*one) for one in values]
    whole = _drafting(model, draft[0])
    for one in sorted(possible, key=lambda one: one.oddity(blocks[0])):
        rules = replace(one.release, forms_groups=False) if one.keeps_all else one.release
        options = _options(seen, model, one)
        unstated = _unstated(seen, model, one, is_windowed=is_windowed)
        yield Setting(whole, rules, options, unstated, one.counts_layers)


def _options(seen: Observation, model: Architecture, one: _Possibility) -> PoolOptions:
    layers, tokens = one.draft
    return PoolOptions(
        kv_cache_dtype=one.stored,
        dtype=seen.dtype,
        block_size=one.block_size,
        tensor_parallel_size=seen.tensor_parallel_size,
        pipeline_parallel_size=seen.pipeline_parallel_size,
        pipeline_split=_split(seen, model, layers),
        context_parallel_size=seen.context_parallel_size,
        under_way_tokens=one.under_way_tokens,
        mamba_cache_mode=one.mode,
        mamba_block_size=seen.mamba_block_size,
        drafted_tokens=tokens,
        packs_sparse_latents=False,
        state_dtype=one.state_dtype,
        encoder_tokens=one.encoder_tokens,
    )


def _unstated(
    seen: Observation, model: Architecture, one: _Possibility, *, is_windowed: bool
) -> tuple[str, ...]:
    """What of a possibility the post does not say, in words."""
    layers, tokens = one.draft
    said: dict[str, bool] = {
        f"release {one.release.name}": seen.version is not None,
        "windows kept whole": not one.keeps_all,
        _words_of_mode(one.mode): not model.has_states or seen.mamba_cache_mode is not None,
        f"states in {one.state_dtype}": one.state_dtype is None,
        f"stored as {one.stored}": one.stored == seen.kv_cache_dtype,
        f"blocks of {one.block_size} tokens": one.block_size == seen.block_size,
        f"{one.under_way_tokens} tokens under way": not is_windowed or one.keeps_all,
        f"{one.encoder_tokens} tokens of the encoder": one.encoder_tokens is None,
        f"a draft of {layers} layers and {tokens} tokens": _says_draft(seen, one.draft),
        "needs counted layer by layer": not one.counts_layers,
    }
    return tuple(words for words, is_known in said.items() if not is_known)


def _words_of_mode(mode: str) -> str:
    told = {"none": "not shared", "align": "shared", "all": "kept for every block"}
    return f"states are {told[mode]}"


def releases_of_model(seen: Observation, model: Architecture) -> tuple[Release, ...]:
    """The rules that the stated version may mean; how latents were cached matters to MLA alone."""
    told = releases_told(seen.version)
    if model.has_latents:
        return told
    return tuple(release for release in told if release.latent_form == "whole") or told[:1]


def _drafts(seen: Observation, model: Architecture) -> list[tuple[int, int]]:
    """Layers of a draft and the tokens that it proposes. Only states depend on these."""
    draft = seen.draft
    if draft is None:
        return [_NO_DRAFT]
    told = draft.num_tokens
    tokens = (told,) if told is not None else tuple(range(1, _MOST_DRAFTED + 1))
    counts = (1, 0) if draft.num_layers is None else (draft.num_layers,)
    found = [(layers, n) for layers in counts for n in (tokens if model.has_states else tokens[:1])]
    return found if draft.is_certain else [*found, _NO_DRAFT]


def _says_draft(seen: Observation, drafted: tuple[int, int]) -> bool:
    if seen.draft is None:
        return True
    return seen.draft.is_certain and drafted == (seen.draft.num_layers, seen.draft.num_tokens)


def _drafting(model: Architecture, num_layers: int) -> Architecture:
    """The model with the layers that predict further tokens: as its last that keeps every token."""
    if not num_layers:
        return model
    last = _last_full(model)
    return replace(model, layers=(*model.layers, *((last,),) * num_layers))


def _last_full(model: Architecture) -> CachedLayer:
    layers = model.cached_layers
    full = [layer for layer in layers if layer.shares_blocks_with == ("full",)]
    return (full or list(layers))[-1]


def _split(seen: Observation, model: Architecture, drafted: int) -> tuple[int, ...] | None:
    """Layers of each stage; those of a draft are on the last."""
    split, count = seen.pipeline_split, seen.pipeline_parallel_size
    if not drafted or count == 1:
        return split
    stages = split or tuple(len(stage) for stage in stages_of(len(model.layers), count))
    return (*stages[:-1], stages[-1] + drafted)


def _block_sizes(seen: Observation, kinds: set[str]) -> tuple[int | None, ...]:
    """The size that was stated, or those that kernels ask for: None is the default of 16."""
    if seen.block_size is not None:
        return (seen.block_size,)
    if LatentLayerSpec.kind in kinds:
        return _LATENT_BLOCKS
    if StateLayerSpec.kind in kinds:
        return (None, 32, 64)
    return (128, None) if _OTHER_DEVICE.search(seen.gpu or "") else (None,)


def _stored_forms(seen: Observation, model: Architecture) -> tuple[str, ...]:
    """Sparse latents have a packed form of fp8, which some releases and devices take."""
    if model.has_sparse_latents and seen.kv_cache_dtype.startswith(("fp8", "auto")):
        return (PACKED_FP8, seen.kv_cache_dtype)
    return (seen.kv_cache_dtype,)
