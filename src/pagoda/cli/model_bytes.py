"""What a step of a model reads, by the planner's account."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """Sizes in bytes, over all accelerators of a replica."""

    weights: int
    """Of all matrices that a step reads, of experts those that its sequences choose."""
    kv_token: int
    """Of K and V of one token, in the layers that keep every token."""


def model_bytes(model: str, engine: str = "vllm", num_sequences: int = 1) -> ModelBytes:
    """The sizes of whatever `pagoda plan` knows by that name, in a step of so many sequences.

    Raises `RefusedError` for a model that is not known or not covered.
    """
    from pagoda.cli.plan_model import find_facts
    from pagoda.planning.plan import make_plan
    from pagoda.planning.request import PlanRequest
    from pagoda.planning.subject import read_subject

    facts, request = find_facts(model), PlanRequest(engine=engine)
    weights = read_subject(facts, request, None).weights.read_bytes(num_sequences)
    return ModelBytes(weights, round(make_plan(facts, request).token_bytes))
