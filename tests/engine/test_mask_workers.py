"""Masks that are worked out side by side are those of each matcher alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagoda import StructuredOutputs
from pagoda.engine.build import Model
from pagoda.engine.grammar import Grammars, Matcher, MatchError
from pagoda.engine.mask_workers import MaskWorkers

REGEXES = ("[a-f]{3}", "[0-9]+x", "(ab|cd)*e", "[a-z]{2,9}!")


class Panic(BaseException):
    """As a library in Rust raises it."""


class Failing:
    """An executor whose library gives up."""

    def unsafe_compute_mask_ptr(self, *given: Any) -> None:
        raise Panic("out of threads")


@pytest.fixture
def grammars(tiny_model: Model) -> Grammars:
    return Grammars(tiny_model.tokenizer, tiny_model.spec.vocab_size)


def matchers_of(grammars: Grammars) -> list[Matcher]:
    return [grammars.compile(StructuredOutputs(regex=each)).matcher() for each in REGEXES]


def test_masks_side_by_side_are_those_of_each_alone(grammars: Grammars) -> None:
    workers, together, alone = MaskWorkers(), matchers_of(grammars), matchers_of(grammars)
    said: list[list[int]] = [[] for _ in REGEXES]
    for _ in range(3):
        assert all(each.read(tokens) for each, tokens in zip(together, said, strict=True))
        workers.work_out(together)
        for here, there, tokens in zip(together, alone, said, strict=True):
            assert not here.read(tokens), "its mask is there"
            assert np.array_equal(here.follow(tokens), there.follow(tokens)[: here.num_tokens])
            tokens.append(int(np.flatnonzero(here.follow(tokens))[0]))


def test_a_matcher_that_has_failed_has_no_mask(grammars: Grammars) -> None:
    broken, *others = matchers_of(grammars)
    with pytest.raises(MatchError):
        broken.read([int(np.flatnonzero(~others[0].follow([]))[0])])  # what no rule allows
    workers = MaskWorkers()
    workers.work_out([broken, *others])
    assert not any(each.read([]) for each in others)
    with pytest.raises(MatchError):
        broken.follow([])


def test_each_is_alone_where_they_cannot_be_worked_out_together(
    grammars: Grammars, caplog: pytest.LogCaptureFixture
) -> None:
    workers, matchers = MaskWorkers(), matchers_of(grammars)
    workers._executor = Failing()  # type: ignore[assignment]
    workers.work_out(matchers)
    assert "one by one" in caplog.text
    assert all(each.read([]) for each in matchers)
    assert all(each.follow([]).any() for each in matchers)
