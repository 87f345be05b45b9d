"""Engines on this machine's CPUs."""

from __future__ import annotations

import math
import os
from functools import partial

import numba
import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.devices.backend import Machinery, PlacedModel, StepLimits
from pagoda.engine.devices.machine import measure_limits
from pagoda.engine.devices.memory import granted_cores, kv_cache_bytes, require_memory
from pagoda.engine.options import EngineOptions
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.cpu_sampler import CPUSampler
from pagoda.engine.sampling.cpu_sampler import warm_up as warm_up_sampler
from pagoda.errors import InvalidOptionError
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import load_weights
from pagoda.models.locate import ModelFiles
from pagoda.models.weights import OnProgress
from pagoda.planning.subject import PAGODA_BATCH
from pagoda.roofline import MachineLimits
from pagoda.sizing.capacity import Capacity
from pagoda.storage.cpu_storage import CPUStorage


class CPUBackend:
    """See `Backend`."""

    kind = "CPU"

    def check(self, options: EngineOptions) -> None:
        """Refuse more threads than there are, and what only a GPU has."""
        most = _most_threads()
        if options.device == "cuda":
            raise InvalidOptionError("device", options.device, "this model was loaded for CPUs")
        if options.threads is not None and options.threads > most:
            limit = f"at most {most}, for which the kernels' threads were started"
            raise InvalidOptionError("threads", options.threads, limit)
        if options.cudagraph_capture_sizes is not None:
            limit = "there are no CUDA graphs on a CPU"
            raise InvalidOptionError(
                "cudagraph_capture_sizes", list(options.cudagraph_capture_sizes), limit
            )
        if options.dtype == "float16":
            # CPUs multiply float16 matrices an order of magnitude slower than bfloat16 ones.
            raise InvalidOptionError("dtype", "float16", "float32 or bfloat16 on a CPU")

    def require_free_memory(self, options: EngineOptions) -> None:
        """Nothing to refuse: options ask for a share of what is free."""

    def dtype(self, options: EngineOptions, spec: DecoderSpec) -> str:
        """The checkpoint's, but bfloat16 in place of float16."""
        if options.dtype != "auto":
            return options.dtype
        return "bfloat16" if spec.dtype == "float16" else spec.dtype

    def load_weights(
        self, files: ModelFiles, spec: DecoderSpec, dtype: str, on_load: OnProgress | None
    ) -> PanelWeights:
        """In main memory, in the order in which products read them."""
        return PanelWeights.take_over(load_weights(files, spec, dtype, on_load))

    def step_limits(self, options: EngineOptions) -> StepLimits:
        """Small steps: a CPU gains little from more tokens, and streams wait for each."""
        tokens, sequences = PAGODA_BATCH
        return StepLimits(
            options.max_num_batched_tokens or tokens, options.max_num_seqs or sequences
        )

    def available_bytes(self, model: PlacedModel, cache: CacheSpec, options: EngineOptions) -> int:
        """A share of what the machine, or the container, has free."""
        return kv_cache_bytes(options, cache.num_blocks(model.max_model_len) * cache.block_bytes)

    def require_memory(self, capacity: Capacity[CacheSpec], options: EngineOptions) -> None:
        """By the machine's whole memory: pages are taken as they are written to."""
        require_memory(capacity.size_bytes, options)

    def machinery(
        self, model: PlacedModel, capacity: Capacity[CacheSpec], options: EngineOptions
    ) -> Machinery:
        """Sets PyTorch's number of threads."""
        num_threads = options.threads or min(num_usable_cores(), _most_threads())
        torch.set_num_threads(num_threads)
        storage = CPUStorage(capacity.spec, capacity.num_blocks)
        weights = PanelWeights.take_over(model.weights)
        executor = CPUExecutor(model.spec, weights, storage, model.max_model_len, num_threads)
        executor.warm_up()
        warm_up_sampler()
        return Machinery(
            runner=Runner(executor),
            sampler=CPUSampler(),
            warm_up_draws=partial(warm_up_sampler, temperature=1.0),
            chores=storage.populate(),
            takes_all_cores=num_threads >= num_usable_cores(),
        )

    def measure_limits(self, dtype: torch.dtype) -> MachineLimits:
        """Of PyTorch's threads."""
        return measure_limits(dtype)


def num_usable_cores() -> int:
    """Cores that this process may use, of which its container may grant less than there are."""
    if not hasattr(os, "sched_getaffinity"):  # Linux alone can tell
        return os.cpu_count() or 1
    granted = granted_cores()
    present = len(os.sched_getaffinity(0))
    return present if granted is None else max(1, min(present, math.ceil(granted)))


def _most_threads() -> int:
    """The cores, or what the variable NUMBA_NUM_THREADS says."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
