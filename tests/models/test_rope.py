"""Rotary embeddings against transformers' own computation."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.rope import ROPE_TYPES, read_rope

LONGEST = 4096


def transformers_rope(head_dim: int, parameters: dict[str, Any], length: int = 1):
    """inv_freq and factor of transformers, after it has seen a sequence of `length` tokens."""
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        rope_parameters=dict(parameters),
    )
    kind = parameters["rope_type"]
    if kind == "default":
        rope = LlamaRotaryEmbedding(config)
        return rope.inv_freq.numpy(), rope.attention_scaling
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    inv_freq, factor = compute(config, None, seq_len=length)
    return inv_freq.numpy(), factor


def own_rope(head_dim: int, parameters: dict[str, Any], max_model_len: int | None = None, **config):
    values = {"max_position_embeddings": LONGEST, "rope_parameters": parameters, **config}
    return read_rope(ModelConfig(values), head_dim, 10_000.0, max_model_len)


def assert_same(
    head_dim: int, parameters: dict[str, Any], length: int = 1, rtol: float = 1e-6
) -> None:
    expected, factor = transformers_rope(head_dim, parameters, length)
    spec = own_rope(head_dim, parameters, max_model_len=length).spec
    np.testing.assert_allclose(spec.inv_freq, expected, rtol=rtol)
    assert spec.attention_factor == pytest.approx(factor, rel=1e-12)


head_dims = st.sampled_from([32, 64, 80, 96, 128, 256])
thetas = st.sampled_from([10_000.0, 100_000.0, 500_000.0, 1_000_000.0, 5_000_000.0])
factors = st.floats(1.0, 64.0)
originals = st.sampled_from([256, 1024, 2048, 4096])


@given(head_dims, thetas)
def test_default(head_dim, theta):
    assert_same(head_dim, {"rope_type": "default", "rope_theta": theta})


@given(head_dims, thetas, factors)
def test_linear(head_dim, theta, factor):
    assert_same(head_dim, {"rope_type": "linear", "rope_theta": theta, "factor": factor})


@given(head_dims, thetas, factors, st.integers(1, 4 * LONGEST))
def test_dynamic_for_the_longest_sequence(head_dim, theta, factor, length):
    parameters = {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    assert_same(head_dim, parameters, length)


@given(head_dims, thetas, factors, originals, st.floats(0.5, 2.0), st.floats(2.5, 8.0))
def test_llama3(head_dim, theta, factor, original, low, high):
    parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    # near the edge of the range that is interpolated the last bit of a wavelength is magnified
    assert_same(head_dim, parameters, rtol=1e-5)


optional = st.fixed_dictionaries(
    {},
    optional={
        "attention_factor": st.floats(0.5, 2.0),
        "beta_fast": st.sampled_from([16.0, 32.0, 48.0]),
        "beta_slow": st.sampled_from([1.0, 2.0]),
        "mscale": st.sampled_from([0.0, 0.707, 1.0]),
        "mscale_all_dim": st.sampled_from([0.0, 0.707, 1.0]),
        "truncate": st.booleans(),
    },
)


@given(head_dims, thetas, factors, originals, optional)
def test_yarn(head_dim, theta, factor, original, extra):
    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        **extra,
    }
    assert_same(head_dim, parameters)


def test_factors_divide_each_angle():
    plain = own_rope(8, {"rope_type": "default"}).spec.inv_freq
    divided = own_rope(8, {"rope_type": "factors", "factors": [1.0, 2.0, 4.0, 8.0]}).spec.inv_freq
    np.testing.assert_allclose(divided, np.divide(plain, [1, 2, 4, 8]), rtol=1e-7)
    with pytest.raises(ModelError, match="at least 4 items"):
        own_rope(8, {"rope_type": "factors", "factors": [1.0]})


def test_dynamic_up_to_the_own_length_is_the_default():
    plain = own_rope(64, {"rope_type": "default"}).spec
    for max_model_len in (1, LONGEST):
        assert own_rope(64, {"rope_type": "dynamic", "factor": 4.0}, max_model_len).spec == plain
    assert own_rope(64, {"rope_type": "dynamic", "factor": 4.0}, LONGEST + 1).spec != plain


def test_dynamic_without_a_limit_is_made_for_the_longest_sequence():
    parameters = {"rope_type": "dynamic", "factor": 4.0}
    assert own_rope(64, parameters) == own_rope(64, parameters, 4 * LONGEST)


@pytest.mark.parametrize(
    ("parameters", "longest"),
    [
        ({"rope_type": "default"}, LONGEST),
        ({"rope_type": "linear", "factor": 2.5}, 10_240),
        ({"rope_type": "dynamic", "factor": 2.0}, 2 * LONGEST),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, LONGEST),
        ({"rope_type": "yarn", "factor": 4.0}, 4 * LONGEST),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4},
            LONGEST,
        ),
    ],
)
def test_the_longest_sequence_includes_the_extension(parameters, longest):
    assert own_rope(64, parameters).max_position_embeddings == longest


def test_both_forms_of_config_say_the_same():
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    new = own_rope(64, parameters)
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
            {"rope_parameters": {"rope_type": "longrope"}},
            UnsupportedModelError,
            "rope_parameters.rope_type='longrope': covered are default, linear, dynamic",
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


def test_every_type_of_transformers_is_covered_or_refused():
    known = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    assert set(ROPE_TYPES) >= {"default", "linear", "dynamic", "llama3", "yarn"}
    for kind in set(known) - set(ROPE_TYPES):
        with pytest.raises(UnsupportedModelError):
            own_rope(64, {"rope_type": kind})
