"""What a text's queries, keys and values are like, beside the reference of the model."""

from __future__ import annotations

import decoders
import numpy as np
import pytest
import torch
from decoders import decoder_spec, random_weights, rope_spec, tokens
from torch.nn import functional

from pagoda.execution import reference
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.cpu.vector_statistics import VectorStatistics
from pagoda.models.decoder import AttentionSpec, QKNorm
from pagoda.storage.cpu_storage import CPUStorage

WIDE = AttentionSpec(6, 2, 32, 32**-0.5, rope_spec(32), qk_norm=QKNorm.HEAD, qkv_bias=True)
NARROW = AttentionSpec(4, 4, 16, 0.2, rope_spec(16), sliding_window=9)
SPEC = decoder_spec([WIDE, WIDE, NARROW])
TEXTS = [tokens(60, 1), tokens(45, 2)]


def seen_by_reference(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[torch.Tensor, ...]]]:
    """Of each layer and text: queries, keys, values, [heads, tokens, head_dim]."""
    found: list[list[tuple[torch.Tensor, ...]]] = []
    rotate = reference.rotate
    weights = random_weights(SPEC)
    rotated: list[torch.Tensor] = []

    def keep(x: torch.Tensor, rope: object) -> torch.Tensor:
        rotated.append(rotate(x, rope))  # type: ignore[arg-type]
        return rotated[-1]

    monkeypatch.setattr(reference, "rotate", keep)
    for text in TEXTS:
        rotated.clear()
        reference.reference_logits(SPEC, weights, text)
        pairs = zip(rotated[::2], rotated[1::2], strict=True)
        found.append([(queries, keys) for queries, keys in pairs])
    return found


def test_moments_and_samples_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = PanelWeights.take_over(random_weights(SPEC))
    spec = SPEC.cache_spec(16, "float32")
    storage = CPUStorage(spec, 8 * len(spec.groups))
    executor = CPUExecutor(SPEC, weights, storage, 64, 2)
    statistics = VectorStatistics(SPEC, weights, len(TEXTS))
    for text in TEXTS:
        statistics.read(executor, text)
    seen = seen_by_reference(monkeypatch)
    plain = random_weights(SPEC)
    count = sum(map(len, TEXTS))
    for number, (keys, values) in enumerate(statistics.of_layers()):
        attention = SPEC.layers[number].attention
        heads, size = attention.num_kv_heads, attention.head_dim
        queries = np.concatenate([text[number][0].numpy() for text in seen], axis=1)
        grouped = queries.reshape(heads, -1, size)
        assert keys.metric * count == pytest.approx(
            np.einsum("hti,htj->hij", grouped, grouped), rel=1e-3, abs=1e-2
        )
        own = np.concatenate([text[number][1].numpy() for text in seen], axis=1)
        assert keys.moments * count == pytest.approx(
            np.einsum("hti,htj->hij", own, own), rel=1e-3, abs=1e-2
        )
        assert keys.samples == pytest.approx(own, abs=1e-3)
        weight = plain.layers[number].o.float().numpy()
        columns = weight.reshape(len(weight), heads, -1, size)
        assert values.metric == pytest.approx(
            np.einsum("ohgi,ohgj->hij", columns, columns), rel=1e-4, abs=1e-4
        )
        assert values.samples.shape == own.shape
        total = np.einsum("hti,htj->hij", values.samples, values.samples)
        assert values.moments * count == pytest.approx(total, rel=1e-3, abs=1e-2)


def test_values_are_what_the_first_layer_makes_of_the_tokens() -> None:
    weights = random_weights(SPEC)
    layer = weights.layers[0]
    hidden = reference.normed(
        weights.embedding[torch.tensor(TEXTS[0])].float(), layer.attention_norm, SPEC.norm
    )
    qkv = functional.linear(hidden, layer.qkv.float(), layer.qkv_bias.float())
    expected = qkv[:, -64:].reshape(-1, 2, 32).transpose(0, 1).numpy()
    panels = PanelWeights.take_over(random_weights(SPEC))
    spec = SPEC.cache_spec(16, "float32")
    storage = CPUStorage(spec, 8 * len(spec.groups))
    executor = CPUExecutor(SPEC, panels, storage, 64, 1)
    for num_sequences, step in ((1, 1), (512, 15)):  # of many, four vectors each are kept
        statistics = VectorStatistics(SPEC, panels, num_sequences)
        statistics.read(executor, TEXTS[0])
        _, values = next(statistics.of_layers())
        assert values.samples == pytest.approx(expected[:, ::step], abs=1e-3)
    assert decoders.tokens(60, 1) == TEXTS[0]
