"""All samplers against a plain slow one, and the promises that make their draws repeatable."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samplers import PARAMS, SUBJECTS, Subject, logits_of, row_of, sample

from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.rules.logit_bias import LogitBias
from pagoda.engine.sampling.rules.min_tokens import MinTokens
from pagoda.engine.sampling.rules.output_penalties import OutputPenalties
from pagoda.engine.sampling.rules.repetition_penalty import RepetitionPenalty
from pagoda.engine.sampling.sampler import SampledToken
from pagoda.engine.sampling.uniforms import uniforms
from pagoda.request import SamplingParams

VOCAB_SIZES = (1, 2, 100, 256, 257, 1000, 1025)
"""Around the sizes at which samplers change their ways: chunks of 256, selection of 1,024."""

TOLERANCE = 1e-5
"""Error of a cumulative probability: the sampler adds float32 weights, the reference float64."""


# ---- the plain slow sampler ------------------------------------------------------------------


def reference_uniform(seed: int, position: int) -> float:
    """SplitMix64 in Python's own integers."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & mask
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & mask
        return bits ^ (bits >> 31)

    return (mix((mix((seed + golden) & mask) + (position + 1) * golden) & mask) >> 11) / 2**53


VLLMS_ORDER = (LogitBias(), MinTokens(), RepetitionPenalty(), OutputPenalties())


def reference_logits(logits: torch.Tensor, row: SamplingRow) -> list[float]:
    """The row's logits after bias, mask and penalties."""
    values = logits.double().tolist()
    for rule in VLLMS_ORDER:
        rule.reference(values, row)
    return values


def reference_weights(values: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """What may be drawn, in the order of the draw: id -> weight."""
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)  # of equals, by id
    largest = values[order[0]]
    weights = {t: math.exp((values[t] - largest) / params.temperature) for t in order}
    if params.top_k <= 0 and params.top_p == 1.0 and params.min_p == 0.0:
        return dict(sorted(weights.items()))
    weights = {t: weight for t, weight in weights.items() if weight >= params.min_p}
    if params.top_k > 0:
        weights = dict(itertools.islice(weights.items(), params.top_k))
    mass = sum(weights.values())
    before = 0.0
    kept = {}
    for token_id, weight in weights.items():
        if before >= params.top_p * mass:
            break
        kept[token_id] = weight
        before += weight
    return kept


def assert_chosen(token_id: int, weights: Mapping[int, float], row: SamplingRow) -> None:
    """`token_id` is what the plain slow sampler would choose of these."""
    assert token_id in weights
    mass = sum(weights.values())
    uniform = reference_uniform(row.seed, len(row.output_token_ids))
    before = 0.0
    for other, weight in weights.items():
        if other == token_id:
            break
        before += weight
    assert weights[token_id] > 0
    assert before / mass - TOLERANCE <= uniform
    assert uniform <= (before + weights[token_id]) / mass + TOLERANCE


def between_ranks(logits: torch.Tensor, params: SamplingParams, num_kept: int) -> SamplingParams:
    """`params` with the top_p that keeps `num_kept` tokens, as far from the next as can be."""
    weights = list(reference_weights(logits.double().tolist(), replace(params, top_p=1.0)).values())
    before, here = sum(weights[: num_kept - 1]), weights[num_kept - 1]
    return replace(params, top_p=(before + here / 2) / sum(weights))


def rows_with(params: SamplingParams, num_rows: int, vocab_size: int) -> list[SamplingRow]:
    """Rows that have come some way."""
    generator = np.random.default_rng(vocab_size)
    bias = {t % vocab_size: bias for t, bias in params.logit_bias.items()}
    return [
        row_of(
            replace(params, logit_bias=bias),
            seed=index,
            prompt=generator.integers(vocab_size, size=20).tolist(),
            output=generator.integers(vocab_size, size=7).tolist(),
            stops=frozenset({vocab_size // 2}) if vocab_size > 1 else frozenset(),
        )
        for index in range(num_rows)
    ]


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_each_parameter_does_what_it_says(name: str, step: float) -> None:
    """By every sampler: of a row, what the plain one would choose is worked out once for all."""
    for vocab_size in VOCAB_SIZES:
        rows = rows_with(PARAMS[name], 12, vocab_size)
        logits = logits_of(len(rows), vocab_size, seed=vocab_size, step=step)
        found = [subject.choose(logits, rows) for subject in SUBJECTS.values()]
        for chosen, row_logits, row in zip(zip(*found, strict=True), logits, rows, strict=True):
            values = reference_logits(row_logits, row)
            if row.params.temperature == 0.0:
                assert set(chosen) == {values.index(max(values))}, vocab_size
                continue
            weights = reference_weights(values, row.params)
            for token_id in chosen:
                assert_chosen(token_id, weights, row)


@pytest.mark.parametrize(
    "base",
    [
        SamplingParams(temperature=4.0),
        SamplingParams(temperature=4.0, top_k=100),
        SamplingParams(temperature=4.0, top_k=900),
        SamplingParams(temperature=4.0, min_p=1e-9),
        SamplingParams(temperature=4.0, min_p=0.21),
    ],
    ids=["alone", "top_k 100", "top_k 900", "all-keeping min_p", "min_p"],
)
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_top_p_keeps_the_nucleus_of_what_the_others_leave(
    subject: Subject, base: SamplingParams, step: float
) -> None:
    for num_kept in (1, 2, 5, 50, 127, 128, 129, 200, 800):
        logits = logits_of(1, 1000, seed=num_kept, step=step)
        values = logits[0].double().tolist()
        available = len(reference_weights(values, base))
        params = between_ranks(logits[0], base, min(num_kept, available))
        weights = reference_weights(values, params)
        rows = [row_of(params, seed=seed) for seed in range(20)]
        for token_id, row in zip(subject.choose(logits.expand(20, -1), rows), rows, strict=True):
            assert_chosen(token_id, weights, row)


def test_top_k_1_is_greedy_also_among_equals(subject: Subject) -> None:
    logits = logits_of(40, 700, seed=3, step=1.0)
    top = [row_of(SamplingParams(top_k=1), seed=seed) for seed in range(40)]
    greedy = [row_of(SamplingParams(temperature=0.0))] * 40
    assert subject.choose(logits, top) == subject.choose(logits, greedy)


def test_a_temperature_too_small_for_float32_is_greedy(subject: Subject) -> None:
    logits = logits_of(4, 300) * 1e3
    tiny = [row_of(SamplingParams(temperature=1e-300))] * 4
    assert subject.choose(logits, tiny) == logits.argmax(1).tolist()


def test_equal_logits_everywhere(subject: Subject) -> None:
    logits = torch.zeros(200, 1000)
    for params in (SamplingParams(), SamplingParams(top_p=0.5), SamplingParams(top_k=400)):
        rows = [row_of(params, seed=seed) for seed in range(200)]
        chosen = subject.choose(logits, rows)
        expected = 1000 * params.top_p if params.top_k <= 0 else params.top_k
        uniform = [reference_uniform(seed, 0) for seed in range(200)]
        exact = [u * expected for u in uniform]
        assert all(abs(c + 0.5 - e) <= 0.51 for c, e in zip(chosen, exact, strict=True))


def test_the_logits_are_not_changed(subject: Subject) -> None:
    logits = logits_of(len(PARAMS), 500)
    before = logits.clone()
    subject.sample(
        logits, [row_of(params, prompt=[1, 2], output=[3]) for params in PARAMS.values()]
    )
    assert torch.equal(logits, before)


# ---- draws -----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40)), min_size=1),
)
def test_uniforms_are_splitmix64(streams: list[tuple[int, int]]) -> None:
    seeds, positions = zip(*streams, strict=True)
    found = uniforms(seeds, positions).tolist()
    assert found == [reference_uniform(*stream) for stream in streams]
    assert all(0.0 <= uniform < 1.0 for uniform in found)


def test_neighbouring_streams_share_no_numbers() -> None:
    seeds, positions = np.divmod(np.arange(100_000), 100)
    assert len(np.unique(uniforms(seeds.tolist(), positions.tolist()))) == 100_000


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_a_token_without_probability_is_never_drawn(
    subject: Subject, vocab_size: int, uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.draw_with(monkeypatch, lambda n: uniform)
    for only in {0, vocab_size // 2, vocab_size - 1}:
        logits = torch.full((1, vocab_size), -1e6)
        logits[0, only] = 0.0
        for params in (SamplingParams(), SamplingParams(top_p=0.99), SamplingParams(top_k=900)):
            assert subject.choose(logits, [row_of(params)]) == [only]


def test_the_last_draw_is_still_a_token(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums rounded in different ways must not lead beyond the row."""
    last = np.nextafter(1.0, 0.0)
    subject.draw_with(monkeypatch, lambda n: last)
    for vocab_size in (200, 300, 1000):
        for params in (SamplingParams(), SamplingParams(top_k=900), SamplingParams(top_p=0.9)):
            chosen = subject.choose(logits_of(500, vocab_size), [row_of(params)] * 500)
            assert all(0 <= token_id < vocab_size for token_id in chosen)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=4)])
def test_a_token_owns_the_lower_end_of_its_interval(
    subject: Subject, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform = np.array([0.0, 0.25, 0.5, 0.75])
    subject.draw_with(monkeypatch, lambda n: uniform)
    assert subject.choose(torch.zeros(4, 4), [row_of(params)] * 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=6),
        SamplingParams(top_k=250, temperature=3.0),
        SamplingParams(min_p=0.05),
        SamplingParams(top_k=20, min_p=0.02, temperature=1.5),
    ],
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    """Pearson's statistic over 20,000 draws; fixed seeds, so it either holds or it does not."""
    num_draws, vocab_size = 20_000, 300
    logits = logits_of(1, vocab_size, seed=11)
    weights = reference_weights(logits[0].double().tolist(), params)
    expected = np.array([weights.get(t, 0.0) for t in range(vocab_size)])
    expected *= num_draws / expected.sum()
    likely = expected > 5
    degrees = likely.sum() - 1
    counts = {name: np.zeros(vocab_size) for name in SUBJECTS}
    for first in range(0, num_draws, 1000):
        positions = range(first, first + 1000)
        rows = [row_of(params, seed=7, output=range(position)) for position in positions]
        for name, subject in SUBJECTS.items():
            np.add.at(counts[name], subject.choose(logits.expand(1000, -1), rows), 1)
    for name, found in counts.items():
        assert found[expected == 0].sum() == 0, name
        statistic = ((found - expected)[likely] ** 2 / expected[likely]).sum()
        assert statistic < degrees + 5 * math.sqrt(2 * degrees), name


# ---- a row's result is its own ---------------------------------------------------------------

CROWD = [
    row_of(params, seed=seed, prompt=[1, 2, 3], output=[5, 5, seed % 7], stops=frozenset({4}))
    for seed, params in enumerate(
        replace(params, logprobs=None if index % 3 else index % 5, temperature=temperature)
        for index, params in enumerate([*PARAMS.values(), SamplingParams(top_p=0.9)])
        for temperature in (0.0, 0.7, 3.0)
    )
]
CROWD_LOGITS = logits_of(len(CROWD), 777, seed=5, step=0.25)


@cache
def alone(subject: Subject) -> list[SampledToken]:
    return [subject.sample(CROWD_LOGITS[i : i + 1], [row])[0] for i, row in enumerate(CROWD)]


@given(st.lists(st.sampled_from(range(len(CROWD))), min_size=1, max_size=2 * len(CROWD)))
def test_a_row_does_not_depend_on_its_neighbours(subject: Subject, members: list[int]) -> None:
    together = subject.sample(CROWD_LOGITS[members], [CROWD[member] for member in members])
    assert together == [alone(subject)[member] for member in members]


def test_tiles_do_not_show(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.shrink_tiles(monkeypatch, 3 * CROWD_LOGITS.shape[1])
    assert subject.sample(CROWD_LOGITS, CROWD) == alone(subject)


def test_a_seed_is_a_stream_of_draws(subject: Subject) -> None:
    logits = logits_of(1, 500).expand(50, -1)

    def stream(seed: int) -> list[int]:
        return subject.choose(
            logits, [row_of(SamplingParams(), seed, output=range(n)) for n in range(50)]
        )

    assert stream(1) == stream(1)
    assert stream(1) != stream(2)
    assert stream(-1) == stream(2**64 - 1)


# ---- what cannot be sampled ------------------------------------------------------------------


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["greedy", "temperature 1", "top_k 20", "min_p high"])
def test_broken_logits_give_no_token_and_change_no_other(
    subject: Subject, name: str, broken: float
) -> None:
    logits = logits_of(5, 400)
    rows = [row_of(replace(PARAMS[name], logprobs=2), seed=seed) for seed in range(5)]
    expected: list[SampledToken | None] = [*subject.sample(logits, rows)]
    logits[1, 399] = broken
    logits[3, 0] = broken
    expected[1] = expected[3] = None
    assert sample(subject.sampler, logits.to(subject.device), rows) == expected


def test_a_row_without_any_finite_logit_is_broken(subject: Subject) -> None:
    logits = torch.full((1, 10), -math.inf, device=subject.device)
    assert sample(subject.sampler, logits, [row_of(SamplingParams())]) == [None]


@pytest.mark.parametrize("name", PARAMS)
def test_minus_infinity_is_a_token_that_cannot_be(subject: Subject, name: str) -> None:
    logits = torch.full((8, 600), -math.inf)
    logits[:, [3, 300]] = torch.tensor([1.0, 0.5])
    rows = [row_of(PARAMS[name], seed=seed) for seed in range(8)]
    assert set(subject.choose(logits, rows)) <= {3, 300}


def test_stop_tokens_outside_the_vocabulary_are_no_matter(subject: Subject) -> None:
    params = SamplingParams(temperature=0.0, min_tokens=3)
    rows = [row_of(params, stops=frozenset({999, 2})), row_of(params, stops=frozenset(range(3)))]
    assert subject.choose(torch.tensor([[0.0, 1.0, 2.0]] * 2), rows) == [1, 2]
