"""Rotary position embedding: the angles of every kind of context extension.

A model rotates pair i of a head by position · inv_freq[i]; without extension
inv_freq[i] = theta ** (-2i / head_dim) (Su et al. 2021, arXiv 2104.09864). The extensions:

    linear    all angles divided by `factor` (position interpolation, Chen et al. 2023)
    dynamic   theta raised with the longest sequence (NTK-aware scaling)
    llama3    long wavelengths divided by `factor`, short ones kept, those between interpolated
    yarn      the same by a ramp over the pairs; cosine and sine scaled too (arXiv 2309.00071)
    factors   each angle divided by a factor of its own, as GGUF files of Llama 3 carry them

Arithmetic is in float32, as in the code the models were trained with; powers are rounded to it
from float64, which agrees with PyTorch's to the last bit nearly always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagoda.errors import RefusedError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import RopeSpec

_LARGEST_FACTOR = 2**20
"""Many times that of any model."""

Angles = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rope:
    """What a config says about positions."""

    spec: RopeSpec
    max_position_embeddings: int
    """Longest sequence in tokens, the extension included."""


@dataclass(frozen=True, slots=True)
class RopeInputs:
    """What the angles are computed from."""

    parameters: ModelConfig
    head_dim: int
    theta: float
    max_position_embeddings: int
    original_max_position_embeddings: int
    max_model_len: int | None

    @property
    def inv_freq(self) -> Angles:
        """The angles without any extension, [head_dim / 2]."""
        return _inverse_frequencies(self.theta, self.head_dim)


def read_rope(
    config: ModelConfig, head_dim: int, default_theta: float, max_model_len: int | None
) -> Rope:
    """The rotary embedding a config asks for.

    `max_model_len` is the longest sequence the engine will run, in tokens; None takes the longest
    the model was made for. It matters to `dynamic` alone. Raises `UnsupportedModelError` for a kind
    that is not covered, `ModelError` for a parameter that is missing or wrong.
    """
    parameters = (
        config.section("rope_scaling")
        or config.section("rope_parameters")
        or ModelConfig({}, "rope_parameters.")
    )
    _refuse_layer_types(parameters)
    kind = parameters.string("rope_type", default=parameters.string("type", default="default"))
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{parameters.prefix}rope_type", kind, f"covered are {', '.join(ROPE_TYPES)}"
        )
    _refuse_partial_rotation(config, parameters)
    longest = config.integer("max_position_embeddings")
    theta = config.number("rope_theta", default=default_theta, minimum=1.0)
    original = config.optional_integer("original_max_position_embeddings")
    if original is None:
        original = parameters.integer("original_max_position_embeddings", default=longest)
    inputs = RopeInputs(
        parameters,
        head_dim,
        parameters.number("rope_theta", default=theta, minimum=1.0),
        longest,
        original,
        max_model_len,
    )
    return _sound(kind, inputs)


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


def _refuse_layer_types(parameters: ModelConfig) -> None:
    """One embedding for all layers is covered, not one for each kind of layer."""
    for name, value in parameters.values.items():
        if isinstance(value, Mapping):
            raise UnsupportedModelError(
                f"{parameters.prefix}{name}", value, "parameters by kind of layer are not covered"
            )


def _refuse_partial_rotation(config: ModelConfig, parameters: ModelConfig) -> None:
    """Only heads that are rotated whole are covered."""
    for source in (config, parameters):
        share = source.number("partial_rotary_factor", default=1.0)
        if share != 1.0:
            raise UnsupportedModelError(
                f"{source.prefix}partial_rotary_factor", share, "only 1.0 is covered"
            )


def _inverse_frequencies(theta: float, head_dim: int) -> Angles:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    wavelengths = np.power(theta, exponents.astype(np.float64)).astype(np.float32)
    angles: Angles = np.float32(1.0) / wavelengths
    return angles


def _rope(angles: Angles, longest: int, attention_factor: float = 1.0) -> Rope:
    return Rope(RopeSpec(tuple(angles.tolist()), attention_factor), longest)


def _factor(inputs: RopeInputs, default: float | None = None) -> float:
    factor = inputs.parameters.number("factor", default=default)
    if factor > _LARGEST_FACTOR:
        raise inputs.parameters.error("factor", factor, f"must be at most {_LARGEST_FACTOR}")
    return factor


def _default(inputs: RopeInputs) -> Rope:
    return _rope(inputs.inv_freq, inputs.max_position_embeddings)


def _factors(inputs: RopeInputs) -> Rope:
    num_pairs = inputs.head_dim // 2
    factors = inputs.parameters.items("factors", float, length=num_pairs)
    if factors is None:
        raise inputs.parameters.missing("factors")
    divisors: Angles = np.array(factors, dtype=np.float32)
    return _rope(inputs.inv_freq / divisors, inputs.max_position_embeddings)


def _linear(inputs: RopeInputs) -> Rope:
    factor = _factor(inputs)
    longest = int(inputs.original_max_position_embeddings * factor)
    return _rope(inputs.inv_freq / np.float32(factor), longest)


def _dynamic(inputs: RopeInputs) -> Rope:
    """NTK-aware scaling, fixed for the longest sequence that the engine will run.

    The formula asks for the length of the running sequence. Keys already in the cache were rotated
    with the angles of their time, so the length that counts here is the engine's limit: up to the
    model's own length the angles are exactly those without extension.
    """
    factor = _factor(inputs)
    own = inputs.max_position_embeddings
    longest = int(own * factor)
    length = max(own, longest if inputs.max_model_len is None else inputs.max_model_len)
    growth = factor * length / own - (factor - 1)
    theta = inputs.theta * growth ** (inputs.head_dim / (inputs.head_dim - 2))
    return _rope(_inverse_frequencies(theta, inputs.head_dim), longest)


def _llama3(inputs: RopeInputs) -> Rope:
    parameters = inputs.parameters
    factor = np.float32(_factor(inputs))
    low = parameters.number("low_freq_factor")
    high = parameters.number("high_freq_factor")
    if high <= low:
        raise parameters.error("high_freq_factor", high, f"must be above low_freq_factor, {low:g}")
    original = inputs.original_max_position_embeddings
    angles = inputs.inv_freq
    wavelength = np.float32(2 * math.pi) / angles
    keep = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (1 - keep) * angles / factor + keep * angles
    extended = np.where(wavelength > np.float32(original / low), angles / factor, between)
    extended = np.where(wavelength < np.float32(original / high), angles, extended)
    return _rope(extended, inputs.max_position_embeddings)


def _yarn(inputs: RopeInputs) -> Rope:
    parameters = inputs.parameters
    original = inputs.original_max_position_embeddings
    factor = _factor(inputs, default=inputs.max_position_embeddings / original)
    low, high = _yarn_range(inputs, original)
    ramp = (np.arange(inputs.head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(
        high - low
    )
    keep = 1 - np.clip(ramp, 0, 1)
    angles = inputs.inv_freq
    extended = angles / np.float32(factor) * (1 - keep) + angles * keep
    return _rope(extended, int(original * factor), _yarn_attention_factor(parameters, factor))


def _yarn_range(inputs: RopeInputs, original: int) -> tuple[float, float]:
    """First and last pair of the ramp: they turn beta_fast and beta_slow times in `original`."""

    def pair_that_turns(times: float) -> float:
        wavelengths = original / (times * 2 * math.pi)
        return inputs.head_dim * math.log(wavelengths) / (2 * math.log(inputs.theta))

    low = pair_that_turns(inputs.parameters.number("beta_fast", default=32.0))
    high = pair_that_turns(inputs.parameters.number("beta_slow", default=1.0))
    if inputs.parameters.boolean("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, inputs.head_dim - 1)
    return low, high if high != low else high + 0.001


def _yarn_attention_factor(parameters: ModelConfig, factor: float) -> float:
    """0.1 · ln(factor) + 1 unless the config says otherwise."""

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = parameters.optional_number("attention_factor")
    if given is not None:
        return given
    weight = parameters.optional_number("mscale", minimum=-1.0)
    weight_all = parameters.optional_number("mscale_all_dim", minimum=-1.0)
    if weight and weight_all:
        return temperature(weight) / temperature(weight_all)
    return temperature(1.0)


ROPE_TYPES: dict[str, Callable[[RopeInputs], Rope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "factors": _factors,
}
"""One row for each kind of context extension."""
