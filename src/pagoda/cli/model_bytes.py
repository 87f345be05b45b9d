"""What a step of a model reads, by the planner's account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagoda.errors import RefusedError

if TYPE_CHECKING:
    from pagoda.planning.request import ModelFacts, PlanRequest
    from pagoda.planning.subject import Subject

_LONG = 2**17
"""Tokens of a sequence where layers that do not read all that they keep read least of it."""


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """Sizes in bytes, over all accelerators of a replica."""

    weights: int
    """Bytes of all matrices that a step reads; of the experts, those that its sequences choose."""
    kv_token: float | None
    """Read at least for each token that a held block has room for; None where not known."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of how it runs the model; None where it does not."""

    engine: str = "vllm"
    gpu: str | None = None
    """As the planner knows it; None: not told."""
    tensor_parallel_size: int = 1
    dtype: str | None = None
    """Of weights and activations."""
    kv_cache_dtype: str | None = None
    skipped_layers: tuple[int, ...] = ()
    """Those that keep the dtype of the activations all the same."""
    block_size: int | None = None
    kv_retention: str | None = None
    """What stays of each sequence."""
    quantization: str | None = None
    """As the flag of the engine that made it so."""
    num_sequences: int = 1
    """In a step of one replica: the more, the more experts it reads."""


def model_bytes(facts: ModelFacts, served: Served) -> ModelBytes:
    """The sizes of a model as it is served. Raises `RefusedError` for one that is not covered."""
    from pagoda.planning.request import PlanRequest
    from pagoda.planning.subject import read_subject

    # Neither the length of requests nor that of a batch matters to what a step reads.
    whole = PlanRequest(
        engine=served.engine,
        gpu=served.gpu,
        tensor_parallel_size=served.tensor_parallel_size,
        quantization=served.quantization,
        max_model_len=1,
        max_num_batched_tokens=1,
    )
    whole = _in_dtype(facts, whole, served)
    weights = read_subject(facts, whole, None).weights.read_bytes(served.num_sequences)
    return ModelBytes(weights, _kv_token(facts, whole, served))


def _in_dtype(facts: ModelFacts, whole: PlanRequest, served: Served) -> PlanRequest:
    """With the dtype that the server says, where it can be: what it says is nobody's mistake."""
    from dataclasses import replace

    from pagoda.planning.subject import read_subject

    said = replace(whole, dtype=served.dtype or whole.dtype)
    try:
        read_subject(facts, said, None)
    except RefusedError:
        return whole
    return said


def _kv_token(facts: ModelFacts, whole: PlanRequest, served: Served) -> float | None:
    """bytes that a long sequence reads / tokens that its blocks have room for, over all ranks."""
    from dataclasses import replace

    from pagoda.planning.subject import read_subject

    stored = replace(
        whole,
        kv_cache_dtype=served.kv_cache_dtype or "auto",
        kv_cache_dtype_skip_layers=served.skipped_layers,
        kv_retention=served.kv_retention or whole.kv_retention,
        block_size=served.block_size,
    )
    try:
        subject = read_subject(facts, stored, None)
    except RefusedError:  # what the server says of its cache is nobody's mistake here
        return None
    block_size = served.block_size or subject.pool.block_size
    return _read_bytes(subject) / (subject.pool.num_blocks(_LONG) * block_size)


def _read_bytes(subject: Subject) -> int:
    read = sum(layer.read_bytes(_LONG) for layer in subject.kept_layers)
    return read * subject.options.tensor_parallel_size
