"""How large heads are by the metadata of a GGUF file, and how much of each rotates."""

from __future__ import annotations

import math
from typing import Any

from pagoda.models.config import ModelConfig
from pagoda.models.gguf_architectures import GGUFArchitecture
from pagoda.models.gguf_metadata import ArchitectureKeys

_KEY, _VALUE, _ROTATED = "attention.key_length", "attention.value_length", "rope.dimension_count"
_HEADS = "attention.head_count"
_MADE_OF_LATENTS = "_mla"
"""Ending of the keys for heads that are made of latents, where a file keeps latents as heads."""


def head_sizes(row: GGUFArchitecture, own: ArchitectureKeys, config: ModelConfig) -> dict[str, Any]:
    """The fields of a config that say it.

    Raises `UnsupportedModelError` for values of another size than keys, or heads that rotate in
    part where the architecture has no such thing, `ModelError` for sizes that contradict others.
    """
    return _latent(own, config) if row.is_latent else _grouped(row, own, config)


def _grouped(row: GGUFArchitecture, own: ArchitectureKeys, config: ModelConfig) -> dict[str, Any]:
    """A file without `key_length` derives it, whatever the family would do; all of it rotates
    where the file does not say otherwise."""
    head_dim = config.optional_integer("head_dim")
    if head_dim is None:
        head_dim = _share_of_hidden(own, config)
    value_length = own.get(_VALUE, head_dim)
    if value_length != head_dim:
        raise own.unsupported(_VALUE, value_length, f"only the head size, {head_dim}, is covered")
    return {"head_dim": head_dim, **_rotated(row, own, head_dim)}


def _share_of_hidden(own: ArchitectureKeys, config: ModelConfig) -> int:
    """Raises `ModelError` for heads that do not share the stream evenly."""
    hidden, heads = (config.integer(name) for name in ("hidden_size", "num_attention_heads"))
    if hidden % heads:
        limit = f"must divide embedding_length, {hidden}, where no key tells the head size"
        raise own.error(_HEADS, heads, limit)
    return hidden // heads


def _latent(own: ArchitectureKeys, config: ModelConfig) -> dict[str, Any]:
    """Of latent attention: what of a head's key rotates, the rest of it, and a head's value.

    Newer files say of the latents what others say of heads, and the same of heads by keys of their
    own.
    """
    keeps_latents = own.raw(_KEY + _MADE_OF_LATENTS) is not None
    ending = _MADE_OF_LATENTS if keeps_latents else ""
    names = (_ROTATED, _KEY + ending, _VALUE + ending)
    sizes = ModelConfig({name: own.get(name) for name in names}, own.prefix)
    rotated, key = (sizes.integer(name) for name in names[:2])
    if rotated >= key:
        raise own.error(names[1], key, f"must be more than the {rotated} numbers that rotate")
    value = sizes.optional_integer(names[2])
    if value is None and not keeps_latents:
        value = _share_of_hidden(own, config)
    return {
        "head_dim": None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": sizes.integer(names[2], default=value),
    }


def _rotated(row: GGUFArchitecture, own: ArchitectureKeys, head_dim: int) -> dict[str, Any]:
    count = own.get(_ROTATED, head_dim)
    if not row.rotates_partly:
        if count != head_dim:
            limit = f"only the head size, {head_dim}, is covered"
            raise own.unsupported(_ROTATED, count, limit)
        return {}
    if type(count) is not int or not 0 < count <= head_dim:
        raise own.error(_ROTATED, count, f"must be at most the head size, {head_dim}")
    return {"partial_rotary_factor": rotated_share(count, head_dim)}


def rotated_share(count: int, head_dim: int) -> float:
    """The share of a head's numbers that rotate, which gives their count when it is multiplied."""
    share = count / head_dim
    return share if int(head_dim * share) == count else math.nextafter(share, 1.0)
