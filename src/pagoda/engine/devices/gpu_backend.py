"""Engines on a GPU: NVIDIA's by CUDA, AMD's by ROCm, which PyTorch calls cuda as well.

`backend.py` tells the stages.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.devices.backend import FormPacking, Running
from pagoda.engine.devices.cache_spec import asked_cache_spec
from pagoda.engine.devices.gpu import policy_of
from pagoda.engine.devices.gpu_meter import GPUMeter, Meter
from pagoda.engine.devices.gpu_steps import GPUSteps, draw_each_way, graph_sizes
from pagoda.engine.devices.numerics import gpu_numerics
from pagoda.engine.options import EngineOptions
from pagoda.engine.runner import AheadRunner
from pagoda.engine.sampling.gpu_sampler import GPUSampler
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.execution.gpu.graphs import Capture, CUDAGraphs
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import load_weights
from pagoda.models.locate import ModelFiles
from pagoda.models.weights import DecoderWeights, OnProgress
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.capacity import Capacity, format_gib, plan_capacity
from pagoda.sizing.device_policy import GPUPolicy
from pagoda.sizing.gpu_memory import require_free, require_share
from pagoda.sizing.gpu_step import layer_shape
from pagoda.sizing.step_limits import StepLimits
from pagoda.storage.gpu_storage import GPUStorage

if TYPE_CHECKING:
    from pagoda.roofline import MachineLimits

logger = logging.getLogger("pagoda")


class GPUBackend:
    """See `Backend`. What `meter` reads when this is made was there before the engine."""

    def __init__(
        self,
        device: torch.device,
        policy: GPUPolicy,
        meter: Meter,
        new_capture: Callable[[], Capture],
    ) -> None:
        self.device = device
        self.policy = policy
        self.meter = meter
        self.new_capture = new_capture
        self.at_start = meter.usage()
        self._limits: dict[torch.dtype, MachineLimits] = {}

    @classmethod
    def open(cls) -> GPUBackend:
        """On the first device that this process may see; `Surroundings` tells if it will do."""
        device = torch.device("cuda", 0)
        return cls(
            device,
            policy_of(device),
            GPUMeter(device),
            lambda: CUDAGraphs(torch.cuda.Stream(device)),
        )

    def prepare(self, options: EngineOptions) -> PreparedGPU:
        """The share of the device must be free, unless the size of the cache is given."""
        _require_followed(self.policy, options)
        if not options.cache_size.is_stated:
            require_share(self.at_start, self.policy.utilization(options.cache_size))
        return PreparedGPU(self, options)

    def hold(
        self, spec: DecoderSpec, weights: DecoderWeights[torch.Tensor], dtype: str
    ) -> GPUModel:
        """As they are."""
        return GPUModel(self, spec, weights, dtype)

    def measure_limits(self, dtype: torch.dtype) -> MachineLimits:
        """The device's limits, measured once: later there may be no memory for it."""
        from pagoda.engine.devices.machine import measure_gpu_limits

        if dtype not in self._limits:
            limit = f"the {self.policy.name} has not the 3 GiB free that measuring its limits takes"
            with _refusing(CapacityError("device", "cuda", limit)):
                self._limits[dtype] = measure_gpu_limits(dtype, self.device)
            self.meter.settle()
        return self._limits[dtype]


@dataclass(frozen=True, slots=True)
class PreparedGPU:
    """See `Prepared`."""

    backend: GPUBackend
    options: EngineOptions

    def load(self, files: ModelFiles, spec: DecoderSpec, on_load: OnProgress | None) -> GPUModel:
        """On the device, by way of main memory, one by one."""
        started, backend = time.perf_counter(), self.backend
        dtype = backend.policy.dtype(self.options.dtype, spec.dtype)
        for layer in spec.layers:  # refused before weights are read
            layer_shape(layer)
        _cache_spec(backend.policy, spec, self.options, dtype)
        free = format_gib(backend.at_start.free_bytes)
        limit = (
            f"the weights in {dtype} are more than the {free} GiB free of the {backend.policy.name}"
        )
        with _refusing(CapacityError("model", files.name, limit)):
            weights = load_weights(files, spec, dtype, on_load, backend.device)
        logger.info(
            "Model loading took %s GiB memory and %.2f seconds",
            format_gib(weights.size_bytes),
            time.perf_counter() - started,
        )
        return backend.hold(spec, weights, dtype)


@dataclass(frozen=True, slots=True)
class GPUModel:
    """See `Loaded`."""

    backend: GPUBackend
    spec: DecoderSpec
    weights: DecoderWeights[torch.Tensor]
    dtype: str

    def measure_limits(self, options: EngineOptions) -> MachineLimits:
        """Those of the weights' dtype."""
        return self.backend.measure_limits(self.weights.dtype)

    def packings(
        self, of_field: str, forms: Sequence[str], cache: CacheSpec, options: EngineOptions
    ) -> Sequence[FormPacking]:
        """There are none: `GPUPolicy.packs_blocks` says so."""
        raise AssertionError(forms)

    def size(self, options: EngineOptions, max_model_len: int) -> SizedGPU:
        """As stated, or what the largest step leaves of the engine's share.

        What is free now bounds it.
        """
        policy = self.backend.policy
        _require_followed(policy, options)
        limits = policy.default_limits.or_given(
            options.max_num_batched_tokens, options.max_num_seqs
        )
        sizes = graph_sizes(options, limits)
        captures = None if options.enforce_eager else self.backend.new_capture
        narrowed = options.request_kv_retention
        steps = GPUSteps(self.spec, self.weights, max_model_len, limits, sizes, captures, narrowed)
        asked = options.cache_size
        spec = _cache_spec(policy, self.spec, options, self.dtype)
        capacity = plan_capacity(
            spec,
            available_bytes=self._available_bytes(spec, asked, steps),
            max_model_len=max_model_len,
            num_blocks_override=options.num_gpu_blocks_override,
        )
        require_free(capacity.size_bytes, asked, self.backend.meter.usage())
        if options.cudagraph_capture_sizes and captures is not None and not sizes:
            logger.warning(
                "no CUDA graph is captured: all of cudagraph_capture_sizes, %s, exceed "
                "max_num_seqs, %d",
                ", ".join(map(str, options.cudagraph_capture_sizes)),
                limits.max_num_seqs,
            )
        return SizedGPU(self.backend, steps, capacity, asked)

    def _available_bytes(self, cache: CacheSpec, asked: CacheSize, steps: GPUSteps) -> int:
        stated = asked.stated_bytes(cache.block_bytes)
        if stated is not None:
            return stated
        backend = self.backend
        with _refusing_the_largest_step(steps.limits):
            profile = steps.profile(cache, backend.device, backend.meter, backend.at_start)
        logger.info("Memory profile: %s", profile)
        return backend.policy.available_bytes(asked, profile)


@dataclass(frozen=True, slots=True)
class SizedGPU:
    """See `Sized`."""

    backend: GPUBackend
    steps: GPUSteps
    capacity: Capacity[CacheSpec]
    asked: CacheSize

    @property
    def limits(self) -> StepLimits:
        """What one step may take."""
        return self.steps.limits

    def start(self) -> Running:
        """Captures CUDA graphs unless they are not wanted."""
        device, meter, capacity = self.backend.device, self.backend.meter, self.capacity
        reason = "more than what is free on the device in one piece"
        with _refusing(self.asked.refused(capacity.size_bytes, reason)):
            storage = GPUStorage(capacity.spec, capacity.num_blocks, device)
        with _refusing_the_largest_step(self.limits):
            executor = self.steps.executor(storage)
            before, started = meter.usage(), time.perf_counter()
            executor.warm_up()
        meter.settle()
        if executor.captured_sizes:
            logger.info(
                "Graph capturing finished in %.0f secs, took %s GiB",
                time.perf_counter() - started,
                format_gib(max(0, before.free_bytes - meter.usage().free_bytes)),
            )
        sampler = GPUSampler()
        logits = torch.zeros((1, self.steps.spec.vocab_size), device=device)
        return Running(
            runner=AheadRunner(executor),
            sampler=sampler,
            storage=storage,
            warm_up_draws=lambda: draw_each_way(sampler, logits),
            chores=iter(()),
            takes_all_cores=False,
            numerics=partial(gpu_numerics, device),
        )


def _cache_spec(
    policy: GPUPolicy, spec: DecoderSpec, options: EngineOptions, dtype: str
) -> CacheSpec:
    """The cache that options ask for, where weights are of a dtype and heads suit its format."""
    options.cache_formats.require_one_of(policy.cache_formats(dtype), policy.kind)
    return asked_cache_spec(spec, options, policy, dtype)


def _require_followed(policy: GPUPolicy, options: EngineOptions) -> None:
    """Refuse what only a CPU has."""
    if options.device == "cpu":
        raise InvalidOptionError("device", options.device, "this model was loaded for a GPU")
    if options.threads is not None:
        limit = "is for CPUs: this engine computes on a GPU"
        raise InvalidOptionError("threads", options.threads, limit)
    if options.activation_dtype != "auto":
        limit = "is for CPUs: a GPU multiplies in `dtype`"
        raise InvalidOptionError("activation_dtype", options.activation_dtype, limit)
    policy.require_dtype(options.dtype)
    policy.require_quantization(options.quantization, options.dtype)


def _refusing_the_largest_step(limits: StepLimits) -> contextlib.AbstractContextManager[None]:
    limit = (
        "the largest step does not fit beside the weights and the cache: lower it, "
        "max_num_seqs, or the memory for the cache"
    )
    return _refusing(CapacityError("max_num_batched_tokens", limits.max_num_batched_tokens, limit))


@contextlib.contextmanager
def _refusing(refusal: CapacityError) -> Iterator[None]:
    """Raises `refusal` in place of PyTorch's error for a device that is full."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise refusal from None
