"""The angles of every kind of context extension.

A model rotates pair i of a head by position · inv_freq[i]; without extension
inv_freq[i] = theta ** (-2i / rotary_dim) (Su et al. 2021, arXiv 2104.09864). The extensions:

    linear        all angles divided by `factor` (position interpolation, Chen et al. 2023)
    dynamic       theta raised with the longest sequence (NTK-aware scaling)
    llama3        long wavelengths divided by `factor`, short ones kept, those between interpolated
    yarn          the same by a ramp over the pairs; cosine and sine scaled too (arXiv 2309.00071)
    longrope      each angle divided by a factor of its own, of two lists: one for short sequences,
                  one for long; cosine and sine scaled too (arXiv 2402.13753)
    proportional  the first pairs of a head, with the angles that they have in a whole one (Gemma 4)
    factors       each angle divided by a factor of its own, as GGUF files of Llama 3 carry them

Arithmetic is in float32, as in the code the models were trained with; powers are rounded to it
from float64, which agrees with PyTorch's to the last bit nearly always.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import RopeSpec

_LARGEST_FACTOR = 2**20
"""Many times that of any model."""

LONGROPE = "longrope"
PROPORTIONAL = "proportional"

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
    rotated_share: float
    """Of the numbers of a head, above 0 and up to 1."""
    theta: float
    max_position_embeddings: int
    original_max_position_embeddings: int
    max_model_len: int | None

    @property
    def rotary_dim(self) -> int:
        """The numbers of a head that rotate: its first ones."""
        return int(self.head_dim * self.rotated_share)

    @property
    def inv_freq(self) -> Angles:
        """The angles without any extension, [rotary_dim / 2]."""
        return _inverse_frequencies(self.theta, self.rotary_dim)


def extension_factor(parameters: ModelConfig, default: float | None = None) -> float:
    """By how much sequences may be longer; `ModelError` where it is missing, wrong or huge."""
    factor = parameters.number("factor", default=default)
    if factor > _LARGEST_FACTOR:
        raise parameters.error("factor", factor, f"must be at most {_LARGEST_FACTOR}")
    return factor


def yarn_temperature(factor: float, weight: float = 1.0) -> float:
    """0.1 · weight · ln(factor) + 1, what YaRN scales cosine and sine by; 1 up to a factor of 1."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _inverse_frequencies(theta: float, rotary_dim: int) -> Angles:
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    wavelengths = np.power(theta, exponents.astype(np.float64)).astype(np.float32)
    angles: Angles = np.float32(1.0) / wavelengths
    return angles


def _rope(angles: Angles, longest: int, attention_factor: float = 1.0) -> Rope:
    return Rope(RopeSpec(tuple(angles.tolist()), attention_factor), longest)


def _default(inputs: RopeInputs) -> Rope:
    return _rope(inputs.inv_freq, inputs.max_position_embeddings)


def _proportional(inputs: RopeInputs) -> Rope:
    """Pairs lie as in a head that is rotated whole; those after the first ones have no angle."""
    num_rotated = int(inputs.rotated_share * inputs.head_dim // 2)
    angles = _inverse_frequencies(inputs.theta, inputs.head_dim)
    angles[num_rotated:] = 0.0
    factor = np.float32(extension_factor(inputs.parameters, default=1.0))
    return _rope(angles / factor, inputs.max_position_embeddings)


def _factors(inputs: RopeInputs) -> Rope:
    angles = inputs.inv_freq / _divisors(inputs, "factors")
    return _rope(angles, inputs.max_position_embeddings)


def _divisors(inputs: RopeInputs, name: str) -> Angles:
    """A list of the parameters: a number above 0 for each pair."""
    parameters, num_pairs = inputs.parameters, inputs.rotary_dim // 2
    values = parameters.values.get(name)
    if values is None:
        raise parameters.missing(name)
    if type(values) not in (list, tuple) or len(values) != num_pairs:
        limit = f"must be a list of {num_pairs} numbers, one for each pair that rotates"
        raise parameters.error(name, values, limit)
    for value in values:
        if type(value) not in (int, float) or not 0 < value <= _LARGEST_FACTOR:
            limit = f"must be numbers above 0, at most {_LARGEST_FACTOR}"
            raise parameters.error(name, value, limit)
    return np.array(values, dtype=np.float32)


def _linear(inputs: RopeInputs) -> Rope:
    factor = extension_factor(inputs.parameters)
    longest = int(inputs.original_max_position_embeddings * factor)
    return _rope(inputs.inv_freq / np.float32(factor), longest)


def _dynamic(inputs: RopeInputs) -> Rope:
    """NTK-aware scaling, fixed for the longest sequence that the engine will run.

    The formula asks for the length of the running sequence. Keys already in the cache were rotated
    with the angles of their time, so the length that counts here is the engine's limit: up to the
    model's own length the angles are exactly those without extension.
    """
    factor = extension_factor(inputs.parameters)
    own = inputs.max_position_embeddings
    longest = int(own * factor)
    length = max(own, longest if inputs.max_model_len is None else inputs.max_model_len)
    growth = factor * length / own - (factor - 1)
    theta = inputs.theta * growth ** (inputs.rotary_dim / (inputs.rotary_dim - 2))
    return _rope(_inverse_frequencies(theta, inputs.rotary_dim), longest)


def _longrope(inputs: RopeInputs) -> Rope:
    """LongRoPE, by the list that belongs to the longest sequence that the engine will run.

    The method takes the one or the other list by the length of the running sequence. As for
    `dynamic` the length that counts here is the engine's limit, since one sequence cannot have keys
    of both: `short_factor` up to the length before the extension, `long_factor` for all sequences
    of an engine that runs longer ones.
    """
    limit = inputs.max_model_len or inputs.max_position_embeddings
    length = "long" if limit > inputs.original_max_position_embeddings else "short"
    divisors = {name: _divisors(inputs, f"{name}_factor") for name in ("short", "long")}
    angles = inputs.inv_freq / divisors[length]
    return _rope(angles, inputs.max_position_embeddings, _longrope_attention_factor(inputs, length))


def _longrope_attention_factor(inputs: RopeInputs, length: str) -> float:
    """sqrt(1 + ln(factor) / ln(original)) unless the config says otherwise.

    Phi-3.5-MoE says it for either list, as `short_mscale` and `long_mscale`.
    """
    parameters, original = inputs.parameters, inputs.original_max_position_embeddings
    for name in (f"{length}_mscale", "attention_factor"):
        given = parameters.optional_number(name)
        if given is not None:
            return given
    factor = extension_factor(parameters, default=inputs.max_position_embeddings / original)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _llama3(inputs: RopeInputs) -> Rope:
    parameters = inputs.parameters
    factor = np.float32(extension_factor(parameters))
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
    factor = extension_factor(parameters, default=inputs.max_position_embeddings / original)
    low, high = _yarn_range(inputs, original)
    ramp = (np.arange(inputs.rotary_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(
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
        return inputs.rotary_dim * math.log(wavelengths) / (2 * math.log(inputs.theta))

    low = pair_that_turns(inputs.parameters.number("beta_fast", default=32.0))
    high = pair_that_turns(inputs.parameters.number("beta_slow", default=1.0))
    if inputs.parameters.boolean("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, inputs.rotary_dim - 1)
    return low, high if high != low else high + 0.001


def _yarn_attention_factor(parameters: ModelConfig, factor: float) -> float:
    """YaRN's temperature unless the config says otherwise; DeepSeek's is a ratio of two."""
    given = parameters.optional_number("attention_factor")
    if given is not None:
        return given
    weight = parameters.optional_number("mscale", minimum=-1.0)
    weight_all = parameters.optional_number("mscale_all_dim", minimum=-1.0)
    if weight and weight_all:
        return yarn_temperature(factor, weight) / yarn_temperature(factor, weight_all)
    return yarn_temperature(factor)


ROPE_TYPES: dict[str, Callable[[RopeInputs], Rope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    LONGROPE: _longrope,
    PROPORTIONAL: _proportional,
    "factors": _factors,
}
"""One row for each kind of context extension."""
