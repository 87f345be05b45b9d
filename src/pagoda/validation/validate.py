"""Predictions of start-ups that were observed, held against what was printed.

Everything the post states is used as it stands. What it does not say takes vLLM's default, and
where the default depends on something unsaid too (the release, whether states are shared, the
tokens of a batch), each possibility is computed and the one that fits is named. A hit needs one
number of blocks, from the memory that was printed, that gives all printed figures at once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.layers import (
    ChunkedLayerSpec,
    CrossAttentionLayerSpec,
    SlidingWindowLayerSpec,
)
from pagoda.cache.state import StateLayerSpec
from pagoda.errors import RefusedError
from pagoda.planning.architecture import Architecture
from pagoda.planning.groups import GroupedPool
from pagoda.planning.pool import LATENT_BLOCK_SIZE, PACKED_FP8, PoolOptions, build_pool
from pagoda.planning.releases import DISTINCT, Release, read_version, release_of
from pagoda.sizing.capacity import GIB
from pagoda.validation.device_memory import memory_of_device
from pagoda.validation.observed import Observation, Span
from pagoda.validation.shapes import read_shape
from pagoda.validation.verdict import Figures, Verdict

_BATCHES = (8192, 2048, 16_384)
"""Defaults of max_num_batched_tokens: large devices, others, and offline use on large ones."""
_LATENT_BLOCKS = (LATENT_BLOCK_SIZE, 128, 32, 16)
_OTHER_DEVICE = re.compile(r"\b(cpu|npu|ascend|hpu|gaudi|xpu|tpu)\b", re.IGNORECASE)
"""Devices whose blocks have 128 tokens where nothing is said."""
_HOST_POOL_BYTES = 4 * GIB
_WINDOWED = (SlidingWindowLayerSpec.kind, ChunkedLayerSpec.kind)
_KV_DTYPE, _TP = "kv_cache_dtype", "tensor_parallel_size"
_EXPLAINED_BY: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "what was printed is the need of all layers, not of the stage's own",
        {"pipeline_parallel_size": 1, "pipeline_split": None},
    ),
    *(
        (f"the figures fit a cache in {name}, which the record does not say", {_KV_DTYPE: name})
        for name in ("fp8", "bfloat16", "float32", "int8_per_token_head", "int4_per_token_head")
    ),
    *(
        (
            f"the figures fit {size} tensor-parallel ranks, which the record does not say",
            {_TP: size},
        )
        for size in (1, 2, 4, 8)
    ),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One possibility: rules, options and what of it was not stated."""

    release: Release
    options: PoolOptions
    unstated: tuple[str, ...]


def validate(
    observations: list[Observation], shapes: Mapping[str, Mapping[str, Any]]
) -> list[Verdict]:
    """A verdict for each observation."""
    return [_judge(seen, shapes) for seen in observations]


def _judge(seen: Observation, shapes: Mapping[str, Mapping[str, Any]]) -> Verdict:
    key = seen.config_key
    if key is None:
        return _judge_figures(seen)
    if key not in shapes:
        return Verdict(seen.id, "memory", {}, seen.figures, f"no shape is given for {key!r}")
    try:
        return _judge_pool(seen, read_shape(shapes[key], key))
    except RefusedError as error:
        return Verdict(seen.id, "memory", {}, seen.figures, str(error))


def _judge_pool(seen: Observation, model: Architecture) -> Verdict:
    if not seen.figures and seen.num_host_blocks is None:
        return Verdict(seen.id, "memory", {}, {}, "nothing was printed that could be compared")
    first: Verdict | None = None
    for setting in _settings(seen, model):
        basis, available = _memory(seen, setting)
        predicted, fits = _predict(seen, model, setting, available)
        observed = _wanted(seen, starts_from_blocks=available is None)
        if fits and predicted:
            said = ", ".join(setting.unstated)
            return Verdict(seen.id, basis, predicted, observed, "", said)
        first = first or Verdict(seen.id, basis, predicted, observed, "to be explained")
    assert first is not None
    return replace(first, reason=_explain(seen, model))


def _settings(seen: Observation, model: Architecture) -> Iterator[Setting]:
    """Every possibility that the post leaves open, the most likely first."""
    version = read_version(seen.version) if seen.version else None
    releases = DISTINCT if version is None else (release_of(version),)
    kinds = {layer.kind for layer in model.cached_layers}
    windowed, has_encoder = (
        bool(kinds.intersection(_WINDOWED)),
        CrossAttentionLayerSpec.kind in kinds,
    )
    batches = (seen.max_num_batched_tokens,) if seen.max_num_batched_tokens else _BATCHES
    states = (False, True) if model.has_states else (False,)
    possibilities = itertools.product(
        releases,
        (False, True) if windowed else (False,),
        states,
        (None, "float32") if model.has_states else (None,),
        _stored_forms(seen, model),
        _block_sizes(seen, kinds),
        [n * times for n in batches for times in (1, 2)] if windowed else [batches[0]],
        (None, *batches) if has_encoder else (None,),
    )
    usual = _block_sizes(seen, kinds)[0]
    likeliest_first = sorted(  # by how much is out of the ordinary
        possibilities, key=lambda p: (p[1] is True) + (p[3] is not None) + (p[5] != usual)
    )
    for release, whole, shares, state, stored, block, flying, encoder in likeliest_first:
        said: dict[str, bool] = {
            f"release {release.name}": version is not None,
            "windows kept whole": not whole,
            f"states {'are' if shares else 'not'} shared": not model.has_states,
            f"states in {state}": state is None,
            f"stored as {stored}": stored == seen.kv_cache_dtype,
            f"blocks of {block} tokens": block == seen.block_size,
            f"{flying} tokens in flight": not windowed or whole,
            f"{encoder} tokens of the encoder": encoder is None,
        }
        options = PoolOptions(
            kv_cache_dtype=stored,
            dtype=seen.dtype,
            block_size=block,
            tensor_parallel_size=seen.tensor_parallel_size,
            pipeline_parallel_size=seen.pipeline_parallel_size,
            pipeline_split=seen.pipeline_split,
            context_parallel_size=seen.context_parallel_size,
            under_way_tokens=flying,
            shares_states=shares,
            packs_sparse_latents=False,
            state_dtype=state,
            encoder_tokens=encoder,
        )
        rules = replace(release, forms_groups=False) if whole else release
        yield Setting(rules, options, tuple(words for words, known in said.items() if not known))


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


def _predict(
    seen: Observation, model: Architecture, setting: Setting, available: Span | None
) -> tuple[Figures, bool]:
    """What would have been printed, and whether it was."""
    pool = build_pool(model, setting.options, setting.release)
    if available is None:
        num_blocks = Span(seen.num_blocks or 0, seen.num_blocks or 0)
    else:
        num_blocks = Span(pool.num_blocks_in(available.low), pool.num_blocks_in(available.high))
    wanted = _wanted(seen, starts_from_blocks=available is None)
    for count in range(num_blocks.low, num_blocks.high + 1):
        figures = _figures(seen, pool, setting.release, count)
        found = {name: figures.get(name) for name in wanted}
        if found == wanted:
            return {name: figures[name] for name in wanted}, True
    middle = _figures(seen, pool, setting.release, (num_blocks.low + num_blocks.high) // 2)
    return {name: middle[name] for name in wanted if name in middle}, False


def _figures(seen: Observation, pool: GroupedPool, release: Release, num_blocks: int) -> Figures:
    figures: Figures = {
        "num_gpu_blocks": num_blocks,
        "num_cpu_blocks": pool.num_blocks_in(_HOST_POOL_BYTES),
    }
    length = seen.max_model_len
    if length is not None:
        needed = pool.num_blocks(length)
        figures["max_concurrency"] = f"{release.concurrency(pool, num_blocks, length):.2f}"
        figures["needed_gib"] = round(needed * pool.block_bytes / GIB, 2)
    figures["kv_cache_tokens"] = release.print_tokens(pool, num_blocks, length or pool.block_size)
    return figures


def _wanted(seen: Observation, *, starts_from_blocks: bool) -> Figures:
    """The printed figures that are to be predicted: not those that the prediction starts from."""
    if not starts_from_blocks:
        return seen.figures
    figures = {name: figure for name, figure in seen.figures.items() if name != "num_gpu_blocks"}
    if seen.num_host_blocks is not None:
        figures["num_cpu_blocks"] = seen.num_host_blocks
    return figures


def _memory(seen: Observation, setting: Setting) -> tuple[str, Span | None]:
    """What the prediction starts from: the memory printed, or the blocks, or the device."""
    if seen.available is not None:
        return "memory", seen.available
    if seen.num_blocks is not None:
        return "blocks", None
    span = memory_of_device(seen, setting.options, setting.release)
    return "device", span or Span(0, 0)


def _judge_figures(seen: Observation) -> Verdict:
    """Without a shape one printed figure still gives the other."""
    if seen.num_tokens is None or seen.max_model_len is None or seen.concurrency is None:
        return Verdict(seen.id, "figures", {}, seen.figures, "neither a shape nor two figures")
    concurrency = f"{seen.num_tokens / seen.max_model_len:.2f}"
    reason = (
        ""
        if concurrency == seen.concurrency
        else ("the model's shape is not given, and the figures are not those of equal layers")
    )
    return Verdict(
        seen.id, "figures", {"max_concurrency": concurrency}, {"max_concurrency": seen.concurrency},
        reason, "the model's shape: only the concurrency follows from the tokens",
    )  # fmt: skip


def _explain(seen: Observation, model: Architecture) -> str:
    """Which single change would have made it a hit; of a wide range none says anything."""
    if seen.available is None and seen.num_blocks is None:
        return (
            f"neither memory nor blocks were printed, and from the device {seen.gpu!r} and what "
            "was printed about weights and activations these figures do not follow"
        )
    for words, change in _EXPLAINED_BY:
        for setting in _settings(seen, model):
            try:
                options = replace(setting.options, **change)
                changed = replace(setting, options=options)
                available = _memory(seen, changed)[1]
                fits = options != setting.options and _predict(seen, model, changed, available)[1]
            except RefusedError:
                continue
            if fits:
                return words
    return "no number of blocks in the printed memory gives these figures"
