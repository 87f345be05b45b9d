"""Rotary position embedding: from a config to the angles of one kind of layer.

A config tells it in one of three forms, which transformers reads as well:

    rope_parameters: {rope_theta, rope_type, …}                        one for all layers
    rope_parameters: {full_attention: {…}, sliding_attention: {…}}     one for each kind of layer
    rope_theta, rope_scaling: {rope_type or type, …}                   before transformers 5

What a family does otherwise is its `RopeForm`; what each `rope_type` computes is in `rope_types`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pagoda.errors import RefusedError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.rope_types import (
    LONGROPE,
    PROPORTIONAL,
    ROPE_TYPES,
    Rope,
    RopeInputs,
    extension_factor,
    yarn_temperature,
)


@dataclass(frozen=True, slots=True)
class RopeForm:
    """How a family's configs tell one rotary embedding; by default that of all its layers."""

    layer_type: str | None = None
    """The section that is read, by kind of layer; None: one embedding for all, no sections.

    A section that is missing or null is an embedding without extension, as in Gemma 3 and OLMo 3.
    """
    theta_field: str = "rope_theta"
    """Where a config has theta beside the section: `rope_local_base_freq` in Gemma 3."""
    extended: bool = True
    """Whether an extension that a config tells without sections is for these layers too."""
    share_field: str = "partial_rotary_factor"
    """Where a config has the share beside the section: `rotary_pct` in GPT-NeoX."""
    partial_rotary_factor: float | None = None
    """The share of a head that rotates where the config gives none.

    None: heads rotate whole in this family, and a config that says otherwise is refused.
    """
    original_max_position_embeddings: int | None = None
    """The length before the extension where the config gives none; None: its longest sequence."""
    longrope_names: tuple[str, ...] = ()
    """What `longrope` is called besides; Phi-3's older configs call it `su` or `yarn`."""


ONE_FOR_ALL = RopeForm()


def read_rope(
    config: ModelConfig,
    head_dim: int,
    default_theta: float,
    max_model_len: int | None,
    form: RopeForm = ONE_FOR_ALL,
) -> Rope:
    """The rotary embedding a config asks for; of a head, the first 2 · len(inv_freq) numbers turn.

    `max_model_len` is the longest sequence the engine will run, in tokens; None takes the longest
    the model was made for. It matters to `dynamic` and `longrope` alone. Raises
    `UnsupportedModelError` for a kind that is not covered, `ModelError` for a parameter that is
    missing or wrong.
    """
    parameters = _parameters(config, form)
    kind = _kind(parameters, form)
    longest = config.integer("max_position_embeddings")
    theta = config.number(form.theta_field, default=default_theta, minimum=1.0)
    inputs = RopeInputs(
        parameters,
        head_dim,
        _rotated_share(config, parameters, head_dim, form, kind),
        parameters.number("rope_theta", default=theta, minimum=1.0),
        longest,
        _original_length(config, parameters, form) or longest,
        max_model_len,
    )
    return _sound(kind, inputs)


def attention_scale_factor(config: ModelConfig, form: RopeForm = ONE_FOR_ALL) -> float:
    """What DeepSeek and MiniCPM3 multiply the scale of attention by, besides the rotation.

    It is the square of YaRN's temperature for `mscale_all_dim`; 1 without that or an extension.
    Raises as `read_rope`.
    """
    parameters = _parameters(config, form)
    weight = parameters.optional_number("mscale_all_dim", minimum=-1.0)
    if _kind(parameters, form) == "default" or not weight:
        return 1.0
    return yarn_temperature(extension_factor(parameters), weight) ** 2


def _parameters(config: ModelConfig, form: RopeForm) -> ModelConfig:
    """The section of these layers; an empty one where the config has none."""
    given = config.section("rope_parameters")
    scaling = config.section("rope_scaling")
    if form.layer_type is not None and given and scaling and _sections(given):
        limit = "not covered together with rope_parameters by kind of layer"
        raise UnsupportedModelError("rope_scaling", scaling.values, limit)
    parameters = scaling or given or ModelConfig({}, "rope_parameters.")
    sections = _sections(parameters)
    if form.layer_type is None:
        for name in sections:
            raise parameters.unsupported(
                name, parameters.values[name], "parameters by kind of layer are not covered"
            )
        return parameters
    if sections:
        return parameters.section(form.layer_type) or ModelConfig({}, parameters.prefix)
    return parameters if form.extended else ModelConfig({}, parameters.prefix)


def _sections(parameters: ModelConfig) -> list[str]:
    return [name for name, value in parameters.values.items() if isinstance(value, Mapping)]


def _kind(parameters: ModelConfig, form: RopeForm) -> str:
    kind = parameters.string("rope_type", default=parameters.string("type", default="default"))
    if kind in form.longrope_names:
        return LONGROPE
    if kind not in ROPE_TYPES:
        raise parameters.unsupported("rope_type", kind, f"covered are {', '.join(ROPE_TYPES)}")
    return kind


def _original_length(config: ModelConfig, parameters: ModelConfig, form: RopeForm) -> int | None:
    """The length before the extension; what stands beside the only section comes before it."""
    name = "original_max_position_embeddings"
    beside, inside = config.optional_integer(name), parameters.optional_integer(name)
    first, second = (beside, inside) if form.layer_type is None else (inside, beside)
    return first or second or form.original_max_position_embeddings


def _rotated_share(
    config: ModelConfig, parameters: ModelConfig, head_dim: int, form: RopeForm, kind: str
) -> float:
    """The share of a head that rotates: of the section, else of the config, else the family's."""
    places = ((parameters, "partial_rotary_factor"), (config, form.share_field))
    given = (place for place in places if place[0].values.get(place[1]) is not None)
    source, name = next(given, places[1])
    share = source.number(name, default=form.partial_rotary_factor or 1.0)
    if share > 1:
        raise source.error(name, share, "must be at most 1, all of a head")
    if kind == PROPORTIONAL:
        return share
    if form.partial_rotary_factor is None and share != 1:
        raise source.unsupported(name, share, "only 1.0 is covered")
    rotary_dim = int(head_dim * share)
    if rotary_dim == 0 or rotary_dim % 2:
        limit = f"must make pairs of a head's {head_dim} numbers; it rotates {rotary_dim}"
        raise source.error(name, share, limit)
    return share


def _sound(kind: str, inputs: RopeInputs) -> Rope:
    """The embedding, where numbers can be computed from its parameters; else `ModelError`."""
    limit = "no angles can be computed from its parameters"
    try:
        with np.errstate(all="ignore"):
            rope = ROPE_TYPES[kind](inputs)
    except RefusedError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise inputs.parameters.error("rope_type", kind, limit) from error
    numbers = (*rope.spec.inv_freq, rope.spec.attention_factor)
    if not all(map(math.isfinite, numbers)) or rope.max_position_embeddings < 1:
        raise inputs.parameters.error("rope_type", kind, limit)
    return rope
