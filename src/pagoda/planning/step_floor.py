"""The least time of any step of a model on a machine, by the same account as `speed`.

    seconds = the longer of
        (weights + cache read) / bandwidth
        (2 × numbers × tokens + 2 × numbers of the head × tokens drawn + pairs) / rate

Layers that see a window alone, and states of fixed size, are left out of what grows with the
context: a floor lies below.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.errors import InvalidOptionError
from pagoda.planning.capability import product_rate
from pagoda.planning.pool import rank_layers
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.speed import attended
from pagoda.planning.subject import read_subject
from pagoda.planning.weights import Weights

_LONG = 2**17
"""Tokens of a sequence of which a window sees next to nothing."""


@dataclass(frozen=True, slots=True)
class StepFloor:
    """What steps of one model on one machine cannot do without."""

    weights: Weights
    cache_token_bytes: float
    """Read for each token of a context, over all devices."""
    pair_operations: float
    """For each token computed and each that it sees."""
    bandwidth: float
    """Bytes a second, of all devices."""
    rate: float
    """Operations a second, of all devices."""

    def seconds(
        self, *, num_tokens: int, num_sampled: int, num_context_tokens: int, num_pairs: int
    ) -> float:
        """Of a step that computes and draws so many tokens; see `StepWork` for the rest."""
        read = self.weights.read_bytes(num_tokens) + self.cache_token_bytes * num_context_tokens
        parts = self.weights.parameters
        head = parts.head or parts.embedding
        products = 2 * ((parts.active - head) * num_tokens + head * num_sampled)
        operations = products + self.pair_operations * num_pairs
        return max(read / self.bandwidth, operations / self.rate)


def step_floor(facts: ModelFacts, request: PlanRequest) -> StepFloor:
    """The floor of a model on the GPU that the request names.

    Raises `RefusedError` as `make_plan`, and `InvalidOptionError` without a GPU.
    """
    if request.gpu is None:
        raise InvalidOptionError("gpu", None, "an accelerator by name: H100, L4, MI300X …")
    subject = read_subject(facts, request, None)
    assert subject.device is not None
    ranks = rank_layers(subject.model, subject.options)
    layers = [layer for kept in ranks for layer in kept]
    size = subject.options.tensor_parallel_size
    pairs = sum(each * seen for each, seen in attended(layers, subject.model, _LONG)) / _LONG
    return StepFloor(
        weights=subject.weights,
        cache_token_bytes=sum(layer.read_bytes(_LONG) for layer in layers) * size / _LONG,
        pair_operations=pairs,
        bandwidth=subject.device.bandwidth * size,
        rate=product_rate(subject.device, subject.quantization) * size,
    )
