"""Engines on a GPU: NVIDIA's by CUDA, AMD's by ROCm, which PyTorch calls cuda as well.

What the cache may take is found out, not guessed: the largest step is run on a cache of one block,
its CUDA graphs are captured for it, and both are given back before the cache is made. A capture
takes a fraction of a second a graph, and what a driver takes for one cannot be known otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.devices.backend import Machinery, PlacedModel, StepLimits
from pagoda.engine.devices.gpu import GPU
from pagoda.engine.devices.gpu_memory import (
    DEFAULT_UTILIZATION,
    MemoryProfile,
    require_free,
    require_share,
)
from pagoda.engine.devices.gpu_meter import GPUMeter, Meter
from pagoda.engine.devices.machine import measure_device_limits
from pagoda.engine.devices.memory import refuse_cache
from pagoda.engine.options import EngineOptions
from pagoda.engine.runner import AheadRunner
from pagoda.engine.sampling.gpu_sampler import GPUSampler
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.sampler import Sampler
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.gpu.graphs import Capture, CUDAGraphs, default_sizes, usable_sizes
from pagoda.execution.gpu.trial import largest_batch
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import load_weights
from pagoda.models.locate import ModelFiles
from pagoda.models.weights import DecoderWeights, OnProgress
from pagoda.planning.overhead import default_batch
from pagoda.request import SamplingParams
from pagoda.roofline import MachineLimits
from pagoda.scheduling import MAX_PROMPT_LOGIT_ROWS
from pagoda.sizing.capacity import Capacity, format_gib
from pagoda.storage.gpu_storage import GPUStorage

logger = logging.getLogger("pagoda")

_COSTLY_TOP = 20
_COSTLY_ROW = SamplingRow(
    SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=1.0, logprobs=_COSTLY_TOP),
    seed=0,
    prompt_token_ids=(0,),
    output_token_ids=(0,),
    stop_token_ids=frozenset(),
)
"""What takes the sampler the most memory: changed logits, a whole vocabulary ranked."""


class GPUBackend:
    """See `Backend`. What `meter` reads when this is made was there before the engine."""

    kind = "GPU"

    def __init__(
        self, device: torch.device, gpu: GPU, meter: Meter, new_capture: Callable[[], Capture]
    ) -> None:
        self._device = device
        self._gpu = gpu
        self._meter = meter
        self._new_capture = new_capture
        self._at_start = meter.usage()
        self._limits: dict[torch.dtype, MachineLimits] = {}

    @classmethod
    def open(cls) -> GPUBackend:
        """On the first device that this process may see; `Surroundings` tells if it will do."""
        device = torch.device("cuda", 0)
        return cls(
            device, GPU.of(device), GPUMeter(device), lambda: CUDAGraphs(torch.cuda.Stream(device))
        )

    def check(self, options: EngineOptions) -> None:
        """Refuse threads, which are a CPU's."""
        if options.device == "cpu":
            raise InvalidOptionError("device", options.device, "this model was loaded for a GPU")
        if options.threads is not None:
            limit = "is for CPUs: this engine computes on a GPU"
            raise InvalidOptionError("threads", options.threads, limit)

    def require_free_memory(self, options: EngineOptions) -> None:
        """The share of the device, unless the size of the cache is given."""
        if not _is_sized(options):
            require_share(self._at_start, _utilization(options))

    def dtype(self, options: EngineOptions, spec: DecoderSpec) -> str:
        """The checkpoint's where nothing is said."""
        return spec.dtype if options.dtype == "auto" else options.dtype

    def load_weights(
        self, files: ModelFiles, spec: DecoderSpec, dtype: str, on_load: OnProgress | None
    ) -> DecoderWeights:
        """On the device, by way of main memory, one by one."""
        started = time.perf_counter()
        free = format_gib(self._at_start.free_bytes)
        limit = f"the weights in {dtype} are more than the {free} GiB free of the {self._gpu.name}"
        with _refusing(CapacityError("model", files.name, limit)):
            weights = load_weights(files, spec, dtype, on_load, self._device)
        logger.info(
            "Model loading took %s GiB memory and %.2f seconds",
            format_gib(weights.size_bytes),
            time.perf_counter() - started,
        )
        return weights

    def step_limits(self, options: EngineOptions) -> StepLimits:
        """vLLM's for a device of this size, where nothing is said."""
        tokens, sequences = default_batch(self._gpu.total_bytes, self._gpu.name)
        return StepLimits(
            options.max_num_batched_tokens or tokens, options.max_num_seqs or sequences
        )

    def available_bytes(self, model: PlacedModel, cache: CacheSpec, options: EngineOptions) -> int:
        """What is given, or what the largest step leaves of the engine's share."""
        if options.kv_cache_memory_bytes is not None:
            return options.kv_cache_memory_bytes
        if options.num_gpu_blocks_override is not None:
            return options.num_gpu_blocks_override * cache.block_bytes
        with self._refusing_the_largest_step(options):
            profile = self._profile(model, cache, options)
        logger.info("Memory profile: %s", profile)
        return profile.available_bytes(_utilization(options))

    def require_memory(self, capacity: Capacity[CacheSpec], options: EngineOptions) -> None:
        """By what is free now."""
        require_free(capacity.size_bytes, options, self._meter.usage())

    def machinery(
        self, model: PlacedModel, capacity: Capacity[CacheSpec], options: EngineOptions
    ) -> Machinery:
        """Captures CUDA graphs unless they are not wanted."""
        self._warn_of_unused_sizes(options)
        reason = "more than what is free on the device in one piece"
        with _refusing(refuse_cache(capacity.size_bytes, options, reason)):
            storage = GPUStorage(capacity.spec, capacity.num_blocks, self._device)
        with self._refusing_the_largest_step(options):
            executor = self._executor(model, storage, options)
            before, started = self._meter.usage(), time.perf_counter()
            executor.warm_up()
        self._meter.settle()
        if executor.captured_sizes:
            logger.info(
                "Graph capturing finished in %.0f secs, took %s GiB",
                time.perf_counter() - started,
                format_gib(max(0, before.free_bytes - self._meter.usage().free_bytes)),
            )
        sampler = GPUSampler()
        logits = torch.zeros((1, model.spec.vocab_size), device=self._device)
        return Machinery(
            runner=AheadRunner(executor),
            sampler=sampler,
            warm_up_draws=lambda: _draw_each_way(sampler, logits),
            chores=iter(()),
            takes_all_cores=False,
        )

    def measure_limits(self, dtype: torch.dtype) -> MachineLimits:
        """Of the device, measured once: later there may be no memory for it."""
        if dtype not in self._limits:
            limit = f"the {self._gpu.name} has not the 3 GiB free that measuring its limits takes"
            with _refusing(CapacityError("device", "cuda", limit)):
                self._limits[dtype] = measure_device_limits(dtype, self._device)
            self._meter.settle()
        return self._limits[dtype]

    def _warn_of_unused_sizes(self, options: EngineOptions) -> None:
        limits, given = self.step_limits(options), options.cudagraph_capture_sizes
        if given and not options.enforce_eager and not graph_sizes(options, limits):
            logger.warning(
                "no CUDA graph is captured: all of cudagraph_capture_sizes, %s, exceed "
                "max_num_seqs, %d",
                ", ".join(map(str, given)),
                limits.max_num_seqs,
            )

    def _refusing_the_largest_step(
        self, options: EngineOptions
    ) -> contextlib.AbstractContextManager[None]:
        tokens = self.step_limits(options).max_num_batched_tokens
        limit = (
            "the largest step does not fit beside the weights and the cache: lower it, "
            "max_num_seqs, or the memory for the cache"
        )
        return _refusing(CapacityError("max_num_batched_tokens", tokens, limit))

    def _executor(
        self, model: PlacedModel, storage: GPUStorage, options: EngineOptions
    ) -> GPUExecutor:
        limits = self.step_limits(options)
        return GPUExecutor(
            model.spec,
            model.weights,
            storage,
            model.max_model_len,
            graph_sizes(options, limits),
            capture=None if options.enforce_eager else self._new_capture(),
            max_num_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            max_prompt_logit_rows=MAX_PROMPT_LOGIT_ROWS,
        )

    def _profile(
        self, model: PlacedModel, cache: CacheSpec, options: EngineOptions
    ) -> MemoryProfile:
        """Run and sample the largest step, and capture graphs, on a cache of one block."""
        meter, limits = self._meter, self.step_limits(options)
        meter.settle()
        before = meter.usage()
        meter.start_peak()
        executor = self._executor(model, GPUStorage(cache, 1, self._device), options)
        batch = largest_batch(
            limits.max_num_batched_tokens,
            limits.max_num_seqs,
            model.max_model_len,
            cache.block_size,
            MAX_PROMPT_LOGIT_ROWS,
        )
        _read_each_row(executor.forward(batch), len(batch.context_lens))
        meter.settle()
        peak_bytes = meter.peak_bytes() - before.allocated_bytes
        without_graphs = meter.usage()
        executor.warm_up()
        meter.settle()
        graphs_bytes = without_graphs.free_bytes - meter.usage().free_bytes
        del executor
        meter.settle()
        return MemoryProfile(
            total_bytes=before.total_bytes,
            weights_bytes=model.weights.size_bytes,
            others_bytes=max(0, before.allocated_bytes - model.weights.size_bytes),
            peak_bytes=peak_bytes,
            graphs_bytes=max(0, graphs_bytes),
            outside_bytes=max(0, without_graphs.outside_bytes - self._at_start.outside_bytes),
        )


def graph_sizes(options: EngineOptions, limits: StepLimits) -> Sequence[int]:
    """What batches of one token a sequence are padded to, with graphs or without."""
    if options.cudagraph_capture_sizes is None:
        return default_sizes(limits.max_num_seqs)
    return usable_sizes(options.cudagraph_capture_sizes, limits.max_num_seqs)


@contextlib.contextmanager
def _refusing(refusal: CapacityError) -> Iterator[None]:
    """Raises `refusal` in place of PyTorch's error for a device that is full."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise refusal from None


def _read_each_row(logits: torch.Tensor, num_drawn: int) -> None:
    """Draw from so many rows, and have the others' log-probabilities told."""
    logits.zero_()  # of numbers that mean nothing
    sampler = GPUSampler()
    prompts = logits[num_drawn:]
    if len(prompts):
        sampler.token_logprobs(prompts, [0] * len(prompts), _COSTLY_TOP)
    # Between rows of prompts, the engine picks out those to draw from.
    drawn = torch.stack(list(logits[:num_drawn]))
    sampler.begin(drawn, [_COSTLY_ROW] * num_drawn, [0] * num_drawn).wait()


def _draw_each_way(sampler: Sampler, logits: torch.Tensor) -> None:
    """Have PyTorch load the kernels of greedy, plain and filtered draws."""
    rows = [
        SamplingRow(params, 0, (), (), frozenset())
        for params in (
            SamplingParams(temperature=0),
            SamplingParams(temperature=1.0),
            SamplingParams(temperature=1.0, top_k=1),
        )
    ]
    for row in (*rows, _COSTLY_ROW):
        sampler.begin(logits, [row], [0]).wait()


def _is_sized(options: EngineOptions) -> bool:
    """The size of the cache is given, and no share of the device."""
    given = (options.kv_cache_memory_bytes, options.num_gpu_blocks_override)
    return any(size is not None for size in given)


def _utilization(options: EngineOptions) -> float:
    return options.gpu_memory_utilization or DEFAULT_UTILIZATION
