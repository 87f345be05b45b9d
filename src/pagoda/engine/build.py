"""A model in memory, and the one place where the rooms are wired together to an engine for it."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass

import numba
import torch

from pagoda.cache import CacheManager
from pagoda.engine.core import Engine
from pagoda.engine.cpu_sampler import warm_up as warm_up_sampler
from pagoda.engine.intake import Intake
from pagoda.engine.memory import granted_cores, kv_cache_bytes, require_memory
from pagoda.engine.options import EngineOptions
from pagoda.engine.runner import Runner
from pagoda.errors import InvalidOptionError
from pagoda.execution.cpu.executor import Executor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.tokenizer import Tokenizer
from pagoda.models.weights import OnProgress
from pagoda.planning import plan_capacity
from pagoda.scheduling import Scheduler
from pagoda.storage.kv_storage import KVStorage

logger = logging.getLogger("pagoda")


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory, which several engines may share."""

    name: str
    spec: DecoderSpec
    weights: PanelWeights
    tokenizer: Tokenizer
    max_model_len: int
    dtype: str


def build_engine(options: EngineOptions, on_load: OnProgress | None = None) -> Engine:
    """Load the model, allocate the cache and connect everything.

    Raises `ModelError`, `InvalidOptionError` or `CapacityError`.
    """
    return connect(load_model(options, on_load), options)


def load_model(options: EngineOptions, on_load: OnProgress | None = None) -> Model:
    """Everything about the model that `options` name, its weights in memory.

    Raises `ModelError`, or `InvalidOptionError` where an option does not suit the model, before
    weights are loaded wherever that can be told.
    """
    _check_threads(options)
    files = locate(options.model)
    spec = load_spec(files, options.max_model_len)
    max_model_len = _max_model_len(options, spec)
    dtype = _dtype(options, spec)
    tokenizer = Tokenizer(files)
    return Model(
        name=options.served_model_name or files.name,
        spec=spec,
        weights=PanelWeights.take_over(load_weights(files, spec, dtype, on_load)),
        tokenizer=tokenizer,
        max_model_len=max_model_len,
        dtype=dtype,
    )


def connect(model: Model, options: EngineOptions) -> Engine:
    """An engine for a model in memory: allocates the cache and wires the rooms together.

    Raises `CapacityError` if one request of the longest length does not fit into the cache.
    """
    started = time.perf_counter()
    num_threads = options.threads or min(num_usable_cores(), _most_threads())
    torch.set_num_threads(num_threads)
    spec = model.spec.cache_spec(options.block_size, model.dtype)
    longest_request_bytes = spec.num_blocks(model.max_model_len) * spec.block_bytes
    capacity = plan_capacity(
        spec,
        available_bytes=kv_cache_bytes(options, longest_request_bytes),
        max_model_len=model.max_model_len,
        num_blocks_override=options.num_gpu_blocks_override,
    )
    require_memory(capacity)
    for line in capacity.log_lines("CPU"):
        logger.info(line)
    storage = KVStorage(capacity.spec, capacity.num_blocks)
    executor = Executor(model.spec, model.weights, storage, model.max_model_len, num_threads)
    executor.warm_up()
    warm_up_sampler()
    cache = CacheManager(
        capacity.num_blocks,
        options.block_size,
        enable_prefix_caching=options.enable_prefix_caching,
        codec=model.dtype,
    )
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        max_model_len=model.max_model_len,
        policy=options.scheduling_policy,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
    )
    intake = Intake(
        model.tokenizer,
        vocab_size=model.spec.vocab_size,
        max_model_len=model.max_model_len,
        seed=options.seed,
    )
    logger.info(
        "init engine (profile, create kv cache, warmup model) took %.2f s",
        time.perf_counter() - started,
    )
    return Engine(
        model_name=model.name,
        max_model_len=model.max_model_len,
        tokenizer=model.tokenizer,
        intake=intake,
        scheduler=scheduler,
        runner=Runner(executor),
        chores=storage.populate(),
        takes_all_cores=num_threads >= num_usable_cores(),
    )


def num_usable_cores() -> int:
    """Cores that this process may use, of which its container may grant less than there are."""
    if not hasattr(os, "sched_getaffinity"):  # Linux alone can tell
        return os.cpu_count() or 1
    granted = granted_cores()
    present = len(os.sched_getaffinity(0))
    return present if granted is None else max(1, min(present, math.ceil(granted)))


def _check_threads(options: EngineOptions) -> None:
    most = _most_threads()
    if options.threads is not None and options.threads > most:
        limit = f"at most {most}, for which the kernels' threads were started"
        raise InvalidOptionError("threads", options.threads, limit)


def _most_threads() -> int:
    """The cores, or what the variable NUMBA_NUM_THREADS says."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def _max_model_len(options: EngineOptions, spec: DecoderSpec) -> int:
    if options.max_model_len is None:
        return spec.max_position_embeddings
    if options.max_model_len > spec.max_position_embeddings:
        raise InvalidOptionError(
            "max_model_len",
            options.max_model_len,
            f"at most {spec.max_position_embeddings}, the positions the model was made for",
        )
    return options.max_model_len


def _dtype(options: EngineOptions, spec: DecoderSpec) -> str:
    if options.dtype != "auto":
        return options.dtype
    # CPUs multiply float16 matrices an order of magnitude slower than bfloat16 ones.
    return "bfloat16" if spec.dtype == "float16" else spec.dtype
