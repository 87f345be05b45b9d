"""Flags against the model: what cannot be is refused before anything is computed."""

from __future__ import annotations

from pagoda.cache.formats import FLOAT_DTYPES, canonical
from pagoda.cache.retention import require_length
from pagoda.errors import InvalidOptionError
from pagoda.planning.architecture import Architecture
from pagoda.planning.capability import dtype_on
from pagoda.planning.request import PlanRequest
from pagoda.planning.tables import Accelerator


def dtype_of_run(request: PlanRequest, own: str, device: Accelerator | None) -> str:
    """vLLM's dtype of weights that are not quantised, `own` being the checkpoint's.

    Where nothing is said it takes bfloat16 in place of float32, and float16 where the device has no
    bfloat16.
    """
    if request.dtype == "auto":
        return dtype_on(device, {"float32": "bfloat16"}.get(own, own))
    dtype = canonical(request.dtype)
    if dtype not in FLOAT_DTYPES:
        raise InvalidOptionError("dtype", request.dtype, f"one of auto, {', '.join(FLOAT_DTYPES)}")
    return dtype


def max_model_len_of(request: PlanRequest, made_for: int | None) -> int:
    """The longest request; `InvalidOptionError` where it is not known or more than there may be."""
    if request.max_model_len is None:
        if made_for is None:
            limit = "the config does not say for how many positions it is: give --max-model-len"
            raise InvalidOptionError("max_model_len", None, limit)
        return made_for
    if made_for is not None and request.planned_engine.is_pagoda:
        require_length(request.max_model_len, made_for, request.retention)
    elif made_for is not None and request.max_model_len > made_for:
        limit = f"at most {made_for}, the positions the model was made for"
        raise InvalidOptionError("max_model_len", request.max_model_len, limit)
    return request.max_model_len


def require_divisible(request: PlanRequest, model: Architecture) -> None:
    """Raises `InvalidOptionError` where ranks cannot share the model's heads evenly."""
    size = request.tensor_parallel_size
    if model.num_heads % size:
        limit = f"must divide the model's {model.num_heads} attention heads"
        raise InvalidOptionError("tensor_parallel_size", size, limit)
    for layer in model.cached_layers:
        kept = layer.vectors
        if kept is not None and kept.num_kv_heads % size and size % kept.num_kv_heads:
            limit = f"must divide the {kept.num_kv_heads} KV heads, or be a multiple of them"
            raise InvalidOptionError("tensor_parallel_size", size, limit)
