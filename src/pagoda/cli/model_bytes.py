"""What a step of a model reads, from its files' description alone."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """Sizes in bytes, as the engine keeps them in memory."""

    weights: int
    """Of all matrices that a step reads: the layers' and the output head's."""
    kv_token: int
    """Of K and V of one token in all layers."""


def model_bytes(model: str) -> ModelBytes:
    """The sizes of a model on this machine, in the dtype of its checkpoint.

    Nothing is downloaded. Raises `RefusedError` for a model that is not here or not covered.
    """
    # These take seconds to import.
    from pagoda.models.load import load_spec
    from pagoda.models.locate import DEFAULT_MODEL, locate
    from pagoda.planning.floor import step_costs
    from pagoda.planning.workloads import WorkItem

    if model != DEFAULT_MODEL and not _is_here(model):
        limit = "is no directory or file on this machine: give --weight-bytes and --kv-token-bytes"
        raise InvalidOptionError("model", model, limit)
    spec = load_spec(locate(model))
    # The first step of a request keeps nothing yet: all it reads are weights.
    [first] = step_costs(spec, spec.dtype, [WorkItem((0,), 1)])
    return ModelBytes(first.read_bytes, spec.cache_spec(1, spec.dtype).block_bytes)


def _is_here(model: str) -> bool:
    from pathlib import Path

    try:
        return Path(model).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False
