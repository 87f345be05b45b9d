"""Log-probabilities against a plain softmax."""

from __future__ import annotations

import math

import pytest
import torch
from samplers import Subject

from pagoda.engine.outputs import Logprob
from pagoda.engine.sampling.row import SamplingRow
from pagoda.request import SamplingParams


def reference(values: list[float], target_id: int, num_top: int) -> dict[int, tuple[float, int]]:
    """id -> log-probability, rank."""
    log_total = math.log(sum(math.exp(value) for value in values))
    order = sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))
    ranks = {t: 1 + sum(value > values[t] for value in values) for t in [target_id, *order]}
    return {t: (values[t] - log_total, ranks[t]) for t in [target_id, *order[:num_top]]}


@pytest.mark.parametrize("vocab_size", [1, 2, 21, 300])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_against_a_plain_softmax(
    subject: Subject, vocab_size: int, num_top: int, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.shrink_tiles(monkeypatch, 4 * vocab_size)
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(10, vocab_size, generator=generator) * 3
    if step:
        logits = (logits / step).round() * step
    targets = torch.randint(vocab_size, (10,), generator=generator).tolist()
    found = subject.token_logprobs(logits, targets, num_top)
    for entry, values, target_id in zip(found, logits.double().tolist(), targets, strict=True):
        expected = reference(values, target_id, num_top)
        assert list(entry) == list(expected)
        assert {t: logprob.rank for t, logprob in entry.items()} == {
            t: rank for t, (_, rank) in expected.items()
        }
        for token_id, (value, _) in expected.items():
            assert entry[token_id].logprob == pytest.approx(value, abs=1e-5)


def test_samples_report_the_models_own_logits(subject: Subject) -> None:
    """Before bias, penalties and temperature, as many as each row asks for."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]] * 3)
    common = {"temperature": 0.0, "logit_bias": {0: 100.0}}
    rows = [
        SamplingRow(SamplingParams(logprobs=num_top, **common), 0, [1], [], frozenset())
        for num_top in (2, None, 0)
    ]
    found = [token.logprobs for token in subject.sample(logits, rows)]
    log_total = math.log(sum(math.exp(value) for value in range(4)))
    chosen = {0: Logprob(pytest.approx(-log_total), 4)}
    top = {t: Logprob(pytest.approx(t - log_total), rank) for rank, t in ((1, 3), (2, 2))}
    assert found == [chosen | top, None, chosen]


def test_no_targets(subject: Subject) -> None:
    assert subject.token_logprobs(torch.empty(0, 5), [], 3) == []


def test_a_row_with_nan_among_equals_disturbs_no_other(subject: Subject) -> None:
    """Such a row has no token, but its log-probabilities are looked up with the others'."""
    logits = torch.tensor([[0.0, math.nan, 0.0, 0.0], [1.0, 2.0, 1.0, 1.0]])
    _, sound = subject.token_logprobs(logits, [0, 3], 2)
    assert [(token_id, entry.rank) for token_id, entry in sound.items()] == [(3, 2), (1, 1), (0, 2)]
