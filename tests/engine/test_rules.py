"""Every rule of the table, with both appliers, against its slow reference."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from samplers import logits_of

from limit_values import accepted
from pagoda.engine.sampling import rules
from pagoda.engine.sampling.gpu_logits import change_on_gpu, changes_of
from pagoda.engine.sampling.logits import change_logits
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.rule import Edit, Rule
from pagoda.engine.sampling.rules.output_penalties import OutputPenalties
from pagoda.engine.sampling.rules.table import RULES
from pagoda.engine.sampling.token_counts import TokenCounts
from pagoda.kernels.gpu.pinned import all_to_device
from pagoda.request import SAMPLING_LIMITS, SamplingParams
from triton_device import DEVICE

VOCAB_SIZE = 40
NUM_ROWS = 6
NO_NUMBERS: dict[str, list[Any]] = {
    "logit_bias": [{}, {0: 2.5, 3: -100.0, 8: 0.1}],
    "allowed_token_ids": [None, (7,), (9, 3, 3, 39)],
    "bad_words_ids": [(), ((7,), (8,), (7,)), tuple((a, b) for a in range(40) for b in (2, 3))],
}
"""Values of fields that have no limit to make them from."""


def names(rule: Rule) -> str:
    return type(rule).__name__


def values_of(field: str) -> list[Any]:
    if field in NO_NUMBERS:
        return NO_NUMBERS[field]
    assert field in SAMPLING_LIMITS, (
        f"SamplingParams.{field} has no limit in its metadata (src/pagoda/request.py), nor a row "
        f"in NO_NUMBERS (tests/engine/test_rules.py)"
    )
    default = getattr(SamplingParams(), field)
    return [*dict.fromkeys([default, *accepted(SAMPLING_LIMITS[field])])]


def settings_of(rule: Rule) -> Iterator[dict[str, Any]]:
    """Every combination of some values of the rule's fields."""
    for values in itertools.product(*map(values_of, rule.fields)):
        yield dict(zip(rule.fields, values, strict=True))


def rows_with(settings: dict[str, Any]) -> list[SamplingRow]:
    params = SamplingParams(max_tokens=None, **settings)
    rng = np.random.default_rng(0)
    said = [rng.integers(VOCAB_SIZE, size=index * 5).tolist() for index in range(NUM_ROWS)]
    asked = [rng.integers(VOCAB_SIZE, size=index * 4).tolist() for index in range(NUM_ROWS)]
    stops = frozenset({4, 5, 10**6})
    return [SamplingRow(params, 0, *each, stops) for each in zip(asked, said, strict=True)]


def in_main_memory(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    values = logits.numpy().copy()
    change_logits(values, rows)
    return values


def on_device(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    changes = changes_of(rows, VOCAB_SIZE)
    values = logits.clone().to(DEVICE)
    change_on_gpu(values, changes.sent(iter(all_to_device(changes.arrays, DEVICE))))
    return values.cpu().numpy()


def by_reference(rule: Rule, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    found = logits.double().tolist()
    for values, row in zip(found, rows, strict=True):
        if rule.is_asked(row.params):
            rule.reference(values, row)
    return np.array(found)


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_both_appliers_do_what_the_slow_reference_does(rule: Rule) -> None:
    logits = logits_of(NUM_ROWS, VOCAB_SIZE, seed=3)
    for settings in settings_of(rule):
        rows = rows_with(settings)
        here, there = in_main_memory(logits, rows), on_device(logits, rows)
        assert np.array_equal(here, there), f"{settings}: the appliers differ"
        expected = by_reference(rule, logits, rows)
        assert np.allclose(here, expected, rtol=1e-6, atol=1e-6), settings


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_every_field_of_a_rule_changes_something(rule: Rule) -> None:
    logits = logits_of(NUM_ROWS, VOCAB_SIZE, seed=3)
    tried = list(settings_of(rule))
    results = [in_main_memory(logits, rows_with(settings)).tobytes() for settings in tried]
    for field in rule.fields:
        found: dict[str, set[bytes]] = {}
        for settings, result in zip(tried, results, strict=True):
            others = {name: value for name, value in settings.items() if name != field}
            found.setdefault(str(others), set()).add(result)
        assert any(len(group) > 1 for group in found.values()), f"{field} changes no logit"


def test_default_parameters_ask_for_no_rule() -> None:
    row = SamplingRow(SamplingParams(), 0, [1], [2], frozenset({3}))
    assert row.rules == ()
    assert not row.changes_logits
    assert not row.awaits_token


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.reads_output], ids=names)
def test_a_rule_that_reads_no_output_says_the_same_after_any(rule: Rule) -> None:
    num_asked = 0
    for settings in settings_of(rule):
        rows = [row for row in rows_with(settings) if rule.is_asked(row.params)]
        assert all(rule.is_due(row) and not row.awaits_token for row in rows)
        assert len({str(rule.entries(row)) for row in rows}) == bool(rows)
        num_asked += len(rows)
    assert num_asked


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_a_rule_names_a_token_once(rule: Rule) -> None:
    for settings in settings_of(rule):
        for row in rows_with(settings):
            if rule.is_asked(row.params) and rule.is_due(row):
                token_ids, numbers = rule.entries(row)
                assert len(set(token_ids.tolist())) == len(token_ids) == len(numbers)
                assert (token_ids.dtype, numbers.dtype) == (np.int64, np.float32)


# ---- nothing is forgotten --------------------------------------------------------------------


def unlisted(listed: Sequence[Rule]) -> list[str]:
    """Rules that a file under `rules/` has and `listed` has not, and files without a rule."""
    missing = []
    for module in pkgutil.iter_modules(rules.__path__):
        if module.name == "table":
            continue
        members = vars(importlib.import_module(f"{rules.__name__}.{module.name}")).values()
        found = [each for each in members if isinstance(each, type) and issubclass(each, Rule)]
        own = [each for each in found if each is not Rule]
        missing += [f"rules/{module.name}.py has no rule"] if not own else []
        missing += [
            f"rules/{module.name}.py: {each.__name__} is in no line of RULES "
            f"(src/pagoda/engine/sampling/rules/table.py)"
            for each in own
            if each not in map(type, listed)
        ]
    return missing


def test_every_rule_is_in_the_table() -> None:
    assert unlisted(RULES) == []


def test_a_rule_that_is_not_in_the_table_is_told() -> None:
    [told] = unlisted([rule for rule in RULES if not isinstance(rule, OutputPenalties)])
    assert told.startswith("rules/output_penalties.py: OutputPenalties is in no line of RULES")


def test_a_field_that_sampling_params_does_not_have_is_told() -> None:
    with pytest.raises(TypeError, match=r"Unknown.fields: SamplingParams .* has no made_up"):

        class Unknown(Rule):
            fields = ("made_up",)
            edit = Edit.ADD


# ---- counts ----------------------------------------------------------------------------------


def test_counts_follow_a_list_that_grows() -> None:
    growing: list[int] = []
    counts = TokenCounts(growing, start=(7, 7, 1))
    for new in ([], [1], [9, 9], [7], [2], [9, *range(100)]):
        growing += new
        everything = [7, 7, 1, *growing]
        token_ids, found = (each.tolist() for each in counts.look())
        assert sorted(token_ids) == sorted({*everything})
        assert found == [everything.count(each) for each in token_ids]
