"""Experts within a decoder's step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoders import decoder_spec, random_weights, rope_spec

from pagoda.execution.batch import Batch, GroupPages
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.models.decoder import SANDWICH_NORM, AttentionSpec, DecoderSpec, ExpertsSpec
from pagoda.models.expert_weights import ExpertsWeights
from pagoda.models.weights import DecoderWeights, LayerWeights
from pagoda.storage.cpu_storage import CPUStorage

ROWS = 21
ONE = ExpertsSpec(1, 1, 80)


def logits(
    spec: DecoderSpec, weights: DecoderWeights[torch.Tensor] | PanelWeights, num_threads: int = 2
) -> torch.Tensor:
    """Of some rows of one sequence."""
    storage = CPUStorage(spec.cache_spec(16, "bfloat16"), 8)
    executor = CPUExecutor(spec, PanelWeights.take_over(weights), storage, 64, num_threads)
    slots = np.concatenate([np.arange(48, 64), np.arange(80, 80 + ROWS - 16)])
    batch = Batch(
        token_ids=np.arange(ROWS),
        positions=np.arange(ROWS, dtype=np.int32),
        query_starts=np.array((0, ROWS), np.int32),
        context_lens=np.array([ROWS], np.int32),
        groups=(GroupPages.seeing_all(np.array([[3, 5]], np.int32), slots),),
        logit_rows=np.arange(ROWS),
        copy_sources=np.empty(0, np.int64),
        copy_targets=np.empty(0, np.int64),
    )
    return executor.forward(batch)


def with_one_expert(layer: LayerWeights[torch.Tensor]) -> LayerWeights[torch.Tensor]:
    assert layer.gate_up is not None
    assert layer.down is not None
    gate, up = layer.gate_up.chunk(2)
    router = torch.randn(1, gate.shape[1]).bfloat16()
    experts = ExpertsWeights(router, (gate,), (up,), (layer.down,))
    return replace(layer, gate_up=None, down=None, experts=experts)


@pytest.mark.parametrize("norms_output", [False, True])
def test_one_expert_is_a_plain_part(norms_output: bool):
    """Bit for bit, where what it makes is added to the stream and where it is normed first."""
    spec = decoder_spec([AttentionSpec(4, 2, 16, 0.25, rope_spec(16))] * 3)
    if norms_output:
        layers = tuple(replace(layer, norms=SANDWICH_NORM) for layer in spec.layers)
        spec = replace(spec, layers=layers)
    expected = logits(spec, random_weights(spec, torch.bfloat16)).clone()
    weights = random_weights(spec, torch.bfloat16)
    first, *others = spec.layers  # one of each kind: the others stay as they are
    changed = replace(spec, layers=(replace(first, mlp=ONE), *others))
    own, *rest = weights.layers
    mixed = replace(weights, layers=(with_one_expert(own), *rest))
    assert torch.equal(logits(changed, mixed), expected)


@pytest.mark.threads
def test_threads_that_come_late_count_the_items_of_their_own_layer():
    """Layer after layer sorts its rows into the same memory, while some may still be counting."""
    dense = decoder_spec([AttentionSpec(4, 2, 16, 0.25, rope_spec(16))] * 6)
    experts = ExpertsSpec(8, 2, 48)
    spec = replace(dense, layers=tuple(replace(layer, mlp=experts) for layer in dense.layers))
    generator = torch.Generator().manual_seed(0)
    plain = random_weights(dense, torch.bfloat16)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * 0.2).bfloat16()

    hidden = spec.hidden_size
    weights = replace(
        plain,
        layers=tuple(
            replace(
                layer,
                gate_up=None,
                down=None,
                experts=ExpertsWeights(
                    matrix(8, hidden),
                    tuple(matrix(48, hidden) for _ in range(8)),
                    tuple(matrix(48, hidden) for _ in range(8)),
                    tuple(matrix(hidden, 48) for _ in range(8)),
                ),
            )
            for layer in plain.layers
        ),
    )
    panels = PanelWeights.take_over(weights)
    expected = logits(spec, panels, num_threads=1).clone()
    for _ in range(20):
        assert torch.equal(logits(spec, panels), expected)
