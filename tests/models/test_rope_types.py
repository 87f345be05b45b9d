"""The angles of every kind of context extension against transformers' own computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.rope import RopeForm, attention_scale_factor, read_rope
from pagoda.models.rope_types import ROPE_TYPES

LONGEST = 4096
PARTIAL = RopeForm(partial_rotary_factor=1.0)
"""Of families whose configs may say which part of a head rotates."""

Head = tuple[int, float]
"""Size and the share that rotates."""


def transformers_rope(head: Head, parameters: dict[str, Any], length: int = 1):
    """inv_freq and factor of transformers, after it has seen a sequence of `length` tokens."""
    from transformers.models.stablelm.modeling_stablelm import StableLmRotaryEmbedding

    head_dim, share = head
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        rope_parameters={**parameters, "partial_rotary_factor": share},
    )
    kind = parameters["rope_type"]
    if kind == "default":
        inv_freq, factor = StableLmRotaryEmbedding.compute_default_rope_parameters(config)
        return inv_freq.numpy(), factor
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    inv_freq, factor = compute(config, None, seq_len=length)
    return inv_freq.numpy(), factor


def own_rope(
    head: Head | int, parameters: dict[str, Any], max_model_len: int | None = None, **config: Any
):
    head_dim, share = head if isinstance(head, tuple) else (head, 1.0)
    parameters = {**parameters, "partial_rotary_factor": share}
    values = {"max_position_embeddings": LONGEST, "rope_parameters": parameters, **config}
    return read_rope(ModelConfig(values), head_dim, 10_000.0, max_model_len, PARTIAL)


def assert_same(
    head: Head, parameters: dict[str, Any], length: int = 1, rtol: float = 1e-6
) -> None:
    expected, factor = transformers_rope(head, parameters, length)
    spec = own_rope(head, parameters, max_model_len=length).spec
    np.testing.assert_allclose(spec.inv_freq, expected, rtol=rtol)
    assert spec.attention_factor == pytest.approx(factor, rel=1e-12)


heads = st.sampled_from(
    [
        *((head_dim, 1.0) for head_dim in (32, 64, 80, 96, 128, 256)),
        *((64, 0.25), (80, 0.4), (96, 0.75), (128, 0.5), (128, 0.75), (256, 0.25)),
    ]
)
thetas = st.sampled_from([10_000.0, 100_000.0, 500_000.0, 1_000_000.0, 5_000_000.0])
factors = st.floats(1.0, 64.0)
originals = st.sampled_from([256, 1024, 2048, 4096])


@given(heads, thetas)
def test_default(head, theta):
    assert_same(head, {"rope_type": "default", "rope_theta": theta})


@given(heads, thetas, factors)
def test_linear(head, theta, factor):
    assert_same(head, {"rope_type": "linear", "rope_theta": theta, "factor": factor})


@given(heads, thetas, factors, st.integers(1, 4 * LONGEST))
def test_dynamic_for_the_longest_sequence(head, theta, factor, length):
    parameters = {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    assert_same(head, parameters, length)


@given(heads, thetas, factors, originals, st.floats(0.5, 2.0), st.floats(2.5, 8.0))
def test_llama3(head, theta, factor, original, low, high):
    parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    # near the edge of the range that is interpolated the last bit of a wavelength is magnified
    assert_same(head, parameters, rtol=1e-5)


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


@given(heads, thetas, factors, originals, optional)
def test_yarn(head, theta, factor, original, extra):
    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        **extra,
    }
    assert_same(head, parameters)


@given(heads, thetas, st.none() | factors)
def test_proportional(head, theta, factor):
    parameters = {"rope_type": "proportional", "rope_theta": theta}
    assert_same(head, parameters if factor is None else {**parameters, "factor": factor})


@given(
    heads,
    thetas,
    originals,
    st.integers(1, 2 * LONGEST),
    st.fixed_dictionaries({}, optional={"factor": factors, "attention_factor": factors}),
    st.integers(0, 99),
)
def test_longrope_for_the_longest_sequence(head, theta, original, length, extra, seed):
    num_pairs = int(head[0] * head[1]) // 2
    short, long = np.random.default_rng(seed).uniform(1, 60, (2, num_pairs)).tolist()
    parameters = {
        "rope_type": "longrope",
        "rope_theta": theta,
        "original_max_position_embeddings": original,
        "short_factor": short,
        "long_factor": [1, *long[1:]],  # a whole number is as good
        **extra,
    }
    assert_same(head, parameters, length)


def test_longrope_takes_the_list_by_the_limit_of_the_engine():
    parameters = {
        "rope_type": "longrope",
        "original_max_position_embeddings": 1024,
        "short_factor": [2.0] * 4,
        "long_factor": [4.0] * 4,
    }
    plain = np.array(own_rope(8, {"rope_type": "default"}).spec.inv_freq)
    for max_model_len, divisor in ((1, 2), (1024, 2), (1025, 4), (None, 4)):
        spec = own_rope(8, parameters, max_model_len).spec
        np.testing.assert_array_equal(spec.inv_freq, plain / divisor)
        assert spec.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(1024)))
    for max_model_len, factor in ((1024, 1.25), (1025, 1.5)):
        scaled = {**parameters, "short_mscale": 1.25, "long_mscale": 1.5, "attention_factor": 3.0}
        assert own_rope(8, scaled, max_model_len).spec.attention_factor == factor


@given(factors, st.sampled_from([None, 0.0, 0.707, 1.0]))
@example(0.5, 1.0)
def test_the_scale_of_attention_of_deepseek(factor, weight):
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    parameters = {"rope_type": "yarn", "factor": factor, "mscale_all_dim": weight}
    expected = yarn_apply_mscale(parameters, 1.0)
    found = attention_scale_factor(ModelConfig({"rope_parameters": parameters}))
    assert found == pytest.approx(expected, rel=1e-12)


def test_without_an_extension_the_scale_of_attention_stays():
    assert attention_scale_factor(ModelConfig({})) == 1.0
    plain = {"rope_type": "default", "mscale_all_dim": 1.0}
    assert attention_scale_factor(ModelConfig({"rope_parameters": plain})) == 1.0


def test_factors_divide_each_angle():
    plain = own_rope(8, {"rope_type": "default"}).spec.inv_freq
    divided = own_rope(8, {"rope_type": "factors", "factors": [1.0, 2.0, 4.0, 8.0]}).spec.inv_freq
    np.testing.assert_allclose(divided, np.divide(plain, [1, 2, 4, 8]), rtol=1e-7)
    with pytest.raises(ModelError, match="must be a list of 4 numbers, one for each pair"):
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
        ({"rope_type": "proportional", "factor": 4.0}, LONGEST),
        ({"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}, LONGEST),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4},
            LONGEST,
        ),
    ],
)
def test_the_longest_sequence_includes_the_extension(parameters, longest):
    assert own_rope(64, parameters).max_position_embeddings == longest


def test_every_type_of_transformers_is_covered_and_others_are_refused():
    known = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    assert set(ROPE_TYPES) >= {"default", *known}
    for kind in ("axial", "su", "none"):
        with pytest.raises(UnsupportedModelError):
            own_rope(64, {"rope_type": kind})
