"""The sampler on a device gives what the one in main memory gives, and keeps the device busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samplers import PARAMS, SUBJECTS, logits_of, row_of, sample
from torch.utils._python_dispatch import TorchDispatchMode

from engine.conftest import MakeLLM
from pagoda import RequestOutput, StructuredOutputs
from pagoda.engine.grammar import Matcher
from pagoda.engine.llm import LLM
from pagoda.engine.sampling import gpu_sampler
from pagoda.engine.sampling.cpu_sampler import CPUSampler
from pagoda.engine.sampling.gpu_logits import change_on_gpu, changes_of
from pagoda.engine.sampling.gpu_sampler import GPUSampler
from pagoda.engine.sampling.logits import change_logits
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.sampler import Draws, SampledToken
from pagoda.engine.sampling.uniforms import uniforms
from pagoda.kernels import reference
from pagoda.kernels.gpu.pinned import all_to_device
from pagoda.request import SamplingParams
from triton_device import DEVICE

NEAR = 1e-6
"""Nearer to an end of a token's interval than this, sums in another order may decide otherwise."""


class AllowedAlone(Matcher):
    """A grammar that always allows the same tokens."""

    def __init__(self, allowed: Sequence[int], num_known: int) -> None:
        self._allowed_ever = np.isin(np.arange(num_known), allowed)

    def follow(self, output_token_ids: Sequence[int]) -> np.ndarray:
        return self._allowed_ever


# ---- the same tokens -------------------------------------------------------------------------


def interval(logits: torch.Tensor, params: SamplingParams, token_id: int) -> tuple[float, float]:
    """The random numbers, of [0, 1), that draw a token, in float64."""
    row = logits.double().numpy()
    weights = reference.drawable(
        row, params.temperature, max(params.top_k, 0), params.top_p, params.min_p
    )
    ids = list(weights)
    cumulative = np.cumsum(list(weights.values()))
    place = ids.index(token_id)
    before = cumulative[place - 1] if place else 0.0
    return before / cumulative[-1], cumulative[place] / cumulative[-1]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=40, temperature=2.0),
        SamplingParams(top_k=20, top_p=0.95, temperature=0.6),
        SamplingParams(top_k=2000, temperature=3.0),
        SamplingParams(top_p=0.9),
        SamplingParams(min_p=0.0237),
    ],
    ids=str,
)
def test_other_tokens_come_up_only_where_two_intervals_meet(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random numbers anywhere, and as many as can be where tokens' intervals end."""
    logits = logits_of(1, 5000, seed=4)
    rows = [row_of(params, seed=seed) for seed in range(100)]
    some = sample(CPUSampler(), logits.expand(len(rows), -1), rows)
    ends = [interval(logits[0], params, token.token_id)[1] for token in some]
    shifts = np.random.default_rng(0).normal(size=len(ends)) * NEAR / 4
    anywhere = uniforms([row.seed for row in rows], [0] * len(rows))
    numbers = np.clip(np.concatenate([anywhere, ends + shifts]), 0.0, np.nextafter(1.0, 0.0))
    for subject in SUBJECTS.values():
        subject.draw_with(monkeypatch, lambda n: numbers)
    found = [subject.choose(logits.expand(200, -1), rows * 2) for subject in SUBJECTS.values()]
    for number, here, there in zip(numbers, *found, strict=True):
        if here != there:
            first, second = sorted(interval(logits[0], params, each) for each in (here, there))
            assert abs(number - first[1]) < NEAR
            assert abs(number - second[0]) < NEAR
    for drawn in found:
        assert drawn[:100] == [token.token_id for token in some]


@given(
    st.lists(
        st.tuples(st.sampled_from([*PARAMS.values(), SamplingParams(top_p=0.9)]), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 1000),
)
def test_a_batch_of_all_kinds_is_sampled_alike(
    kinds: list[tuple[SamplingParams, bool]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for index, (params, has_grammar) in enumerate(kinds):
        matcher = AllowedAlone(rng.integers(600, size=30).tolist(), 550) if has_grammar else None
        output = rng.integers(600, size=seed % 9).tolist()
        stops = frozenset({4, 7})
        asked = replace(params, logprobs=None if index % 2 else index % 5)
        rows.append(SamplingRow(asked, seed + index, [1, 2, 2], output, stops, matcher))
    logits = logits_of(len(rows), 600, seed=seed, step=0.125)
    here, there = (subject.sample(logits, rows) for subject in SUBJECTS.values())
    assert [token.token_id for token in there] == [token.token_id for token in here]
    for mine, other in zip(here, there, strict=True):
        assert (mine.logprobs is None) == (other.logprobs is None)
        if mine.logprobs is not None and other.logprobs is not None:
            assert list(mine.logprobs) == list(other.logprobs)
            for token_id, entry in mine.logprobs.items():
                assert other.logprobs[token_id].rank == entry.rank
                assert other.logprobs[token_id].logprob == pytest.approx(entry.logprob, abs=1e-5)


PROMPTS = ["The sea", "a", "Once upon a time"]


def outputs_of(llm: LLM) -> list[RequestOutput]:
    common = {"max_tokens": 8, "ignore_eos": True}
    params = [
        SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=3, **common),
        SamplingParams(seed=1, top_k=5, presence_penalty=0.5, n=3, **common),
        SamplingParams(seed=2, structured_outputs=StructuredOutputs(regex="[0-9]{5}"), **common),
    ]
    return llm.generate(PROMPTS, params, use_tqdm=False)


class NotedSampler(GPUSampler):
    """Counts what it is asked."""

    num_calls = 0

    def begin(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]
    ) -> Draws:
        self.num_calls += 1
        return super().begin(logits, rows, positions)


def test_an_engine_answers_the_same_with_either(make_llm: MakeLLM) -> None:
    expected = outputs_of(make_llm())
    llm, sampler = make_llm(), NotedSampler()
    llm.engine._sampler = sampler
    found = outputs_of(llm)
    assert sampler.num_calls >= 8
    for mine, other in zip(found, expected, strict=True):
        assert [c.token_ids for c in mine.outputs] == [c.token_ids for c in other.outputs]
    for mine, other in (
        (found[0].outputs[0].logprobs, expected[0].outputs[0].logprobs),
        (found[0].prompt_logprobs, expected[0].prompt_logprobs),
    ):
        assert [None if each is None else list(each) for each in mine] == [
            None if each is None else list(each) for each in other
        ]


# ---- changes of logits -----------------------------------------------------------------------

CHANGES = [
    SamplingParams(logit_bias={0: 2.5, 3: -100.0, 8: 0.1}),
    SamplingParams(min_tokens=14),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.7, frequency_penalty=0.3, presence_penalty=-0.1),
    SamplingParams(frequency_penalty=1.1, logit_bias={2: 5.0}, min_tokens=14),
    SamplingParams(),
]


@given(
    st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3)), min_size=1, max_size=8),
    st.sampled_from((9, 16, 100)),
    st.integers(0, 1000),
)
def test_logits_are_changed_to_the_last_bit_as_in_main_memory(
    kinds: list[tuple[SamplingParams, int]], vocab_size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for params, grammar in kinds:
        matchers = {
            1: AllowedAlone(rng.integers(vocab_size, size=4).tolist(), vocab_size + 30),
            2: AllowedAlone([1, 2, 4, 5], vocab_size - 3),
            3: AllowedAlone([4, 5], vocab_size),  # nothing but stops
        }
        prompt, output = (rng.integers(vocab_size, size=n).tolist() for n in (20, seed % 13))
        stops = frozenset({4, 5, 10**6})
        rows.append(SamplingRow(params, 0, prompt, output, stops, matchers.get(grammar)))
    logits = logits_of(len(rows), vocab_size, seed=seed)
    expected = logits.numpy().copy()
    change_logits(expected, rows)
    changes = changes_of(rows, vocab_size)
    values = logits.clone().to(DEVICE)
    change_on_gpu(values, changes.sent(iter(all_to_device(changes.arrays, DEVICE))))
    assert np.array_equal(values.cpu().numpy(), expected)


def test_parcels_keep_dtypes_shapes_and_numbers() -> None:
    arrays = [
        np.arange(5, dtype=np.uint8),
        np.empty((0, 7), np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([[1.5]], np.float64),
        np.array([3], np.int32),
    ]
    for sent, array in zip(all_to_device(arrays, DEVICE), arrays, strict=True):
        assert sent.shape == array.shape
        assert np.array_equal(sent.cpu().numpy(), array)
        assert sent.cpu().numpy().dtype == array.dtype


# ---- in two parts ----------------------------------------------------------------------------


def test_begin_reads_all_that_wait_tells() -> None:
    """The engine may go on with the next step, which overwrites logits and lengthens outputs."""
    outputs = [[5, 6], [7], []]
    params = [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(logprobs=2)]
    rows = [row_of(p, seed=9, output=o) for p, o in zip(params, outputs, strict=True)]
    logits = logits_of(3, 700).to(DEVICE)
    expected = sample(GPUSampler(), logits, rows)
    pending = GPUSampler().begin(logits, rows, [len(row.output_token_ids) for row in rows])
    assert pending.token_ids.device.type == DEVICE.type
    logits.fill_(torch.nan)
    for output in outputs:
        output.append(1)
    assert pending.token_ids.tolist() == [token.token_id for token in expected]
    assert pending.wait() == expected
    assert pending.wait() == expected, "it may be asked again"


def test_what_is_not_finite_is_told_when_the_tokens_are_waited_for() -> None:
    logits = logits_of(4, 300).to(DEVICE)
    logits[2, 17] = torch.nan
    pending = GPUSampler().begin(logits, [row_of(PARAMS["top_k 20"])] * 4, [0] * 4)
    assert ((pending.token_ids >= 0) & (pending.token_ids < 300)).all(), (
        "the next step may embed it"
    )
    assert [token is None for token in pending.wait()] == [False, False, True, False]


# ---- what it costs ---------------------------------------------------------------------------

BY_ID = ["temperature 1", "low temperature", "bias", "min_tokens", "presence", "repetition, greedy"]


@pytest.mark.parametrize("name", [*BY_ID, "greedy"])
def test_rows_without_filters_are_not_sorted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("sorted")

    for function in ("topk", "sort", "argsort"):
        monkeypatch.setattr(torch.Tensor, function, refuse)
    logits = logits_of(5, 1000).to(DEVICE)
    assert len(sample(GPUSampler(), logits, [row_of(PARAMS[name], output=[1])] * 5)) == 5


def num_copies_and_draws(
    rows: Sequence[SamplingRow], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """How often a batch sends something to the device, and for how many tiles it draws."""
    counts = {"all_to_device": 0, "draw_by_id": 0, "draw_by_rank": 0}

    def counted(name: str) -> None:
        function = getattr(gpu_sampler, name)

        def count(*args: object, **kwargs: object) -> object:
            counts[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(gpu_sampler, name, count)

    for name in counts:
        counted(name)
    logits = logits_of(len(rows), 500).to(DEVICE)
    found: list[SampledToken] = sample(GPUSampler(), logits, rows)
    assert len(found) == len(rows)
    return counts["all_to_device"], counts["draw_by_id"] + counts["draw_by_rank"]


def test_a_batch_takes_one_copy_and_as_many_draws_as_there_are_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows(*names: str) -> list[SamplingRow]:
        return [row_of(PARAMS[name], output=[1]) for name in names * 50]

    for names, expected in (
        (("greedy",), (0, 0)),
        (("temperature 1", "low temperature"), (1, 1)),
        (("greedy", "temperature 1", "top_k 20", "top_k 128"), (1, 2)),
        (("greedy", "temperature 1", "presence", "min_p low", "top_k 20"), (1, 4)),
    ):
        with monkeypatch.context() as patch:
            assert num_copies_and_draws(rows(*names), patch) == expected


class Operations(TorchDispatchMode):
    """Notes what is launched, and refuses what would wait for the device to tell something."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "repeat_interleave")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        assert name not in self.WAITING, f"{name} waits for the device"
        self.names.append(name)
        return function(*args, **(kwargs or {}))


def operations(rows: Sequence[SamplingRow]) -> list[str]:
    logits = logits_of(len(rows), 2000)
    with Operations() as noted:
        GPUSampler().begin(logits, rows, [0] * len(rows))
    return noted.names


@pytest.mark.parametrize("name", PARAMS)
def test_begin_waits_for_nothing_and_launches_the_same_for_any_number_of_rows(name: str) -> None:
    matcher = AllowedAlone([3, 4], 1990)
    rows = [row_of(PARAMS[name], output=[1]), row_of(replace(PARAMS[name], logprobs=3))]
    rows.append(SamplingRow(PARAMS[name], 0, [1], [2], frozenset({5}), matcher))
    few, many = operations(rows * 2), operations(rows * 40)
    assert few == many
    assert "sort" not in few or name in ("min_p high", "min_p low", "min_p 1", "top_k beyond")


def test_greedy_rows_take_a_look_at_the_logits_and_little_else() -> None:
    assert len(operations([row_of(PARAMS["greedy"])] * 30)) < 12
