"""What the interactive page computes from: tables of models, accelerators, formats, releases.

Everything that a config, a device or a release decides is read here, once, by the code of the
planner; the page's own code is left with the arithmetic of a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any

from pagoda.cache.formats import (
    ALIASES,
    CODED_FORMATS,
    FLOAT_DTYPES,
    FORMATS,
    LATENT_BYTES,
    PLAIN_BITS,
    vector_format,
)
from pagoda.cache.layer import CachedLayer
from pagoda.cache.retention import DEFAULT_SINKS, DEFAULT_WINDOW, MOST_POSITIONS
from pagoda.errors import InvalidOptionError, RefusedError, UnsupportedModelError
from pagoda.planning.budget import step_facts
from pagoda.planning.capability import SCHEMES, dtype_on, product_rate, refused_on
from pagoda.planning.overhead import graphs_range, runtime_range, trial_run
from pagoda.planning.pagoda import (
    GRAPH_TABLES,
    GRAPHS,
    PROCESS,
    RUNTIME,
    SAMPLER_BYTES,
    STEP_SOURCE,
    pagoda_device,
    step_bytes,
)
from pagoda.planning.planned_engine import planned_engine
from pagoda.planning.releases import (
    FORMATS_SEEN,
    NEWEST,
    Release,
    release_of,
)
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.subject import Subject, read_subject
from pagoda.planning.tables import Accelerator, accelerators, find_accelerator, model_rows
from pagoda.planning.weights import CountedWeights, PagodaWeights, Weights
from pagoda.sizing.device_policy import DEFAULT_BLOCK_SIZE, DEFAULT_UTILIZATION, QUANTISED_DTYPE
from pagoda.sizing.quantised_weights import QUANTIZATIONS, RECIPES

_SCHEMES = ("none", "fp8", "int8", "awq", "gptq", "nvfp4")
"""Those of vLLM."""
WEIGHT_SCHEMES = (*_SCHEMES, *RECIPES)
"""Names of `--quantization` that the page offers beside the checkpoint's own form."""
ENGINES = (
    "vllm", "vllm@0.28", "vllm@0.20", "vllm@0.20.0", "vllm@0.19", "vllm@0.16", "vllm@0.9.1",
    "vllm@0.8", "vllm@0.6", "pagoda",
)  # fmt: skip
"""Names of `--engine` that it offers: one of each set of rules."""

_REFUSED = ("refused", "refused_on_gpus")
"""Of a model: why Pagoda does not run it anywhere, or on no GPU."""
_ANY_LENGTH = 1
_SOME_GPUS = ("H100", "L4")
"""One for each largest step that Pagoda's GPUs have."""


@dataclass(frozen=True, slots=True)
class Additions:
    """What a command names that the tables do not have."""

    models: tuple[ModelFacts, ...] = ()
    engines: tuple[str, ...] = ()
    devices: Mapping[str, int] = field(default_factory=dict)
    """Bytes of memory, by what the device is called."""


def page_data(additions: Additions | None = None) -> dict[str, Any]:
    """The tables as plain values. Raises `RefusedError` for an added model that cannot be read."""
    more = additions or Additions()
    probe = ModelFacts.of_row(*next(iter(model_rows().items())))
    models = _models_of_tables() | {facts.name: _model(facts) for facts in more.models}
    refusals = _refusals(models.values())
    return {
        "models": {name: _numbered(row, refusals) for name, row in models.items()},
        "devices": {device.name: _device(device, probe) for device in accelerators()}
        | {name: _memory(size, probe) for name, size in more.devices.items()},
        "engines": {name: _engine(name) for name in dict.fromkeys((*ENGINES, *more.engines))},
        "formats": {
            name: [
                float(form.key_bits), float(form.value_bits),
                form.key_extra, form.value_extra, form.align,
            ]
            for name, form in FORMATS.items()
        },
        "plain_bits": dict(PLAIN_BITS),
        "latent_bytes": dict(LATENT_BYTES),
        "aliases": dict(ALIASES),
        "formats_seen": FORMATS_SEEN,
        "newest": NEWEST[:2],
        "runtime": {
            "one": asdict(runtime_range(1)),
            "several": asdict(runtime_range(2)),
        },
        "pagoda": {
            "process": asdict(PROCESS),
            "runtime": asdict(RUNTIME),
            "graphs": asdict(GRAPHS),
            "step_source": STEP_SOURCE,
            "sampler_bytes": SAMPLER_BYTES,
            "graph_tables": GRAPH_TABLES,
            "block_size": DEFAULT_BLOCK_SIZE,
            "refusals": refusals,
            "most_positions": MOST_POSITIONS,
            "sinks": DEFAULT_SINKS,
            "window": DEFAULT_WINDOW,
            "quantizations": tuple(RECIPES),
            "dtype": QUANTISED_DTYPE,
            "formats": _formats_by_kind(),  # beside the dtype of the model
            "head_multiples": {name: vector_format(name).head_multiple for name in CODED_FORMATS},
        },
    }  # fmt: skip


def _refusals(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Field and reason of what Pagoda does not run, each once: many models have the same."""
    return list(
        dict.fromkeys(
            row["pagoda"][name] for row in rows for name in _REFUSED if name in row["pagoda"]
        )
    )


def _numbered(row: dict[str, Any], refusals: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The row with the number of its refusal, where it has one, in place of that."""
    own = row["pagoda"]
    numbers = {name: refusals.index(own[name]) for name in _REFUSED if name in own}
    return row | {"pagoda": own | numbers}


@cache
def _models_of_tables() -> dict[str, dict[str, Any]]:
    """By name; read once, since they do not change and take a second."""
    known = (ModelFacts.of_row(hub_id, row) for hub_id, row in model_rows().items())
    return {facts.name: _model(facts) for facts in known}


def _model(facts: ModelFacts) -> dict[str, Any]:
    subject = read_subject(facts, PlanRequest(max_model_len=_ANY_LENGTH), None)
    model, weights = subject.model, subject.weights
    run = trial_run(facts.config, (1, 1), tensor_parallel_size=1)
    specs = list(dict.fromkeys(model.cached_layers))
    numbers = weights.parameters
    parts = list(dict.fromkeys(numbers.layers))
    return {
        "source": facts.source,
        "type": model.model_type,
        "dtype": subject.dtype,
        "heads": model.num_heads,
        "latent_pair": model.latent_pair_size,
        "longest": model.max_model_len,
        "extended": model.extended_max_model_len,
        "assumed": model.assumed,
        "layers": [_layer(spec) for spec in specs],
        "order": _runs([[specs.index(spec) for spec in kept] for kept in model.layers]),
        "numbers": [
            numbers.embedding, numbers.head, numbers.other, numbers.total, numbers.active,
            *([numbers.looked_up] if numbers.looked_up else []),
        ],
        "parts": [list(asdict(part).values()) for part in parts],
        "part_order": _runs([parts.index(part) for part in numbers.layers]),
        "weights": _weights(subject),
        "vocabulary": run.vocab_size,
        "hidden": run.hidden_size,
        "intermediate": run.intermediate_size,
        "pagoda": _in_pagoda(facts, numbers.active),
    }  # fmt: skip


def _weights(subject: Subject) -> dict[str, list[Any]]:
    """For each scheme: bits of plain numbers, layers and experts; files over count; its name."""
    return {name: _bits(subject.weights_under(name or None)) for name in ("", *_SCHEMES)}


def _bits(weights: Weights) -> list[Any]:
    assert isinstance(weights, CountedWeights)  # vLLM's
    bits = weights.plain_bits, weights.layer_bits, weights.expert_bits
    return [*bits, weights.scale, weights.stored_as]


def _in_pagoda(facts: ModelFacts, active: int) -> dict[str, Any]:
    """On CPUs, and on GPUs; or why it does not run.

    active: parameters that vLLM's rules count, where these are others."""
    request = PlanRequest(engine="pagoda", max_model_len=_ANY_LENGTH)
    try:
        on_cpu = read_subject(facts, request, None)
        on_gpus = [read_subject(facts, replace(request, gpu=name), None) for name in _SOME_GPUS]
    except RefusedError as error:
        return {"refused": (error.field, error.limit)}
    assert on_cpu.model.decoder is not None  # it runs
    weights = {name: _held(on_cpu.weights_under(name or None)) for name in ("", *QUANTIZATIONS)}
    on_gpu = _held(on_gpus[0].weights)
    row: dict[str, Any] = {
        "dtypes": {"CPU": on_cpu.dtype, "GPU": on_gpus[0].dtype},
        "longest": on_cpu.made_for,
        "weights": weights if on_gpu == weights["none"] else weights | {"GPU": on_gpu},
        **_steps(on_gpus),
        "angles": on_cpu.model.decoder.angle_bytes(1),
    }
    if (own := on_cpu.weights.parameters.active) != active:
        row["active"] = own
    if on_cpu.model.assumed:
        row["assumed"] = on_cpu.model.assumed
    return row


def _steps(on_gpus: Iterable[Subject]) -> dict[str, Any]:
    """Bytes of the largest step by its tokens, where no layer sees sinks, and where layers do; or
    why no GPU takes the model's heads."""
    try:
        return {
            "steps": {
                subject.batch.max_num_batched_tokens: [
                    step_bytes(replace(step_facts(subject), requests_choose=sees_sinks))
                    for sees_sinks in (False, True)
                ]
                for subject in on_gpus
            }
        }
    except UnsupportedModelError as error:
        return {"refused_on_gpus": (error.field, error.limit)}


def _held(weights: Weights) -> list[Any]:
    """Bytes in all, bytes that every step reads, those of experts, the share of these that a token
    is sent to, how they are stored, and what was taken for granted of them, if anything."""
    assert isinstance(weights, PagodaWeights)
    held = weights.held
    read = held.read_bytes - held.chosen_bytes
    sizes = held.total_bytes, read, held.chosen_bytes, held.chosen_share
    return [*sizes, weights.stored_as, *([weights.assumed] if weights.assumed else [])]


def _layer(layer: CachedLayer) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(layer)  # type: ignore[call-overload]
    return {"kind": layer.kind, **fields}


def _device(device: Accelerator, probe: ModelFacts) -> dict[str, Any]:
    subject = _on(probe, PlanRequest(max_model_len=_ANY_LENGTH, gpu=device.name))
    refused = refused_on(device)
    return {
        "vendor": device.vendor,
        "bytes": device.memory_bytes,
        "bandwidth": device.bandwidth,
        "rate": device.bf16_rate,
        "rates": {scheme: product_rate(device, scheme) for scheme in SCHEMES},
        "derived": device.is_derived,
        "refused": {"weights": refused.weights, "caches": refused.caches},
        "dtypes": {own: found for own in FLOAT_DTYPES if (found := dtype_on(device, own)) != own},
        "pagoda": _pagoda_on(device),
        **subject,
    }


def _memory(size: int, probe: ModelFacts) -> dict[str, Any]:
    request = PlanRequest(max_model_len=_ANY_LENGTH, memory=size)
    own = {"vendor": "", "bytes": size, "bandwidth": None, "pagoda": _pagoda_on(None)}
    return {**own, **_on(probe, request)}


def _pagoda_on(device: Accelerator | None) -> dict[str, Any]:
    try:
        policy = pagoda_device(device).policy
    except InvalidOptionError as error:
        return {"refused": error.limit, "refused_field": error.field}
    return {"kind": policy.kind, "batch": policy.default_limits}


def _formats_by_kind() -> dict[str, list[str]]:
    """What a cache of Pagoda's can be stored in on each kind of device, whatever the dtype."""
    found = {}
    for device in (None, find_accelerator(_SOME_GPUS[0])):
        policy = pagoda_device(device).policy
        whatever = set.intersection(*(set(policy.cache_formats(dtype)) for dtype in FLOAT_DTYPES))
        found[policy.kind] = sorted(whatever)
    return found


def _on(probe: ModelFacts, request: PlanRequest) -> dict[str, Any]:
    """What a device decides, whatever the model."""
    subject = read_subject(probe, request, None)
    return {
        "cpu": subject.on_cpu,
        "batch": subject.batch,
        "block_size": subject.options.block_size,
        "packs_sparse_latents": subject.options.packs_sparse_latents,
    }


def _engine(name: str) -> dict[str, Any]:
    engine = planned_engine(name)
    rules = (
        _rules(release_of(NEWEST)) | {"utilization": DEFAULT_UTILIZATION}
        if engine.is_pagoda
        else _rules(engine.release)
    )
    return {
        "label": engine.title,
        "release": engine.rules,
        "pagoda": engine.is_pagoda,
        "version": engine.version,
        "line": engine.line,
        "is_newer": engine.is_newer,
        **rules,
    }


def _rules(release: Release) -> dict[str, Any]:
    names = (
        "forms_groups", "utilization", "logits_copies", "reserved_blocks", "tells_one_line",
        "runs_ahead", "extends_yarn", "shares_states", "counts_blocks", "latent_form",
    )  # fmt: skip
    rules = {name: getattr(release, name) for name in names}
    graphs = asdict(graphs_range(release))
    return rules | {"prints": release.print_tokens.__name__, "graphs": graphs}


def _runs(values: Sequence[Any]) -> list[Any]:
    """A sequence as value, times, value, times …"""
    return list(_flat((value, len(list(same))) for value, same in groupby(values)))


def _flat(pairs: Iterable[tuple[Any, int]]) -> Iterable[Any]:
    for value, times in pairs:
        yield from (value, times)
