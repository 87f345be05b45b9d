"""Predictions of start-ups that were observed, beside what was printed.

Everything the post states is used as it stands; what it leaves open is tried
(`pagoda.validation.settings`) and the possibility that fits is named. A hit needs one number of
blocks, from the memory that was printed, that gives all printed figures at once. A miss is a figure
that was predicted otherwise from what the post says; where it leaves out what decides, nobody can
know, and that is told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.errors import ModelError, RefusedError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import Architecture, read_architecture
from pagoda.planning.tables import find_model
from pagoda.validation.consistency import judge_figures
from pagoda.validation.device_memory import memory_of_device
from pagoda.validation.observed import Observation, Span
from pagoda.validation.prediction import (
    Prediction,
    predict,
    predict_from_blocks,
    predict_from_tokens,
)
from pagoda.validation.settings import Setting, releases_of_model, settings_of
from pagoda.validation.shapes import read_shape
from pagoda.validation.verdict import Figures, Verdict, VerdictKind
from pagoda.validation.wording import Draft

_KV_DTYPE, _TP, _DRAFT = "kv_cache_dtype", "tensor_parallel_size", "draft"


@dataclass(frozen=True, slots=True)
class _Change:
    """Something that would have made it a hit."""

    words: str
    fields: Mapping[str, Any]
    """Fields of an observation."""
    unsaid: str | None = None
    """The flag in question: a post that does not tell it leaves the figures open."""


_CHANGES = (
    _Change(
        "what was printed is the need of all layers, not of the stage's own",
        {"pipeline_parallel_size": 1, "pipeline_split": None},
    ),
    *(
        _Change(
            f"the figures fit a cache in {name}, which the record does not say",
            {_KV_DTYPE: name},
            _KV_DTYPE,
        )
        for name in ("fp8", "bfloat16", "float32", "int8_per_token_head", "int4_per_token_head")
    ),
    *(
        _Change(
            f"the figures fit {size} tensor-parallel ranks, which the record does not say",
            {_TP: size},
            _TP,
        )
        for size in (1, 2, 4, 8)
    ),
    _Change(
        "the figures fit a draft of one layer like the model's, which the record does not say",
        {_DRAFT: Draft(1, None, is_certain=True)},
        _DRAFT,
    ),
)


def validate(
    observations: list[Observation], shapes: Mapping[str, Mapping[str, Any]]
) -> list[Verdict]:
    """A verdict for each observation."""
    return [_judge(seen, shapes) for seen in observations]


def _judge(seen: Observation, shapes: Mapping[str, Mapping[str, Any]]) -> Verdict:
    try:
        model = _shape(seen, shapes)
        verdict = judge_figures(seen) if model is None else _judge_pool(seen, model)
    except ModelError as error:  # a record that lacks a field is silent; one that is odd is wrong
        kind = VerdictKind.UNKNOWN if error.value is None else VerdictKind.MISS
        return Verdict(seen.id, "memory", {}, seen.figures, kind, str(error))
    except RefusedError as error:
        return Verdict(seen.id, "memory", {}, seen.figures, VerdictKind.MISS, str(error))
    key = seen.config_key
    if key is None or model is not None or verdict.is_hit:
        return verdict
    return replace(verdict, reason=f"no shape is given for {key!r}")


def _shape(seen: Observation, shapes: Mapping[str, Mapping[str, Any]]) -> Architecture | None:
    """By its key in the file of shapes, else by its name in the planner's own table."""
    key = seen.config_key
    if key is not None and key in shapes:
        return read_shape(shapes[key], key)
    found = find_model(key or seen.model)
    return None if found is None else read_architecture(ModelConfig(found[1]["config"]))


def _judge_pool(seen: Observation, model: Architecture) -> Verdict:
    if not seen.figures and seen.num_host_blocks is None:
        reason = "nothing was printed that could be compared"
        return Verdict(seen.id, "memory", {}, {}, VerdictKind.UNKNOWN, reason)
    first: Verdict | None = None
    for basis, setting, predicted in _predictions(seen, model):
        observed = _wanted(seen, basis)
        if predicted.fits and predicted.figures:
            said = ", ".join(_narrowed(seen, model, basis, setting))
            return Verdict(
                seen.id, basis, predicted.figures, observed, VerdictKind.HIT, "", said
            )  # fmt: skip
        first = first or Verdict(
            seen.id, basis, predicted.figures, observed, VerdictKind.MISS, "to be explained"
        )
    if first is None or first.basis == "figures":
        return _unfounded(seen)
    kind, reason = _explain(seen, model)
    return replace(first, kind=kind, reason=reason)


def _narrowed(
    seen: Observation, model: Architecture, basis: str, found: Setting
) -> tuple[str, ...]:
    """What was not stated, but for the release where any would do."""
    name = f"release {found.release.name}"
    if name not in found.unstated:
        return found.unstated
    wanted = _wanted(seen, basis)
    for release in releases_of_model(seen, model):
        setting = replace(found, release=replace(release, forms_groups=found.release.forms_groups))
        predicted = _predict(seen, basis, setting, wanted)
        if predicted is None or not predicted.fits:
            return found.unstated
    return tuple(words for words in found.unstated if words != name)


def _unfounded(seen: Observation) -> Verdict:
    """Without memory, blocks or a device, or with too few figures to compare."""
    reason = (
        f"neither memory nor blocks were printed, and from the device {seen.gpu!r} and what "
        "was printed about weights and activations these figures do not follow"
    )
    return Verdict(seen.id, "figures", {}, seen.figures, VerdictKind.UNKNOWN, reason)


def _predictions(
    seen: Observation, model: Architecture
) -> Iterator[tuple[str, Setting, Prediction]]:
    """From the memory that was printed, the blocks or the device; else one figure by another."""
    basis = "memory" if seen.available else "device" if seen.num_blocks is None else "blocks"
    is_founded = False
    for setting in settings_of(seen, model):
        predicted = _predict(seen, basis, setting, _wanted(seen, basis))
        if predicted is not None:
            is_founded = True
            yield basis, setting, predicted
    if is_founded or seen.num_tokens is None or len(seen.figures) < 2:
        return
    for setting in settings_of(seen, model):
        wanted = _wanted(seen, "figures")
        yield "figures", setting, predict_from_tokens(seen, setting, wanted)


def _predict(seen: Observation, basis: str, setting: Setting, wanted: Figures) -> Prediction | None:
    """From one basis; None where the device does not tell how much memory there was."""
    if basis == "figures":
        return predict_from_tokens(seen, setting, wanted)
    if seen.available is not None:
        return predict(seen, setting, seen.available, wanted)
    if seen.num_blocks is not None:
        blocks = Span(seen.num_blocks, seen.num_blocks)
        return predict_from_blocks(seen, setting, blocks, wanted)
    span = memory_of_device(seen, setting.options, setting.release)
    return None if span is None else predict(seen, setting, span, wanted)


def _wanted(seen: Observation, basis: str) -> Figures:
    """The printed figures that are to be predicted: not those that the prediction starts from."""
    started_from = {"blocks": "num_gpu_blocks"}.get(basis)
    figures = {name: figure for name, figure in seen.figures.items() if name != started_from}
    if basis == "blocks" and seen.num_host_blocks is not None:
        figures["num_cpu_blocks"] = seen.num_host_blocks
    return figures


def _explain(seen: Observation, model: Architecture) -> tuple[VerdictKind, str]:
    """Which single change would have made it a hit; of a wide range none says anything."""
    if seen.available is None and seen.num_blocks is None:
        return VerdictKind.MISS, _unfounded(seen).reason
    if seen.draft is not None and seen.draft.num_layers is None:
        return VerdictKind.UNKNOWN, "its draft is a model of its own, which is not described"
    for change in _CHANGES:
        changed = replace(seen, **change.fields)
        if changed == seen or not _would_fit(changed, model):
            continue
        is_open = change.unsaid in seen.unsaid
        return VerdictKind.UNKNOWN if is_open else VerdictKind.MISS, change.words
    return VerdictKind.MISS, "no number of blocks in the printed memory gives these figures"


def _would_fit(seen: Observation, model: Architecture) -> bool:
    try:
        return any(
            predicted.fits and bool(predicted.figures)
            for basis, _, predicted in _predictions(seen, model)
            if basis != "figures"
        )
    except RefusedError:
        return False
