"""Rotary positions in a GGUF file, as the `rope_parameters` of a config."""

from __future__ import annotations

from typing import Any

from pagoda.errors import ModelError
from pagoda.models.gguf import GGUFFile
from pagoda.models.gguf_metadata import ArchitectureKeys
from pagoda.models.rope_types import LONGROPE

ROPE_FACTORS = "rope_freqs.weight"
LENGTH_FACTORS = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}
_MOST_FACTORS = 2**13
"""Pairs of numbers in the largest head."""
ORIGINAL_LENGTH = "rope.scaling.original_context_length"
_SCALING = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": ORIGINAL_LENGTH,
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
_ATTENTION_FACTOR = "rope.scaling.attn_factor"


def rope_parameters(own: ArchitectureKeys, file: GGUFFile, length_key: str) -> dict[str, Any]:
    """The kind of context extension and its numbers; divisors are tensors of the file.

    `length_key` has the length before an extension by two lists of divisors, where the file does
    not say it. Raises `UnsupportedModelError` for two extensions at once, `ModelError` for divisors
    that are no vector.
    """
    kind = own.get("rope.scaling.type", "none")
    tensors = [name for name in (ROPE_FACTORS, *LENGTH_FACTORS.values()) if name in file.tensors]
    if tensors and kind not in ("none", LONGROPE):
        raise own.unsupported("rope.scaling.type", kind, f"not covered together with {tensors[0]}")
    if ROPE_FACTORS in tensors:
        own.require({_ATTENTION_FACTOR: 1.0})
        return {"rope_type": "factors", "factors": _factors(file, ROPE_FACTORS)}
    if tensors:
        return {
            "rope_type": LONGROPE,
            **{field: _factors(file, name) for field, name in LENGTH_FACTORS.items()},
            "original_max_position_embeddings": own.get(ORIGINAL_LENGTH) or own.needed(length_key),
            "attention_factor": own.get(_ATTENTION_FACTOR, 1.0),
        }
    own.require({_ATTENTION_FACTOR: 1.0})
    if kind == "none":
        return {"rope_type": "default"}
    return {"rope_type": kind} | {name: own.get(key) for name, key in _SCALING.items()}


def _factors(file: GGUFFile, name: str) -> list[float]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError(name, None, "the file lacks this vector")
    if len(tensor.shape) > 1 or tensor.shape[0] > _MOST_FACTORS:
        limit = f"must be a vector of at most {_MOST_FACTORS}"
        raise ModelError(name, tensor.shape, limit)
    values: list[float] = file.read_rows(name, slice(None))[0].tolist()
    return values
