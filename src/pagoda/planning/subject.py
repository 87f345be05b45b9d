"""What is planned: model, draft, flags and machine, read once and compared with one another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagoda.cache.formats import canonical
from pagoda.cache.latent import latent_format
from pagoda.cache.layer import CachedLayer
from pagoda.cache.layers import (
    ChunkedLayerSpec,
    CrossAttentionLayerSpec,
    SlidingWindowLayerSpec,
    keeping,
)
from pagoda.cache.retention import most_positions, require_retention
from pagoda.cache.spec import CacheSpec
from pagoda.cache.window import EVERY_TOKEN, AttentionWindow
from pagoda.errors import InvalidOptionError
from pagoda.planning.architecture import (
    ENCODER_TOKENS,
    Architecture,
    read_architecture,
    read_architecture_in_pagoda,
)
from pagoda.planning.checks import dtype_of_run, max_model_len_of, require_divisible
from pagoda.planning.groups import GroupedPool, kinds_of
from pagoda.planning.pagoda import PagodaDevice, pagoda_device, windowed
from pagoda.planning.planned_engine import PlannedEngine
from pagoda.planning.pool import (
    CPU_BLOCK_SIZE,
    PoolOptions,
    build_pool,
    rank_layers,
)
from pagoda.planning.releases import NEWEST, first_seen
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.tables import Accelerator, find_accelerator
from pagoda.planning.vllm_formats import require_in_vllm
from pagoda.planning.weights import Weights, weights_in_pagoda, weights_in_vllm
from pagoda.sizing.cache_formats import AUTO, CacheFormats, require_heads
from pagoda.sizing.device_policy import (
    DEFAULT_BLOCK_SIZE,
    DevicePolicy,
    require_kept_latents,
    under_way_tokens,
)
from pagoda.sizing.readable_blocks import require_readable
from pagoda.sizing.step_limits import StepLimits, gpu_limits

_PLAIN_SPARSE_LATENTS = ("B200", "B300", "GB200", "GB300")
"""Devices whose kernels read sparse latents as plain fp8 numbers."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A request with all that follows from it before any memory is looked at."""

    facts: ModelFacts
    request: PlanRequest
    model: Architecture
    engine: PlannedEngine
    device: Accelerator | None
    pagoda: PagodaDevice | None
    """How Pagoda runs there; None where the engine is vLLM."""
    dtype: str
    made_for: int | None
    """Positions of the model, as the engine reads them."""
    max_model_len: int
    context: int
    batch: StepLimits
    options: PoolOptions
    weights: Weights
    draft_weights: Weights | None
    pool: GroupedPool
    warnings: tuple[str, ...]

    @property
    def on_cpu(self) -> bool:
        if self.pagoda is not None:
            return self.pagoda.policy.kind == "CPU"
        return self.device is not None and self.device.is_cpu

    @property
    def device_bytes(self) -> int | None:
        """Memory of one device; None where none was named."""
        if self.request.memory is not None:
            return self.request.memory
        return None if self.device is None else self.device.memory_bytes

    @property
    def longest(self) -> int | None:
        """Tokens of the longest request that there may be; None: it is not known."""
        if self.made_for is None:
            return None
        return most_positions(self.made_for, self.request.retention)

    @property
    def kept_layers(self) -> list[CachedLayer]:
        """What one rank keeps of the model's layers, and reads."""
        return _kept_layers(self.model, self.options, self.request.retention)

    @property
    def devices(self) -> str:
        """What it is planned for, in words."""
        name = self.device.name if self.device else "a device of the memory given"
        return f"{self.request.num_devices} × {name}"

    @property
    def quantization(self) -> str | None:
        """How weights are stored, where they are no plain numbers."""
        return self.weights.stored_as

    def weights_under(self, quantization: str | None) -> Weights:
        """The weights with another `--quantization`."""
        request = replace(self.request, quantization=quantization)
        dtype = _dtype(request, self.model, self.device, self.pagoda)
        return _weights(self.facts, request, self.model, dtype, self.pagoda)


def read_subject(facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None) -> Subject:
    """Read everything. Raises `RefusedError` for what cannot be read or does not go together."""
    engine = request.planned_engine
    model = _architecture(facts, engine)
    device = None if request.gpu is None else find_accelerator(request.gpu)
    pagoda = pagoda_device(device) if engine.is_pagoda else None
    extends_yarn = engine.is_pagoda or engine.release.extends_yarn
    made_for = model.extended_max_model_len if extends_yarn else model.max_model_len
    max_model_len = max_model_len_of(request, made_for)
    dtype = _dtype(request, model, device, pagoda)
    require_divisible(request, model)
    batch = _batch(request, device, pagoda)
    options = _pool_options(request, engine, model, device, dtype, batch[0])
    whole, draft_weights = model, None
    if draft is not None:
        drafting = _read_draft(draft, request, engine)
        whole = replace(model, layers=(*model.layers, *drafting.layers))
        draft_weights = weights_in_vllm(draft, drafting, dtype, None)
    weights = _weights(facts, request, model, dtype, pagoda)
    return Subject(
        facts=facts,
        request=request,
        model=model,
        engine=engine,
        device=device,
        pagoda=pagoda,
        dtype=dtype,
        made_for=made_for,
        max_model_len=max_model_len,
        context=_context(request, max_model_len),
        batch=batch,
        options=options,
        weights=weights,
        draft_weights=draft_weights,
        pool=(
            build_pool(whole, options, engine.release)
            if pagoda is None
            else _pagoda_pool(whole, options, pagoda.policy, request, made_for)
        ),
        warnings=(
            *whole.assumed,
            *weights.assumed,
            *_doubts(request, model, engine, device, has_draft=draft is not None),
        ),
    )


def _architecture(facts: ModelFacts, engine: PlannedEngine) -> Architecture:
    """The model as the engine that is planned for reads it."""
    if not engine.is_pagoda:
        return read_architecture(facts.config)
    if facts.refused_by_pagoda is not None:
        raise facts.refused_by_pagoda
    return read_architecture_in_pagoda(facts.config)


def _dtype(
    request: PlanRequest,
    model: Architecture,
    device: Accelerator | None,
    pagoda: PagodaDevice | None,
) -> str:
    """Of the run."""
    if pagoda is None:
        return dtype_of_run(request, model.dtype, device)
    return pagoda.policy.dtype(canonical(request.dtype), model.dtype, request.quantization)


def _weights(
    facts: ModelFacts,
    request: PlanRequest,
    model: Architecture,
    dtype: str,
    pagoda: PagodaDevice | None,
) -> Weights:
    """As the engine that is planned for holds them."""
    if pagoda is None:
        return weights_in_vllm(facts, model, dtype, request.quantization)
    return weights_in_pagoda(facts, request, model, dtype, pagoda.policy)


def _read_draft(draft: ModelFacts, request: PlanRequest, engine: PlannedEngine) -> Architecture:
    model = _architecture(draft, engine)
    require_divisible(request, model)
    if engine.is_pagoda:
        raise InvalidOptionError("speculative_model", draft.name, "Pagoda runs no draft model")
    if request.pipeline_parallel_size > 1:
        limit = "a draft model beside a pipeline is not planned for"
        raise InvalidOptionError("speculative_model", draft.name, limit)
    return model


def _context(request: PlanRequest, max_model_len: int) -> int:
    context = request.context or max_model_len
    if context > max_model_len:
        raise InvalidOptionError("context", context, f"at most max_model_len, {max_model_len}")
    if request.shared_prefix > context:
        limit = f"at most the context, {context}"
        raise InvalidOptionError("shared_prefix", request.shared_prefix, limit)
    return context


def _batch(
    request: PlanRequest, device: Accelerator | None, pagoda: PagodaDevice | None
) -> StepLimits:
    memory = request.memory or (device.memory_bytes if device else 0)
    if device is not None and device.is_cpu:
        memory = 0  # however much a CPU has, vLLM's steps are small there
    default = (
        gpu_limits(memory, device.name if device else "")
        if pagoda is None
        else pagoda.policy.default_limits
    )
    limits = default.or_given(request.max_num_batched_tokens, request.max_num_seqs)
    asked = request.max_num_seqs
    if pagoda is None and asked is not None and asked > limits.max_num_seqs:
        limit = f"vLLM takes no more than max_num_batched_tokens, {limits.max_num_batched_tokens}"
        raise InvalidOptionError("max_num_seqs", asked, limit)
    return limits


def _pool_options(
    request: PlanRequest,
    engine: PlannedEngine,
    model: Architecture,
    device: Accelerator | None,
    dtype: str,
    max_num_batched_tokens: int,
) -> PoolOptions:
    formats = CacheFormats(request.kv_cache_dtype, tuple(request.kv_cache_dtype_skip_layers or ()))
    stored = request.kv_cache_dtype
    if engine.is_pagoda:
        policy = pagoda_device(device).policy
        formats.require_one_of(policy.cache_formats(dtype), policy.kind)
        kept = [layer.vectors for layer in model.cached_layers]
        sizes = [None if vectors is None else vectors.head_size for vectors in kept]
        of_layers = formats.of_layers(model.windowed, dtype)
        require_heads(of_layers, sizes)
        if model.has_latents and stored != AUTO:
            stored = next((name for name in map(latent_format, of_layers) if name != dtype), dtype)
    else:
        require_in_vllm(stored)
    on_cpu = device is not None and device.is_cpu
    has_encoder = CrossAttentionLayerSpec.kind in kinds_of(model.cached_layers)
    return PoolOptions(
        kv_cache_dtype=stored,
        kv_cache_dtype_skip_layers=formats.skip_layers,
        dtype=dtype,
        block_size=request.block_size
        or (CPU_BLOCK_SIZE if on_cpu and not engine.is_pagoda else None),
        tensor_parallel_size=request.tensor_parallel_size,
        pipeline_parallel_size=request.pipeline_parallel_size,
        under_way_tokens=max_num_batched_tokens
        * _batches_under_way(request, engine, on_cpu=on_cpu),
        mamba_cache_mode=request.mamba_cache_mode or _cache_mode(engine),
        mamba_block_size=request.mamba_block_size,
        packs_sparse_latents=device is None or device.name not in _PLAIN_SPARSE_LATENTS,
        state_dtype=request.mamba_ssm_cache_dtype,
        encoder_tokens=max(max_num_batched_tokens, ENCODER_TOKENS) if has_encoder else None,
    )


def _cache_mode(engine: PlannedEngine) -> str:
    """How the engine keeps states where nothing is said; Pagoda runs no model that has any."""
    return "align" if not engine.is_pagoda and engine.release.shares_states else "none"


def _batches_under_way(request: PlanRequest, engine: PlannedEngine, *, on_cpu: bool) -> int:
    """A batch of vLLM's for each stage; on one stage of a GPU the next is scheduled ahead.

    What Pagoda schedules ahead its policy adds.
    """
    if engine.is_pagoda or not engine.release.runs_ahead:
        return 1
    num_stages = request.pipeline_parallel_size
    return num_stages if num_stages > 1 or on_cpu else 2


def _doubts(
    request: PlanRequest,
    model: Architecture,
    engine: PlannedEngine,
    device: Accelerator | None,
    *,
    has_draft: bool,
) -> list[str]:
    """What was taken for granted, in words."""
    kinds, windows = kinds_of(model.cached_layers), SlidingWindowLayerSpec.kind
    release = engine.vllm
    newest = ".".join(map(str, NEWEST[:2]))
    seen = ".".join(map(str, first_seen(request.kv_cache_dtype)))
    doubts = {
        f"a cache in {request.kv_cache_dtype} was seen in vllm {seen} and later: "
        f"{engine.version} may refuse it": not engine.knows_format(request.kv_cache_dtype),
        f"{engine.title} is not known: planned for by the rules of {newest}": engine.is_newer,
        "with a draft a step may give several tokens: no bound of speed or of their cost is told": (
            has_draft and device is not None
        ),
        "no device is named: taken for the CPUs of a machine of that memory": (
            engine.is_pagoda and request.memory is not None
        ),
        "no device is named: taken for a GPU, which schedules a second batch ahead": (
            device is None and release is not None and release.runs_ahead and windows in kinds
        ),
        "releases before 0.20 may keep chunks whole, and hold fewer requests": (
            ChunkedLayerSpec.kind in kinds
            and release is not None
            and release.forms_groups
            and not release.runs_ahead
        ),
        "the device's memory follows from its catalogue and was not read on one": (
            device is not None and device.is_derived
        ),
    }
    return [words for words, holds in doubts.items() if holds]


def _kept_layers(
    model: Architecture, options: PoolOptions, retention: AttentionWindow
) -> list[CachedLayer]:
    layers = [layer for kept in rank_layers(model, options) for layer in kept]
    if retention.is_full:
        return layers
    return [keeping(windowed(layer), retention) for layer in layers]


def _pagoda_pool(
    model: Architecture,
    options: PoolOptions,
    policy: DevicePolicy,
    request: PlanRequest,
    made_for: int | None,
) -> GroupedPool:
    """The same `CacheSpec` that Pagoda's engine allocates.

    Raises `InvalidOptionError` for a retention, or a block size, that the engine would refuse.
    """
    block_size, longest = options.block_size or DEFAULT_BLOCK_SIZE, made_for or EVERY_TOKEN
    require_retention(request.retention, block_size=block_size, most_tokens=longest)
    layers = tuple(map(windowed, _kept_layers(model, options, request.retention)))
    under_way = under_way_tokens(
        policy,
        options.under_way_tokens,
        block_size,
        requests_choose=request.request_kv_retention,
    )
    require_kept_latents(
        policy, layers, request.retention, requests_choose=request.request_kv_retention
    )
    spec = CacheSpec(layers, block_size, under_way)
    require_readable(policy, spec)
    return GroupedPool(
        groups=spec.groups,
        stages=(range(len(layers)),),
        under_way_tokens=spec.under_way_tokens,
    )
