"""The cache's memory of a start-up that does not print it: from its device, as far as that goes.

    total × utilization - weights - activations - runtime - CUDA graphs

A part that was printed counts to its two decimals, the others by their ranges, so the answer is a
range too, and wide where little was printed.
"""

from __future__ import annotations

import math

from pagoda.errors import RefusedError
from pagoda.planning.architecture import read_architecture
from pagoda.planning.overhead import (
    activation_range,
    graphs_range,
    runtime_range,
    trial_run,
)
from pagoda.planning.parameters import count_parameters
from pagoda.planning.pool import PoolOptions
from pagoda.planning.quantization import scheme_of
from pagoda.planning.releases import Range, Release
from pagoda.planning.request import ModelFacts
from pagoda.planning.tables import Accelerator, accelerator_in, find_model
from pagoda.planning.weights import loaded_bytes, store_weights
from pagoda.sizing.capacity import GIB
from pagoda.sizing.step_limits import gpu_limits
from pagoda.validation.observed import UNNAMED, Observation, Span

_HALF_PRINTED = 0.005


def memory_of_device(seen: Observation, options: PoolOptions, release: Release) -> Span | None:
    """Bytes that were left for the cache, at least and at most; None where it cannot be told."""
    device = accelerator_in(seen.gpu) if seen.gpu else None
    total = _total(seen, device)
    facts = _facts(seen)
    weights = _printed(seen.weights_gib) or _weights(facts, options)
    activations = _printed(seen.activation_gib) or _activations(seen, facts, device, release)
    if total is None or weights is None or activations is None:
        return None
    num_ranks = seen.tensor_parallel_size * seen.pipeline_parallel_size
    runtime = _printed(seen.non_torch_gib) or runtime_range(num_ranks)
    graphs = graphs_range(release, is_eager=seen.is_eager)
    if release.estimates_graphs:
        graphs = _printed(seen.graphs_gib) or graphs
    share = seen.utilization or release.utilization
    parts = (weights, activations, runtime, graphs)
    low = math.ceil(total.low * share) - sum(part.high for part in parts)
    high = math.ceil(total.high * share) - sum(part.low for part in parts)
    return Span(max(0, low), high) if high > 0 else None


def _printed(figure: float | None) -> Range | None:
    if figure is None:
        return None
    low, high = (figure - _HALF_PRINTED) * GIB, (figure + _HALF_PRINTED) * GIB
    return Range(max(0, round(low)), round(high), "printed")


def _total(seen: Observation, device: Accelerator | None) -> Range | None:
    if seen.total_gib is not None:
        return _printed(seen.total_gib)
    if device is None:
        return None
    return Range(device.memory_bytes, device.memory_bytes, device.source)


def _facts(seen: Observation) -> ModelFacts | None:
    """The named model's facts: another name may be a checkpoint with smaller weights."""
    is_other = seen.model != UNNAMED and find_model(seen.model) is None
    if is_other and seen.weights_gib is None:
        return None
    for name in (seen.model, seen.config_key or ""):
        found = find_model(name)
        if found is not None:
            return ModelFacts.of_row(*found)
    return None


def _weights(facts: ModelFacts | None, options: PoolOptions) -> Range | None:
    if facts is None:
        return None
    try:
        model = read_architecture(facts.config)
        parameters = count_parameters(facts.config, model, facts.parameters)
        scheme = scheme_of(facts.config)
        dtype = options.dtype or model.dtype
        weights = store_weights(parameters, dtype, scheme, facts.files_bytes)
        stored = max(weights.rank_bytes(options))
    except RefusedError:
        return None
    return Range(stored, loaded_bytes(stored), facts.source)


def _activations(
    seen: Observation, facts: ModelFacts | None, device: Accelerator | None, release: Release
) -> Range | None:
    if facts is None:
        return None
    memory = device.memory_bytes if device else round((seen.total_gib or 0) * GIB)
    tokens, sequences = gpu_limits(memory, seen.gpu or "")
    batch = (seen.max_num_batched_tokens or tokens, sequences)
    run = trial_run(facts.config, batch, seen.tensor_parallel_size)
    return activation_range(run, release)
