"""Constraints are measured before anything is made of them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from pagoda.errors import InvalidRequestError
from pagoda.structured import MAX_CONSTRAINT_CHARACTERS, StructuredOutputs, has_more_characters


class Unlooked(dict[str, Any]):
    """An object that may not be looked into."""

    def values(self) -> Any:
        raise AssertionError("looked at behind the bound")


def random_value(rng: Random, depth: int = 0) -> Any:
    kind = rng.randrange(5 if depth < 4 else 3)
    if kind == 3:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 4:
        return {str(number): random_value(rng, depth + 1) for number in range(rng.randrange(4))}
    return rng.choice([1, -(10**30), -2.5, None, True, "", "some text"])


def test_counting_ends_at_the_bound() -> None:
    for beside in ("x" * 100, [1] * 100, {"x" * 100: 1}, 10**150):
        assert has_more_characters([Unlooked(), beside], 99)
    with pytest.raises(AssertionError):
        has_more_characters([Unlooked(), "x"], 99)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_has_as_many(seed: int) -> None:
    value = {"all": random_value(Random(seed))}
    num = len(json.dumps(value))
    assert not has_more_characters(value, num)
    assert has_more_characters(value, num // 6)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [[0] * MAX_CONSTRAINT_CHARACTERS]},
        {"description": "x" * MAX_CONSTRAINT_CHARACTERS},
        {"x" * MAX_CONSTRAINT_CHARACTERS: 1},
    ],
)
def test_a_large_schema_is_not_written_to_be_refused(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    monkeypatch.setattr(json, "dumps", lambda value: written.append(value) or "{}")
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_CONSTRAINT_CHARACTERS}"):
        StructuredOutputs(json=schema)
    assert written == []
