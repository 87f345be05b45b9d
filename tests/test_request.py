"""Sampling parameters are refused at the door, by name, or are what they say."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagoda
from limit_values import NO_REALS, NO_WHOLES, accepted, refused
from pagoda.errors import InvalidRequestError
from pagoda.limits import Limit, Real, Switch, Whole
from pagoda.request import (
    MAX_CHOICES,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    SAMPLING_LIMITS,
    Request,
    RequestOptions,
    SamplingParams,
)
from pagoda.structured import StructuredOutputs

BAD_BY_HAND: dict[str, list[Any]] = {
    "n": [*NO_WHOLES, None, 0, -1, MAX_CHOICES + 1, 10**9],
    "temperature": [*NO_REALS, -0.001, -1, 100.5],
    "top_p": [*NO_REALS, 0, 0.0, -0.5, 1.0001, 2],
    "top_k": [*NO_WHOLES, None, -2, 2**31],
    "min_p": [*NO_REALS, -0.1, 1.1],
    "seed": [*NO_WHOLES, 2**63, -(2**63) - 1],
    "repetition_penalty": [*NO_REALS, 0.0, -1.0, 1e-300, 0.009, 101],
    "presence_penalty": [*NO_REALS, -2.1, 2.1],
    "frequency_penalty": [*NO_REALS, -2.1, 2.1],
    "logit_bias": [
        3,
        [(1, 2.0)],
        "1",
        {"1": 2.0},
        {1.0: 2.0},
        {True: 2.0},
        {-1: 2.0},
        {2**31: 2.0},
        {1: "2"},
        {1: None},
        {1: math.nan},
        {1: 100.5},
        {1: -math.inf},
        dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 1.0),
    ],
    "max_tokens": [*NO_WHOLES, 0, -1, 2**31],
    "min_tokens": [*NO_WHOLES, None, -1, 2**31, 17],
    "stop": [
        3,
        {"a"},
        b"a",
        [""],
        "",
        ["a", None],
        ["a", 3],
        [["a"]],
        "a" * (MAX_STOP_CHARACTERS + 1),
        ["a"] * (MAX_STOPS + 1),
    ],
    "stop_token_ids": [
        3,
        "3",
        {3},
        [-1],
        [1.0],
        [True],
        ["3"],
        [None],
        [2**31],
        [3] * (MAX_STOPS + 1),
    ],
    "allowed_token_ids": [3, "3", [], [-1], [True], [None], [2**31], [3] * (2**14 + 1)],
    "bad_words": [3, "a", b"a", [""], [None], [["a"]], ["a" * 257], ["a"] * 129],
    "bad_words_ids": [3, "3", [3], [[]], [[-1]], [["3"]], [[1]] * 513],
    "ignore_eos": [1, 0, None, "true", []],
    "include_stop_str_in_output": [1, 0, None, "true"],
    "logprobs": [*NO_WHOLES, -1, MAX_LOGPROBS + 1],
    "prompt_logprobs": [*NO_WHOLES, -1, MAX_LOGPROBS + 1],
    "skip_special_tokens": [1, 0, None, "true"],
    "prompt_alone": [True, 1, None],  # True needs max_tokens=1
    "structured_outputs": [{}, {"regex": "a"}, "a", 1, True],
}

GOOD_BY_HAND: dict[str, list[Any]] = {
    "n": [1, MAX_CHOICES],
    "temperature": [0, 0.0, 1e-300, 1, 100],
    "top_p": [1e-300, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0, 0.5, 1],
    "seed": [None, 0, -(2**63), 2**63 - 1],
    "repetition_penalty": [0.01, 1, 100],
    "presence_penalty": [-2, 0, 2.0],
    "frequency_penalty": [-2, 0, 2.0],
    "logit_bias": [{}, {0: -100, 2**31 - 1: 100.0}],
    "max_tokens": [None, 1, 2**31 - 1],
    "min_tokens": [0, 16],
    "stop": [(), ("a",), ("日本", "\n")],
    "stop_token_ids": [(), (0, 2**31 - 1)],
    "allowed_token_ids": [None, (0,), (2**31 - 1, 3)],
    "bad_words": [(), ("a", " b c")],
    "bad_words_ids": [(), ((0,), (1, 2**31 - 1))],
    "ignore_eos": [True, False],
    "include_stop_str_in_output": [True, False],
    "logprobs": [None, 0, MAX_LOGPROBS],
    "prompt_logprobs": [None, 0, MAX_LOGPROBS],
    "skip_special_tokens": [True, False],
    "prompt_alone": [False],
    "structured_outputs": [None, StructuredOutputs(regex="a"), StructuredOutputs(json={})],
}

MADE_UP_LIMITS = [Whole(0, 3), Real(0.5, 0.75), Real(-1.0, 0.0, above_low=True), Switch()]
SOURCES = [
    path
    for path in Path(pagoda.__file__).parent.rglob("*.py")
    if path.name not in ("request.py", "protocol.py", "chat_request.py", "completion_request.py")
]
NAMES = [each.name for each in dataclasses.fields(SamplingParams)]
BAD = {name: BAD_BY_HAND.get(name, []) for name in NAMES}
GOOD = {name: GOOD_BY_HAND.get(name, []) for name in NAMES}
for name, limit in SAMPLING_LIMITS.items():
    BAD[name] = BAD[name] or refused(limit)
    GOOD[name] = GOOD[name] or accepted(limit)

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 30)
    | st.floats()
    | st.floats(-3, 3)
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.integers(-2, 9) | st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)


def test_a_prompt_alone_draws_one_token() -> None:
    assert SamplingParams(prompt_alone=True, max_tokens=1).prompt_alone


def test_no_field_is_left_out() -> None:
    assert set(BAD_BY_HAND) == set(GOOD_BY_HAND) <= set(NAMES)
    missing = [name for name in NAMES if not (BAD[name] and GOOD[name])]
    assert missing == [], (
        "fields of SamplingParams without a limit in their metadata (src/pagoda/request.py), and "
        "without rows in BAD_BY_HAND and GOOD_BY_HAND (tests/test_request.py)"
    )


def test_metadata_says_nothing_else_than_limits_and_the_words_of_flags() -> None:
    for each in dataclasses.fields(SamplingParams):
        assert set(each.metadata) in (set(), {"limit"}, {"limit", "flag"}), each.name


@pytest.mark.parametrize("limit", [*SAMPLING_LIMITS.values(), *MADE_UP_LIMITS], ids=str)
def test_values_made_from_a_limit_are_told_apart_by_it(limit: Limit) -> None:
    for value in accepted(limit):
        limit.check("x", value)
    for value in refused(limit):
        with pytest.raises(InvalidRequestError, match="x="):
            limit.check("x", value)


@pytest.mark.parametrize("name", NAMES)
def test_a_field_is_read_somewhere(name: str) -> None:
    reads = re.compile(rf"\.{name}\b")
    assert any(reads.search(path.read_text()) for path in SOURCES), (
        f"SamplingParams.{name} does nothing: no file reads it. What it changes in the logits of "
        f"single tokens is a rule, in a file under src/pagoda/engine/sampling/rules/"
    )


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_by_name(name: str) -> None:
    for value in BAD[name]:
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(**{name: value})
        assert caught.value.field == name, value
        assert caught.value.limit, value
        assert len(str(caught.value)) < 300, value
        assert "\n" not in str(caught.value), value


@pytest.mark.parametrize("name", GOOD)
def test_a_value_within_the_limits_is_kept(name: str) -> None:
    for value in GOOD[name]:
        assert getattr(SamplingParams(**{name: value}), name) == value


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, ANYTHING)))
def test_whatever_is_given_is_kept_or_refused_by_name(given_values: dict[str, Any]) -> None:
    params, refused = parameters_or_refusal(given_values)
    assert refused is None or refused.field in given_values
    if params is not None:
        assert SamplingParams(**{name: getattr(params, name) for name in GOOD}) == params
        assert hash(params) == hash(copy.copy(params))


def parameters_or_refusal(
    values: dict[str, Any],
) -> tuple[SamplingParams | None, InvalidRequestError | None]:
    try:
        return SamplingParams(**values), None
    except InvalidRequestError as error:
        return None, error


@given(st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in GOOD.items()}))
def test_good_values_go_together(values: dict[str, Any]) -> None:
    wanted = values.get("min_tokens", 0)
    limit = values.get("max_tokens", 16)
    if limit is not None and wanted > limit:
        with pytest.raises(InvalidRequestError, match="min_tokens=16: must be at most max_tokens"):
            SamplingParams(**values)
        return
    params = SamplingParams(**values)
    assert {name: getattr(params, name) for name in values} == values


def test_vllms_none_means_nothing() -> None:
    given_none: dict[str, Any] = {"stop": None, "stop_token_ids": None, "logit_bias": None}
    assert SamplingParams(**given_none) == SamplingParams()


def test_a_seed_of_minus_one_is_none() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=-2).seed == -2
    with pytest.raises(InvalidRequestError):
        SamplingParams(seed=-1.0)  # type: ignore[arg-type]


def test_one_stop_string_needs_no_list() -> None:
    assert SamplingParams(stop="a b").stop == ("a b",)  # type: ignore[arg-type]


def test_what_was_given_may_change_afterwards() -> None:
    stop, stop_token_ids, bias = ["a"], [1], {1: 1.0}
    params = SamplingParams(
        stop=stop,  # type: ignore[arg-type]
        stop_token_ids=stop_token_ids,  # type: ignore[arg-type]
        logit_bias=bias,
    )
    stop.append("")
    stop_token_ids.append(-1)
    bias[-1] = math.nan
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a",), (1,), {1: 1.0})


def test_parameters_cannot_change() -> None:
    params = SamplingParams(logit_bias={1: 1.0})
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        params.logit_bias[2] = 1.0  # type: ignore[index]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, dataclasses.replace])
def test_parameters_are_copied_whole(duplicate: Any) -> None:
    params = SamplingParams(n=2, logit_bias={1: 1.0}, stop=("a",))
    assert duplicate(params) == params


def test_a_request_travels_between_processes() -> None:
    request = Request("1", (1, 2), SamplingParams(logit_bias={1: 1.0}), frozenset({2}))
    assert pickle.loads(pickle.dumps(request)) == request


def test_the_models_end_of_sequence_can_be_ignored() -> None:
    eos = frozenset({2})
    stops = SamplingParams(stop_token_ids=(5,))
    assert Request("1", (1,), stops, eos).stop_token_ids == {2, 5}
    ignoring = dataclasses.replace(stops, ignore_eos=True)
    assert Request("1", (1,), ignoring, eos).stop_token_ids == {5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", True),
        ("priority", 1.0),
        ("tenant", None),
        ("cache_salt", 7),
        ("add_special_tokens", 1),
    ],
)
def test_an_option_of_a_request_of_the_wrong_type_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        RequestOptions(**{field: value})  # type: ignore[arg-type]
    assert refused.value.field == field
