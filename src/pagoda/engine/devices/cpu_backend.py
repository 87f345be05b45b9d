"""Engines on this machine's CPUs; `backend.py` tells the stages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numba
import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.devices.backend import Running
from pagoda.engine.devices.cache_spec import asked_cache_spec
from pagoda.engine.devices.calibration import Calibration
from pagoda.engine.devices.compiling import told_if_compiling
from pagoda.engine.devices.cores import num_usable_cores
from pagoda.engine.devices.layer_codecs import ignores_means, layer_codecs
from pagoda.engine.devices.memory import free_memory_bytes, require_memory
from pagoda.engine.devices.numerics import cpu_numerics
from pagoda.engine.devices.transform_calibration import TransformCalibration
from pagoda.engine.devices.transform_packing import TransformPacking, rotary_of
from pagoda.engine.options import EngineOptions
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.cpu_sampler import CPUSampler
from pagoda.engine.sampling.cpu_sampler import warm_up as warm_up_sampler
from pagoda.errors import InvalidOptionError
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights, require_even_rows
from pagoda.execution.cpu.quantised_rows import keeps_as
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import FORMATS, load_weights
from pagoda.models.locate import ModelFiles
from pagoda.models.registry import weight_names
from pagoda.models.weight_parts import DecoderParts
from pagoda.models.weights import DecoderWeights, Keeps, OnProgress, keeps_none
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.capacity import Capacity, plan_capacity
from pagoda.sizing.device_policy import CPUPolicy
from pagoda.sizing.quantised_weights import quantised_types
from pagoda.sizing.step_limits import StepLimits
from pagoda.storage.block_numbers import BlockNumbers
from pagoda.storage.cpu_storage import CPUStorage

if TYPE_CHECKING:
    from pagoda.roofline import MachineLimits


logger = logging.getLogger("pagoda")

_DECODED = (
    "weights are decoded from their stored form while they are multiplied: %s they take more "
    "memory, and without AVX-512 BF16 and VBMI up to a fifth less time; "
    "--activation-dtype int8 is quicker still, and a little less exact"
)
_ROUNDED = (
    "activations are rounded to int8, 32 numbers a scale, for products with weights as stored"
)


class CPUBackend:
    """See `Backend`."""

    policy = CPUPolicy()

    def prepare(self, options: EngineOptions) -> PreparedCPU:
        """Memory is nothing to refuse yet: options ask for a share of what is free."""
        _require_followed(options)
        return PreparedCPU(self, options)

    def hold(
        self, spec: DecoderSpec, weights: DecoderWeights[Any] | PanelWeights, dtype: str
    ) -> CPUModel:
        """The weights go to the order in which products read them."""
        return CPUModel(self, spec, PanelWeights.take_over(weights), dtype)


@dataclass(frozen=True, slots=True)
class PreparedCPU:
    """See `Prepared`."""

    backend: CPUBackend
    options: EngineOptions

    def load(self, files: ModelFiles, spec: DecoderSpec, on_load: OnProgress | None) -> CPUModel:
        """In main memory, by as many threads as run steps later."""
        num_threads = _num_threads(self.options)
        numba.set_num_threads(num_threads)  # of this thread, whose kernels put weights into panels
        torch.set_num_threads(num_threads)
        policy = self.backend.policy
        dtype = policy.dtype(self.options.dtype, spec.dtype, self.options.quantization)
        require_even_rows(spec, dtype)
        asked_cache_spec(spec, self.options, policy, dtype)  # refused before weights are read
        loading, keeps = _Loading(on_load), self._keeps(files, spec, dtype)
        loaded = load_weights(files, spec, dtype, loading.read, keeps=keeps)
        weights = PanelWeights.take_over(loaded, loading.packed)
        if _rounds_rows(self.options):
            logger.info(_ROUNDED)
        elif loading.has_packed:
            quantises = self.options.quantization is not None
            logger.info(
                _DECODED, "without --quantization" if quantises else "with --quantization none"
            )
        # A copy of its own, since what `files` has read and mapped would stay in memory.
        return CPUModel(self.backend, spec, weights, dtype, replace(files))

    def _keeps(self, files: ModelFiles, spec: DecoderSpec, dtype: str) -> Keeps:
        asked, of_kind = self.options.quantization, FORMATS[files.kind]
        if not self.backend.policy.keeps_stored(dtype, asked):
            return keeps_none
        types = of_kind.types(files)
        parts = DecoderParts.of(spec, weight_names(spec.architecture, files.kind, types))
        return keeps_as(quantised_types(parts, types, asked))


class _Loading:
    """Adds up what is read and what is packed straight from its file."""

    def __init__(self, on_load: OnProgress | None) -> None:
        self._on_load = on_load
        self._done_bytes = self._total_bytes = 0
        self.has_packed = False

    def read(self, done_bytes: int, total_bytes: int) -> None:
        """All that has been read so far."""
        self._done_bytes, self._total_bytes = done_bytes, total_bytes
        if self._on_load is not None:
            self._on_load(done_bytes, total_bytes)

    def packed(self, num_bytes: int) -> None:
        """What has been packed since the last call."""
        self.has_packed = True
        self.read(self._done_bytes + num_bytes, self._total_bytes)


@dataclass(frozen=True, slots=True)
class CPUModel:
    """See `Loaded`."""

    backend: CPUBackend
    spec: DecoderSpec
    weights: PanelWeights
    dtype: str
    files: ModelFiles | None = None
    """Where it came from; None: weights alone were given."""

    def measure_limits(self, options: EngineOptions) -> MachineLimits:
        """What PyTorch's threads reach, and products of bytes where rows are rounded to them."""
        from pagoda.engine.devices.machine import measure_limits

        return measure_limits(self.weights.dtype, of_bytes=_rounds_rows(options))

    def calibration(self, num_threads: int) -> Calibration:
        """Finds what a format has to know of the model."""
        return Calibration(self.spec, self.weights, self.files, num_threads)

    def packings(
        self, of_field: str, forms: Sequence[str], cache: CacheSpec, options: EngineOptions
    ) -> list[TransformPacking]:
        """Transforms are found, or read from disk. All forms share them in memory."""
        asked = ", ".join(forms)
        calibration = self.calibration(_num_threads(options))
        found = TransformCalibration(calibration).find(of_field, asked)
        longest = options.max_model_len or self.spec.max_position_embeddings
        numbers, rotary = BlockNumbers.of(cache), rotary_of(self.spec, longest)
        return [TransformPacking.of(form, found, numbers, rotary, longest) for form in forms]

    def size(self, options: EngineOptions, max_model_len: int) -> SizedCPU:
        """Size the cache from what the machine, or the container, has free beside tables of angles.

        The machine's whole memory bounds a cache whose size is stated: pages are taken as they are
        written to.
        """
        _require_followed(options)
        policy, asked = self.backend.policy, options.cache_size
        spec = asked_cache_spec(self.spec, options, policy, self.dtype)
        longest = spec.num_blocks(max_model_len)
        free = max(0, free_memory_bytes() - self.spec.angle_bytes(max_model_len))
        capacity = plan_capacity(
            spec,
            available_bytes=policy.available_bytes(asked, free, spec.block_bytes, longest),
            max_model_len=max_model_len,
            num_blocks_override=options.num_gpu_blocks_override,
        )
        require_memory(capacity.size_bytes, asked)
        limits = policy.default_limits.or_given(
            options.max_num_batched_tokens, options.max_num_seqs
        )
        return SizedCPU(self, capacity, asked, limits, options)


@dataclass(frozen=True, slots=True)
class SizedCPU:
    """See `Sized`."""

    model: CPUModel
    capacity: Capacity[CacheSpec]
    asked: CacheSize
    limits: StepLimits
    options: EngineOptions

    def start(self) -> Running:
        """Sets PyTorch's number of threads."""
        num_threads = _num_threads(self.options)
        torch.set_num_threads(num_threads)
        model, capacity = self.model, self.capacity
        is_past_length = capacity.max_model_len > model.spec.max_position_embeddings
        codecs = layer_codecs(
            capacity.spec,
            model.calibration(num_threads),
            ignores_means=ignores_means(self.options, is_past_length=is_past_length),
        )
        try:
            storage = CPUStorage(capacity.spec, capacity.num_blocks, codecs)
        except (OSError, MemoryError) as error:
            reason = "more than the system gives this process (`ulimit -v` tells its bound)"
            raise self.asked.refused(capacity.size_bytes, reason) from error
        with told_if_compiling():
            executor = CPUExecutor(
                model.spec,
                model.weights,
                storage,
                capacity.max_model_len,
                num_threads,
                rounds_rows=_rounds_rows(self.options),
            )
            executor.warm_up()
            warm_up_sampler()
        return Running(
            runner=Runner(executor),
            sampler=CPUSampler(),
            storage=storage,
            warm_up_draws=partial(warm_up_sampler, temperature=1.0),
            chores=storage.populate(),
            takes_all_cores=num_threads >= num_usable_cores(),
            numerics=cpu_numerics,
        )


def _require_followed(options: EngineOptions) -> None:
    """Refuse more threads than there are, and what only a GPU has."""
    most = _most_threads()
    if options.device == "cuda":
        raise InvalidOptionError("device", options.device, "this model was loaded for CPUs")
    if options.threads is not None and options.threads > most:
        limit = f"at most {most}, for which the kernels' threads were started"
        raise InvalidOptionError("threads", options.threads, limit)
    if options.cudagraph_capture_sizes is not None:
        sizes = list(options.cudagraph_capture_sizes)
        limit = "there are no CUDA graphs on a CPU"
        raise InvalidOptionError("cudagraph_capture_sizes", sizes, limit)
    options.require_done_by(CPUBackend.policy)


def _rounds_rows(options: EngineOptions) -> bool:
    return options.activation_dtype == "int8"


def _num_threads(options: EngineOptions) -> int:
    """What is asked for, or a thread for each core that this process may use."""
    return options.threads or min(num_usable_cores(), _most_threads())


def _most_threads() -> int:
    """The cores, or what the variable NUMBA_NUM_THREADS says."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
