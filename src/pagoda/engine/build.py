"""A model in memory, and the one place where the rooms are wired together to an engine for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pagoda.cache import CacheManager
from pagoda.cache.formats import PLAIN_BITS
from pagoda.cache.quota import Quota, require_quotas
from pagoda.cache.retention import require_length
from pagoda.cache.spec import CacheSpec
from pagoda.cache.watcher import CacheWatcher
from pagoda.engine.cache_watchers import CacheWatchers
from pagoda.engine.core import Engine
from pagoda.engine.devices.backend import Backend, FormPacking, Loaded, Running, Weights
from pagoda.engine.devices.cache_spec import asked_formats, cache_spec_of
from pagoda.engine.devices.find import find_backend
from pagoda.engine.intake import Intake
from pagoda.engine.options import EngineOptions
from pagoda.engine.own_process import process_of_kernels
from pagoda.engine.retention_rules import RetentionRules
from pagoda.engine.sessions.arriving import ArrivingSessions
from pagoda.engine.sessions.loads_beside_sessions import LoadsBesideSessions
from pagoda.engine.sessions.wiring import sessions_of
from pagoda.engine.step_watch import StepWatch
from pagoda.engine.tenant_quota import TenantQuota, parse_quotas
from pagoda.engine.transfers.facts import namespace_of
from pagoda.engine.transfers.first_rate import measure_prefill
from pagoda.engine.transfers.shelves import shelves_of
from pagoda.engine.transfers.wiring import TierWiring
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import FORMATS, load_spec
from pagoda.models.locate import ModelFiles, locate
from pagoda.models.registry import weight_names
from pagoda.models.tokenizer import Tokenizer
from pagoda.models.weight_parts import DecoderParts
from pagoda.models.weights import OnProgress
from pagoda.scheduling import Scheduler
from pagoda.scheduling.prefix_loads import NoLoads
from pagoda.sizing.capacity import Capacity
from pagoda.sizing.device_policy import DevicePolicy
from pagoda.sizing.held_weights import HeldWeights, hold
from pagoda.sizing.kept_windows import kept_line
from pagoda.sizing.quantised_weights import RECIPES, quantised_types
from pagoda.sizing.stored_cache import StoredCache, stored_cache
from pagoda.tiers.key_file import check_secret, read_secret
from pagoda.tiers.kinds import require_tier
from pagoda.tiers.namespace import Namespace
from pagoda.tiers.packing import Packing
from pagoda.tiers.shares import Share, Shares
from pagoda.tiers.tier_option import FORM_FIELD, TierOption

logger = logging.getLogger("pagoda")

_LOSSY = (
    "tiers keep blocks in the form %s: what is loaded from them is near to what was computed, and "
    "answers behind it may be others; `pagoda lab --kv-tier-form` measures it"
)
_NOTHING_QUANTISED = (
    "--quantization %s changes nothing: no matrix is plain and of rows of whole blocks"
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory, which several engines may share."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    loaded: Loaded
    """Its weights, on their device."""
    held: HeldWeights
    """What these take there, and in which types."""
    files: ModelFiles | None = None
    """Where it came from; None: weights alone were given."""
    other_names: tuple[str, ...] = ()
    """By which clients may ask for it as well."""

    @property
    def spec(self) -> DecoderSpec:
        return self.loaded.spec

    @property
    def weights(self) -> Weights:
        return self.loaded.weights

    @property
    def dtype(self) -> str:
        return self.loaded.dtype

    @property
    def backend(self) -> Backend:
        """The backend of the device that the weights are on."""
        return self.loaded.backend


def load_model(options: EngineOptions, on_load: OnProgress | None = None) -> Model:
    """Everything about the model that `options` name, its weights in memory.

    Raises `ModelError`, or `InvalidOptionError` where an option does not suit the model or names a
    tier that can be none, before weights are loaded wherever that can be told; `EngineError` in a
    process forked from one that has run kernels, or was about to.
    """
    _require_key(options)
    for tier in options.kv_tiers:
        if isinstance(tier, TierOption):
            require_tier(tier)
    backend = find_backend(options)
    prepared = backend.prepare(options)
    files = locate(options.model, options.revision)
    spec = load_spec(files, options.max_model_len if options.retention.is_full else None)
    max_model_len = _max_model_len(options, spec)
    tokenizer = Tokenizer(files, special_tokens_in_chats=options.special_tokens_in_chats)
    name, *others = options.served_model_names or (files.name, *files.other_names)
    held = _held(files, spec, backend.policy, options)
    held.require_multiplied_in(options.activation_dtype)
    if options.quantization in RECIPES and not held.quantised:
        logger.warning(_NOTHING_QUANTISED, options.quantization)
    process_of_kernels().require()
    loaded = prepared.load(files, spec, on_load)
    logger.info("weights: %s", held)
    return Model(
        name=name,
        tokenizer=tokenizer,
        max_model_len=max_model_len,
        loaded=loaded,
        held=held,
        files=replace(files),  # what was read and mapped of them does not stay in memory
        other_names=tuple(others),
    )


def _held(
    files: ModelFiles, spec: DecoderSpec, policy: DevicePolicy, options: EngineOptions
) -> HeldWeights:
    of_kind, asked = FORMATS[files.kind], options.quantization
    dtype = policy.dtype(options.dtype, spec.dtype, asked)
    types = of_kind.types(files)
    parts = DecoderParts.of(spec, weight_names(spec.architecture, files.kind, types))
    scheme = of_kind.scheme(files)
    return hold(
        parts,
        dtype,
        types,
        keeps_stored=policy.keeps_stored(dtype, asked),
        quantised=quantised_types(parts, types, asked),
        scheme=None if scheme is None else scheme.title,
    )


def connect(model: Model, options: EngineOptions) -> Engine:
    """The engine that `assemble` makes, for a caller who steps it himself."""
    engine, _ = assemble(model, options)
    return engine


def assemble(model: Model, options: EngineOptions) -> tuple[Engine, Running]:
    """An engine for a model in memory: allocates the cache and wires the rooms together.

    `options` may be others than the model was loaded with, for the same device. Raises
    `InvalidOptionError` for what the device cannot follow, and `CapacityError` if one request of
    the longest length does not fit into the cache.
    """
    process_of_kernels().require()
    started = time.perf_counter()
    model.held.require_multiplied_in(options.activation_dtype)
    sized = model.loaded.size(options, model.max_model_len)
    secret = _secret(options)
    stored = _stored(model, options, sized.capacity)
    _log_cache(model, sized.capacity, stored)
    given = parse_quotas(options.tenant_quotas)
    quotas = quotas_of(given, sized.capacity)
    packing = _packing(model, options, sized.capacity.spec)
    running = sized.start()
    form = "" if packing is None else f"{packing.name} {packing.digest}"
    namespace = _namespace(model, options, sized.capacity.spec, running, form)
    shares = shares_of(quotas, sized.capacity.num_blocks)
    tiers = _tiers(model, options, sized.capacity.spec, namespace, secret, shares, packing)
    watch, watchers = StepWatch(), _watchers(options, sized.capacity, has_quotas=bool(quotas))
    told = [*watchers.all, *(() if tiers is None else tiers.watchers)]
    # What went through another form, or through another calibration of it, is never found.
    codec = " ".join(filter(None, (running.storage.namespace, form)))
    cache = _cache(options, sized.capacity, codec, quotas, told)
    transfers = None
    if tiers is not None:
        args = (cache, running.storage, options.retention, watch.prefill_rate)
        transfers = tiers.transfers(*args)
        most_tokens = min(sized.limits.max_num_batched_tokens, model.max_model_len)
        measure_prefill(cache, running.runner, most_tokens, watch.prefill_rate)
    arriving = ArrivingSessions()
    loads = NoLoads() if transfers is None else transfers.loads
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=sized.limits.max_num_batched_tokens,
        max_num_seqs=sized.limits.max_num_seqs,
        max_model_len=model.max_model_len,
        policy=options.scheduling_policy,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        retention=options.retention,
        tenant_weights={tenant: each.weight for tenant, each in given.items()},
        streams_step_aside=model.backend.policy.streams_step_aside,
        loads=LoadsBesideSessions(loads, arriving),
    )
    engine = Engine(
        model_name=model.name,
        other_names=model.other_names,
        max_model_len=model.max_model_len,
        tokenizer=model.tokenizer,
        intake=_intake(model, options),
        scheduler=scheduler,
        runner=running.runner,
        sampler=running.sampler,
        stored=replace(stored, centred_layers=running.storage.centred_layers),
        misses=watchers.misses,
        curve=watchers.curve,
        block_lives=watchers.lives,
        watch=watch,
        transfers=transfers,
        sessions=sessions_of(
            cache,
            running.storage,
            arriving,
            max_tokens=model.max_model_len,
            shelves=() if tiers is None else tiers.shelves,
            namespace=namespace,
            secret=secret,
        ),
    )
    took_s = time.perf_counter() - started
    logger.info("init engine (profile, create kv cache, warmup model) took %.2f s", took_s)
    return engine, running


def _log_cache(model: Model, capacity: Capacity[CacheSpec], stored: StoredCache) -> None:
    for line in capacity.log_lines(model.backend.policy.kind):
        logger.info(line)
    logger.info("keys and values: %s", stored)
    kept = kept_line(capacity.spec)
    if kept is not None:
        logger.info("%s", kept)


def _watchers(
    options: EngineOptions, capacity: Capacity[CacheSpec], *, has_quotas: bool
) -> CacheWatchers:
    policy, size = options.eviction_policy, options.block_size
    return CacheWatchers.of(capacity.num_blocks, size, policy, has_quotas=has_quotas)


def _cache(
    options: EngineOptions,
    capacity: Capacity[CacheSpec],
    codec: str,
    quotas: Mapping[str, Quota],
    watchers: Sequence[CacheWatcher],
) -> CacheManager:
    return CacheManager(
        capacity.num_blocks,
        options.block_size,
        enable_prefix_caching=options.enable_prefix_caching,
        codec=codec,
        eviction=options.eviction_policy,
        windows=capacity.spec.windows,
        under_way_tokens=capacity.spec.under_way_tokens,
        quotas=quotas,
        watchers=watchers,
    )


def _intake(model: Model, options: EngineOptions) -> Intake:
    return Intake(
        model.tokenizer,
        vocab_size=model.spec.vocab_size,
        max_model_len=model.max_model_len,
        seed=options.seed,
        retention=RetentionRules(
            options.retention,
            options.block_size,
            model.spec.max_position_embeddings,
            takes_requests=options.request_kv_retention,
        ),
    )


def _secret(options: EngineOptions) -> bytes | None:
    """What shared tiers and sessions are sealed with. Raises `InvalidOptionError` for a file that
    is no key."""
    file = options.kv_tier_key_file
    return None if file is None else read_secret("kv_tier_key_file", Path(file))


def _require_key(options: EngineOptions) -> None:
    """Raises as `_secret` does; of what can be read only once nothing is read yet."""
    if options.kv_tier_key_file is not None and not Path(options.kv_tier_key_file).is_fifo():
        check_secret("kv_tier_key_file", Path(options.kv_tier_key_file))


def _packing(model: Model, options: EngineOptions, spec: CacheSpec) -> FormPacking | None:
    """The lossy form of all tiers, if they have one. Raises `InvalidOptionError` as
    `Loaded.packings` does."""
    form = options.kv_tier_form
    if form is None:
        return None
    (packing,) = model.loaded.packings(FORM_FIELD, [form], spec, options)
    logger.warning(_LOSSY, form)
    return packing


def _namespace(
    model: Model, options: EngineOptions, spec: CacheSpec, running: Running, form: str
) -> Namespace | None:
    """Whose blocks can be this engine's; None where no block ever leaves it."""
    if not options.kv_tiers and options.kv_tier_key_file is None:
        return None
    if not options.enable_prefix_caching:
        logger.warning("no block leaves the engine, to a tier or a file: prefix caching is off")
        return None
    codecs = running.storage.namespace
    args = (model.spec, model.held, options.activation_dtype, spec, codecs, running.numerics())
    return namespace_of(model.files, *args, form=form)


def _tiers(
    model: Model,
    options: EngineOptions,
    spec: CacheSpec,
    namespace: Namespace | None,
    secret: bytes | None,
    shares: Shares,
    packing: Packing | None,
) -> TierWiring | None:
    """What options ask for, if anything. Raises `InvalidOptionError` as `shelves_of` does."""
    if not options.kv_tiers or namespace is None:
        return None
    formats = {layer.dtype for layer in spec.layers}
    shelves = shelves_of(
        options.kv_tiers,
        namespace,
        spec.block_bytes,
        PLAIN_BITS[formats.pop()] // 8 if len(formats) == 1 and formats <= PLAIN_BITS.keys() else 1,
        secret=secret,
        is_on_cpu=model.backend.policy.kind == "CPU",
        shares=shares,
        packing=packing,
    )
    name = None if packing is None else packing.name
    return TierWiring(shelves, spec, name) if shelves else None


def shares_of(quotas: Mapping[str, Quota], num_blocks: int) -> dict[str, Share]:
    """Of tiers: what tenants have of the pool's `num_blocks`, as parts."""
    return {
        tenant: Share(quota.floor / num_blocks, quota.cap and quota.cap / num_blocks)
        for tenant, quota in quotas.items()
    }


def quotas_of(given: Mapping[str, TenantQuota], capacity: Capacity[CacheSpec]) -> dict[str, Quota]:
    """Floors and caps in the blocks that there are.

    Raises `InvalidOptionError` for a cap that one longest request exceeds, and for floors that
    leave no room for one.
    """
    num_blocks = capacity.num_blocks
    longest = capacity.spec.num_blocks(capacity.max_model_len)
    quotas = {
        tenant: quota.in_blocks(tenant, num_blocks, longest) for tenant, quota in given.items()
    }
    require_quotas(quotas, num_blocks, longest)
    for tenant, quota in quotas.items():
        cap = "no cap" if quota.cap is None else f"at most {quota.cap}"
        logger.info("tenant %s: floor %d blocks, %s", tenant, quota.floor, cap)
    return quotas


def _stored(model: Model, options: EngineOptions, capacity: Capacity[CacheSpec]) -> StoredCache:
    policy = model.backend.policy
    spec_of = partial(cache_spec_of, model.spec, options, policy)
    formats = policy.cache_formats(model.dtype)
    kept = options.retention
    asked, layers = options.kv_cache_dtype, asked_formats(model.spec, options, model.dtype)
    return stored_cache(asked, model.dtype, layers, capacity, spec_of, formats, kept)


def _max_model_len(options: EngineOptions, spec: DecoderSpec) -> int:
    if options.max_model_len is None:
        return spec.max_position_embeddings
    require_length(options.max_model_len, spec.max_position_embeddings, options.retention)
    return options.max_model_len
