"""The plan: from a model, a machine and flags to what fits, what is printed and how fast it can be.

    memory of a device × utilization
      - weights - activations - runtime - CUDA graphs        ranges, keyed by release
      = memory for the cache, // bytes of a block            exact: `pagoda.planning.pool`
      = blocks -> tokens, concurrency, users, longest context

Every figure that depends on a range is given at both ends; where the memory of the cache was said
(`--kv-cache-memory-bytes`) both are the same.
"""

from __future__ import annotations

from dataclasses import replace

from pagoda.cache.spec import CacheSpec
from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.planning.architecture import Architecture, read_architecture
from pagoda.planning.capacity import format_gib, share_of_free
from pagoda.planning.checks import max_model_len_of, require_divisible
from pagoda.planning.fields import text_config
from pagoda.planning.groups import CacheGroup, GroupedPool, kinds_of
from pagoda.planning.memory import MemoryPart, StageMemory, part_of, tightest
from pagoda.planning.overhead import (
    TrialRun,
    activation_range,
    default_batch,
    graphs_range,
    runtime_range,
)
from pagoda.planning.parameters import count_parameters
from pagoda.planning.pool import (
    CPU_BLOCK_SIZE,
    DEFAULT_BLOCK_SIZE,
    PoolOptions,
    build_pool,
    rank_layers,
)
from pagoda.planning.quantization import scheme_named, scheme_of
from pagoda.planning.question import PoolQuestion
from pagoda.planning.releases import parse_release
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import GroupFigures, Plan, PoolFigures
from pagoda.planning.speed import SpeedFloor, speed_floor
from pagoda.planning.tables import find_accelerator
from pagoda.planning.weights import Weights, loaded_bytes, store_weights

_PAGODA_DTYPES = ("float32", "bfloat16")


def make_plan(facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None = None) -> Plan:
    """The plan of a model on a machine; `draft` is a speculative model beside it.

    Raises `InvalidOptionError` for flags that cannot be, `ModelError` for a config that cannot be
    read, `CapacityError` saying how much is missing where it does not fit.
    """
    return Planner(facts, request, draft).plan()


class Planner:
    """One plan in the making: what was read from the model and the request."""

    def __init__(self, facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None) -> None:
        self.facts, self.request, self.draft_facts = facts, request, draft
        self.is_pagoda = request.engine_name == "pagoda"
        version, self.release = parse_release(request.engine_version)
        self.engine = "pagoda" if self.is_pagoda else f"vllm {version}"
        self.model = read_architecture(facts.config)
        self.device = None if request.gpu is None else find_accelerator(request.gpu)
        self.on_cpu = self.device is not None and self.device.is_cpu and not self.is_pagoda
        self.warnings = list(self.model.assumed)
        extends = self.is_pagoda or self.release.extends_yarn
        own = self.model.extended_max_model_len if extends else self.model.max_model_len
        self.made_for = own
        self.max_model_len = max_model_len_of(request, own)
        self.context = request.context or self.max_model_len
        if self.context > self.max_model_len:
            limit = f"at most max_model_len, {self.max_model_len}"
            raise InvalidOptionError("context", self.context, limit)
        self.dtype = self._dtype()
        self.batch = self._batch()
        require_divisible(request, self.model)
        self.options = self._pool_options()
        self.weights = self._weights(facts, self.model)
        self.pool = self._pool()
        self.question = self._question()

    def plan(self) -> Plan:
        """All answers."""
        request = self.request
        stages = self._stages()
        low, high = self._pools(stages)
        shown = tightest(stages) if stages else None
        speed = self._speed(high)
        return Plan(
            model=self.facts.name,
            source=self.facts.source,
            model_type=self.model.model_type,
            engine=self.engine,
            release="pagoda" if self.is_pagoda else self.release.name,
            gpu=None if self.device is None else self.device.name,
            num_devices=request.num_devices,
            tensor_parallel_size=request.tensor_parallel_size,
            pipeline_parallel_size=request.pipeline_parallel_size,
            dtype=self.dtype,
            quantization=self._scheme_name(),
            kv_cache_dtype=request.kv_cache_dtype,
            block_size=self.pool.block_size,
            max_model_len=self.max_model_len,
            context=self.context,
            users_wanted=request.users,
            shared_prefix=request.shared_prefix,
            parameters=self.weights.parameters.total,
            active_parameters=self.weights.parameters.active,
            weights_bytes=self.weights.total_bytes,
            layer_kinds=dict(kinds_of(self.model.cached_layers)),
            groups=tuple(_group_figures(group, self) for group in self.pool.groups),
            block_bytes=self.pool.block_bytes,
            token_bytes=_token_bytes(self.pool),
            sequence_bytes=self.pool.num_blocks(self.max_model_len) * self.pool.block_bytes,
            memory=() if shown is None else self._memory_parts(shown, low, high),
            device_bytes=None if shown is None else shown.total_bytes,
            low=low,
            high=high,
            is_exact=low is not None and low == high,
            speed=speed,
            cost_per_user=self._cost_per_user(low, high),
            cost_per_million_tokens=self._token_cost(speed),
            warnings=tuple(self.warnings),
        )

    def _dtype(self) -> str:
        known = ("auto", *_PAGODA_DTYPES, "float16", "half")
        if self.request.dtype not in known:
            raise InvalidOptionError("dtype", self.request.dtype, f"one of {', '.join(known)}")
        dtype = self.model.dtype if self.request.dtype == "auto" else self.request.dtype
        dtype = "float16" if dtype == "half" else dtype
        if self.is_pagoda and dtype == "float16" and self.request.dtype == "auto":
            return "bfloat16"  # as Pagoda does on a CPU
        if self.is_pagoda and dtype not in _PAGODA_DTYPES:
            raise InvalidOptionError("dtype", dtype, f"Pagoda knows {', '.join(_PAGODA_DTYPES)}")
        if not self.is_pagoda and dtype == "float32" and self.request.dtype == "auto":
            return "float16"  # vLLM halves a float32 checkpoint
        return dtype

    def _batch(self) -> tuple[int, int]:
        memory = self.request.memory or (self.device.memory_bytes if self.device else 0)
        name = self.device.name if self.device else ""
        tokens, sequences = default_batch(0 if self.on_cpu else memory, name)
        return (
            self.request.max_num_batched_tokens or tokens,
            self.request.max_num_seqs or sequences,
        )

    def _pool_options(self) -> PoolOptions:
        request, release = self.request, self.release
        if self.is_pagoda and request.kv_cache_dtype not in ("auto", self.dtype):
            limit = f"Pagoda's cache has the dtype of its model: auto or {self.dtype}"
            raise InvalidOptionError("kv_cache_dtype", request.kv_cache_dtype, limit)
        return PoolOptions(
            kv_cache_dtype=request.kv_cache_dtype,
            dtype=self.dtype,
            block_size=request.block_size or (CPU_BLOCK_SIZE if self.on_cpu else None),
            tensor_parallel_size=request.tensor_parallel_size,
            pipeline_parallel_size=request.pipeline_parallel_size,
            in_flight_tokens=self.batch[0] * self._batches_in_flight(),
            shares_states=release.shares_states,
            state_dtype=request.mamba_ssm_cache_dtype,
            encoder_tokens=max(self.batch[0], 1500) if self._has_encoder() else None,
        )

    def _batches_in_flight(self) -> int:
        """A batch for each stage; on one stage of a GPU the next is scheduled ahead."""
        if not self.release.runs_ahead:
            return 1
        if self.device is None and "sliding window" in kinds_of(self.model.cached_layers):
            self.warnings.append("no device is named: taken for a GPU, with two batches in flight")
        num_stages = self.request.pipeline_parallel_size
        return num_stages if num_stages > 1 or self.on_cpu else 2

    def _has_encoder(self) -> bool:
        return "cross attention" in kinds_of(self.model.cached_layers)

    def _pool(self) -> GroupedPool:
        model = self.model
        if self.draft_facts is not None:
            draft = read_architecture(self.draft_facts.config)
            self.warnings += draft.assumed
            require_divisible(self.request, draft)
            model = replace(model, layers=(*model.layers, *draft.layers))
        if not self.is_pagoda:
            return build_pool(model, self.options, self.release)
        if any(
            layer.vectors is None or layer.kind == "cross attention"
            for layer in model.cached_layers
        ):
            kinds = ", ".join(kinds_of(model.cached_layers))
            raise UnsupportedModelError("model", self.facts.name, f"Pagoda does not run {kinds}")
        return _pagoda_pool(model, self.options)

    def _question(self) -> PoolQuestion:
        return PoolQuestion(
            pool=self.pool,
            release=None if self.is_pagoda else self.release,
            device="CPU" if self.is_pagoda or self.on_cpu else "GPU",
            max_model_len=self.max_model_len,
            context=self.context,
            users=self.request.users or 1,
            shared_prefix=self.request.shared_prefix,
            made_for=self.made_for,
            tells_memory=self.is_pagoda or self.request.kv_cache_memory_bytes is None,
        )

    def _weights(self, facts: ModelFacts, model: Architecture) -> Weights:
        asked = scheme_named(self.request.quantization)
        own = scheme_of(facts.config) or scheme_of(text_config(facts.config))
        plain_again = self.request.quantization == "none"
        scheme = None if plain_again or self.is_pagoda else asked or own
        same = asked is None or (own is not None and asked.name == own.name)
        keeps = scheme is not None or facts.stored_as is not None or self.dtype == model.dtype
        same = same and keeps
        files = facts.files_bytes if same and not plain_again and not self.is_pagoda else None
        parameters = count_parameters(facts.config, model, facts.parameters)
        return store_weights(parameters, self.dtype, scheme, files)

    def _scheme_name(self) -> str | None:
        own = scheme_of(self.facts.config)
        asked = scheme_named(self.request.quantization)
        if self.request.quantization == "none" or self.is_pagoda:
            return None
        if asked is not None:
            return asked.name
        return self.facts.stored_as if own is None else own.name

    def _stages(self) -> tuple[StageMemory, ...]:
        """What every stage has left for its cache; nothing where no memory was named."""
        total = self.request.memory or (self.device.memory_bytes if self.device else None)
        if total is None:
            return ()
        share = self.request.gpu_memory_utilization or self.release.utilization
        if self.is_pagoda:
            share = 1.0
        own = self.weights.rank_bytes(self.options)
        if self.draft_facts is not None:
            draft = read_architecture(self.draft_facts.config)
            extra = self._weights(self.draft_facts, draft).total_bytes
            own = (*own[:-1], own[-1] + extra // self.request.tensor_parallel_size)
        return tuple(
            StageMemory(total, share, (_weight_part(stored), *self._overheads())) for stored in own
        )

    def _overheads(self) -> tuple[MemoryPart, ...]:
        if self.is_pagoda:
            source = "the process and the tensors of a step"
            return (MemoryPart("runtime", 300 << 20, 1500 << 20, source),)
        text = text_config(self.facts.config)
        width = text.values.get("intermediate_size")
        hidden = text.integer("hidden_size")
        run = TrialRun(
            max_num_batched_tokens=self.batch[0],
            max_num_seqs=self.batch[1],
            vocab_size=text.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=width if type(width) is int else 4 * hidden,
            tensor_parallel_size=self.request.tensor_parallel_size,
            dtype_bytes=4 if self.dtype == "float32" else 2,
        )
        return (
            part_of("activations", activation_range(run, self.release)),
            part_of("runtime", runtime_range(self.request.num_devices)),
            *(() if self.on_cpu else (part_of("CUDA graphs", graphs_range(self.release)),)),
        )

    def _pools(
        self, stages: tuple[StageMemory, ...]
    ) -> tuple[PoolFigures | None, PoolFigures | None]:
        request = self.request
        override = request.num_gpu_blocks_override
        stated = request.kv_cache_memory_bytes
        if override is not None:
            stated = override * self.pool.block_bytes
        if stated is not None:
            exact = self.question.answer(stated, must_fit=True)
            self._require_device(stages, exact.size_bytes)
            return exact, exact
        if not stages:
            return None, None
        for stage in stages:
            stage.require_room(self.facts.name, self._devices())
        high = self.question.answer(self._cache_bytes(stages, "high"), must_fit=True)
        low = self.question.answer(max(0, self._cache_bytes(stages, "low")), must_fit=False)
        if low.concurrency < 1:
            self.warnings.append(
                f"one request of {self.max_model_len:,} tokens fits only if activations and "
                "runtime stay near their lower bounds"
            )
        return low, high

    def _cache_bytes(self, stages: tuple[StageMemory, ...], end: str) -> int:
        """Of the stage that holds fewest blocks; stages keep layers of different sizes."""
        if self.is_pagoda:
            free = stages[0].cache_low if end == "low" else stages[0].cache_high
            longest = self.pool.num_blocks(self.max_model_len) * self.pool.block_bytes
            return share_of_free(max(0, free), self.request.gpu_memory_utilization, longest)
        fewest = min(
            (stage.cache_low if end == "low" else stage.cache_high) // block_bytes
            for stage, block_bytes in zip(stages, self.pool.stage_block_bytes, strict=True)
        )
        if len(stages) == 1:
            return stages[0].cache_low if end == "low" else stages[0].cache_high
        return fewest * self.pool.block_bytes

    def _require_device(self, stages: tuple[StageMemory, ...], cache_bytes: int) -> None:
        """Refuse a cache that was named and that the device cannot hold beside the weights."""
        for stage in stages:
            room = stage.total_bytes - sum(part.low for part in stage.parts)
            if cache_bytes > room:
                limit = (
                    f"{format_gib(max(0, room))} GiB are left on {self._devices()} beside the "
                    f"weights: {format_gib(cache_bytes - room)} GiB too much"
                )
                raise InvalidOptionError("kv_cache_memory_bytes", cache_bytes, limit)

    def _devices(self) -> str:
        name = self.device.name if self.device else "a device of the memory given"
        return f"{self.request.num_devices} × {name}"

    def _memory_parts(
        self, stage: StageMemory, low: PoolFigures | None, high: PoolFigures | None
    ) -> tuple[MemoryPart, ...]:
        kept = stage.total_bytes - stage.requested_bytes
        cache = (low.size_bytes, high.size_bytes) if low and high else (0, 0)
        return (
            *stage.parts,
            MemoryPart("KV cache", *cache, "whole blocks"),
            MemoryPart("left by utilization", kept, kept, f"1 - {stage.utilization:g}"),
        )

    def _speed(self, high: PoolFigures | None) -> SpeedFloor | None:
        if self.device is None:
            return None
        users = self.request.users or (high.users if high else 1)
        layers = [layer for kept in rank_layers(self.model, self.options) for layer in kept]
        return speed_floor(
            self.weights,
            layers,
            self.options,
            self.device,
            num_heads=self.model.num_heads,
            users=max(1, users),
            context=self.context,
            computes_in_fp8=self._scheme_name() == "fp8",
        )

    def _cost_per_user(
        self, low: PoolFigures | None, high: PoolFigures | None
    ) -> tuple[float, float] | None:
        price = self.request.price
        if price is None or low is None or high is None or not low.users:
            return None
        hourly = price * self.request.num_devices
        wanted = self.request.users
        if wanted is not None and wanted <= low.users:
            return hourly / wanted, hourly / wanted
        return hourly / low.users, hourly / high.users

    def _token_cost(self, speed: SpeedFloor | None) -> float | None:
        if self.request.price is None or speed is None:
            return None
        hourly = self.request.price * self.request.num_devices
        return hourly / (speed.total_tokens_per_s * 3600) * 1e6


def _weight_part(stored: int) -> MemoryPart:
    return MemoryPart("weights", stored, loaded_bytes(stored), "numbers × bits; 1% for the loader")


def _pagoda_pool(model: Architecture, options: PoolOptions) -> GroupedPool:
    """Pagoda keeps every token of every layer: the same `CacheSpec` that its engine allocates."""
    layers = tuple(layer.keeping_all() for kept in rank_layers(model, options) for layer in kept)
    spec = CacheSpec(layers, options.block_size or DEFAULT_BLOCK_SIZE)
    pages = tuple(layer.block_bytes(spec.block_size) for layer in layers)
    ids = tuple(range(len(layers)))
    return GroupedPool(
        groups=(CacheGroup(layers[0], ids, spec.block_size, pages),),
        stages=(range(len(layers)),),
    )


def _group_figures(group: CacheGroup, planner: Planner) -> GroupFigures:
    in_flight = planner.pool.in_flight_tokens
    return GroupFigures(
        kind=group.layer.kind,
        num_layers=len(group.layer_ids),
        block_size=group.block_size,
        page_bytes=max(group.page_bytes),
        blocks_per_request=group.num_blocks(planner.max_model_len, in_flight),
    )


def _token_bytes(pool: GroupedPool) -> float:
    """block bytes × the blocks that one more token adds where no window bounds them."""
    growing = [group for group in pool.groups if group.layer.shares_blocks_with == ("full",)]
    return sum(pool.block_bytes / group.block_size for group in growing)
