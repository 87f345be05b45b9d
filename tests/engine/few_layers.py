"""The default model with some of its layers: a step takes a share of the time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pagoda.engine.build import Model
from pagoda.engine.devices.cpu_backend import CPUModel


def with_layers(model: Model, numbers: Iterable[int], num_logits: int | None = None) -> Model:
    """The same weights, but of these layers alone: another model, and a worse one.

    And of the first `num_logits` tokens alone, where not all are wanted: prompts hold no others.
    """
    loaded = model.loaded
    assert isinstance(loaded, CPUModel)
    kept = tuple(numbers)
    spec = replace(
        loaded.spec,
        layers=tuple(loaded.spec.layers[number] for number in kept),
        vocab_size=num_logits or loaded.spec.vocab_size,
    )
    weights = replace(
        loaded.weights, layers=tuple(loaded.weights.layers[number] for number in kept)
    )
    return replace(model, loaded=replace(loaded, spec=spec, weights=weights))
