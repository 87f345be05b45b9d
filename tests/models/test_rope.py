"""Which rotary embedding a config asks for, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.rope import ONE_FOR_ALL, RopeForm, read_rope

LONGEST = 4096
PARTIAL = RopeForm(partial_rotary_factor=1.0)
FULL = RopeForm("full_attention")
SLIDING = RopeForm("sliding_attention", theta_field="rope_local_base_freq", extended=False)


def test_both_forms_of_config_say_the_same():
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    values = {"max_position_embeddings": LONGEST, "rope_parameters": parameters}
    new = read_rope(ModelConfig(values), 64, 10_000.0, None)
    for scaling in ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}):
        old = ModelConfig(
            {"max_position_embeddings": LONGEST, "rope_theta": 5e5, "rope_scaling": scaling}
        )
        assert read_rope(old, 64, 10_000.0, None) == new


def test_theta_comes_from_the_parameters_then_the_config_then_the_family():
    def second_angle(**config: Any) -> float:
        values = ModelConfig({"max_position_embeddings": LONGEST, **config})
        return read_rope(values, 4, 10_000.0, None).spec.inv_freq[1]

    assert second_angle() == pytest.approx(1e-2)
    assert second_angle(rope_theta=1e6, rope_scaling=None) == pytest.approx(1e-3)
    assert second_angle(rope_theta=1e6, rope_parameters={"rope_theta": 1e8}) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        (
            {"rope_parameters": {"rope_type": "axial"}},
            UnsupportedModelError,
            "rope_parameters.rope_type='axial': covered are default, linear, dynamic",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            ModelError,
            "rope_parameters.short_factor=None",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 32}},
            ModelError,
            "rope_parameters.long_factor=None",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 31}},
            ModelError,
            "must be a list of 32 numbers, one for each pair that rotates",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 31 + [0]}},
            ModelError,
            "must be numbers above 0",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 31 + ["2"]}},
            ModelError,
            "must be numbers above 0",
        ),
        (
            {"rope_scaling": {"type": "su"}},
            UnsupportedModelError,
            "rope_scaling.rope_type='su': covered are",
        ),
        (
            {"partial_rotary_factor": 0.5},
            UnsupportedModelError,
            "partial_rotary_factor=0.5: only 1.0 is covered",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            UnsupportedModelError,
            "rope_parameters.partial_rotary_factor=0.25",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            UnsupportedModelError,
            "rope_parameters.full_attention=",
        ),
        ({"rope_theta": 1}, ModelError, "rope_theta=1: must be a number above 1"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelError, "rope_parameters.factor=None"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": -2.0}},
            ModelError,
            "rope_parameters.factor=-2.0: must be a number above 0",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            ModelError,
            "rope_parameters.low_freq_factor=None",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                }
            },
            ModelError,
            "high_freq_factor=4.0: must be above low_freq_factor, 4",
        ),
    ],
)
def test_what_is_not_covered_or_wrong_is_refused_by_name(config, error, match):
    with pytest.raises(error, match=re.escape(match)):
        read_rope(ModelConfig({"max_position_embeddings": LONGEST, **config}), 64, 1e4, None)


@pytest.mark.parametrize(
    ("config", "form", "error", "match"),
    [
        (
            {"partial_rotary_factor": 1.5},
            PARTIAL,
            ModelError,
            "partial_rotary_factor=1.5: must be at",
        ),
        (
            {"partial_rotary_factor": 0},
            PARTIAL,
            ModelError,
            "partial_rotary_factor=0: must be a number",
        ),
        (
            {"partial_rotary_factor": 0.4},
            PARTIAL,
            ModelError,
            "partial_rotary_factor=0.4: must make pairs of a head's 64 numbers; it rotates 25",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.01}},
            PARTIAL,
            ModelError,
            "rope_parameters.partial_rotary_factor=0.01: must make pairs of a head's 64 numbers",
        ),
        (
            {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 1.25}},
            ONE_FOR_ALL,
            ModelError,
            "rope_parameters.partial_rotary_factor=1.25: must be at most 1",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
            FULL,
            ModelError,
            "rope_parameters.full_attention.factor=None",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "none"}}},
            FULL,
            UnsupportedModelError,
            "rope_parameters.full_attention.rope_type='none'",
        ),
        (
            {"rope_parameters": {"full_attention": 5, "sliding_attention": {}}},
            FULL,
            ModelError,
            "rope_parameters.full_attention=5: must be an object",
        ),
        (
            {
                "rope_parameters": {"full_attention": {"rope_theta": 1e6}},
                "rope_scaling": {"factor": 2.0},
            },
            SLIDING,
            UnsupportedModelError,
            "not covered together with rope_parameters by kind of layer",
        ),
        (
            {"rope_local_base_freq": 0.5},
            SLIDING,
            ModelError,
            "rope_local_base_freq=0.5: must be a number above 1",
        ),
    ],
)
def test_what_is_wrong_for_a_form_is_refused_by_name(
    config: dict[str, Any], form: RopeForm, error: type[ModelError], match: str
) -> None:
    with pytest.raises(error, match=re.escape(match)):
        read_rope(ModelConfig({"max_position_embeddings": LONGEST, **config}), 64, 1e4, None, form)
