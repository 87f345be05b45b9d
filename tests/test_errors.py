"""Errors cross processes whole: kind, text and fields."""

from __future__ import annotations

import copy
import pickle

import pytest

from pagoda import errors
from pagoda.cli.plan import DoesNotFitError
from pagoda.engine.failures import StepFailedError
from pagoda.engine.grammar import MatchError
from pagoda.engine.sampling.sampler import LogitsError
from pagoda.errors import (
    ContextLengthError,
    PagodaError,
    RefusedError,
    RequestTimeoutError,
    ShutDownError,
)

KINDS = {each for each in vars(errors).values() if isinstance(each, type)}
OWN_ARGUMENTS: dict[type[PagodaError], PagodaError] = {
    ContextLengthError: ContextLengthError(
        "prompt", "9 tokens", "at most 7", max_model_len=8, requested="10 tokens"
    ),
    RequestTimeoutError: RequestTimeoutError(2.5),
    ShutDownError: ShutDownError(),
    LogitsError: LogitsError(),
    StepFailedError: StepFailedError({"1": ShutDownError()}),
    MatchError: MatchError("nothing can fulfil it"),
    DoesNotFitError: DoesNotFitError("memory", 3, "at least 4"),
}


def example(kind: type[PagodaError]) -> PagodaError:
    own = OWN_ARGUMENTS.get(kind)
    if own is not None:
        return own
    return kind("field", {"a": [1]}, "a limit") if issubclass(kind, RefusedError) else kind("text")


def fields(error: object) -> dict[str, object]:
    return {name: str(value) for name, value in vars(error).items()}


@pytest.mark.parametrize("kind", sorted(KINDS | {*OWN_ARGUMENTS}, key=lambda kind: kind.__name__))
def test_an_error_is_the_same_behind_a_pickle_and_as_a_copy(kind: type[PagodaError]) -> None:
    error = example(kind)
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error) != ""
        assert fields(again) == fields(error)
        assert again.args == error.args


def test_a_field_may_be_told_by_another_name() -> None:
    error = ContextLengthError("prompt", "9 tokens", "at most 8", max_model_len=9, requested="10")
    assert error.of("prompt 2") is error
    assert error.field == "prompt 2"
    assert str(error).endswith("you requested 10. prompt 2='9 tokens': at most 8")
