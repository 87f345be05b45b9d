"""Configs come from strangers: whatever stands in one, the answer is a plan or a typed error."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import CASES, case_config
from latent_cases import LATENT_CASES
from pagoda.cli.plan_model import find_facts
from pagoda.errors import ModelError, RefusedError
from pagoda.models.config import ModelConfig
from pagoda.models.registry import ARCHITECTURES, decoder_spec
from pagoda.models.rope_types import ROPE_TYPES
from pagoda.planning.plan import make_plan
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan
from pagoda.planning.tables import find_model, model_rows

READ_BESIDE = (
    "quantization_config", "full_attn_layers", "cross_attention_layers", "mlp_only_layers",
    "moe_layers", "hybrid_override_pattern", "rope_scaling", "num_kv_shared_layers", "layer_types",
    "intermediate_size", "num_hidden_layers", "num_key_value_heads", "model_type", "head_dim",
    "architectures", "text_config", "expert_layer_period", "mamba_ssm_dtype", "conv_L_cache",
)  # fmt: skip
"""Fields that few configs have."""

ARCHITECTURE_OF = {family.model_type: name for name, family in ARCHITECTURES.items()}

ROPE_NUMBERS = (
    "factor", "rope_theta", "original_max_position_embeddings", "low_freq_factor",
    "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
    "partial_rotary_factor",
)  # fmt: skip

NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 7, 64, 10**9, 2**50, 10**400, 0.5, 1e308, float("inf")]),
    st.integers(),
    st.floats(),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=5),
    st.sampled_from(["mamba", "linear_attention", "M*-E", "yarn", "linear", "float32", "int4"]),
)  # fmt: skip
NAMES = st.sampled_from(
    ["factor", "type", "rope_type", "quant_method", "bits", "full_attn_layers", "config_groups",
     "weights", "num_bits", "group_size", "num_heads", "model_type", "hidden_size"]
)  # fmt: skip
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=6,
)


def paths(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from paths(value, (*above, name))


@st.composite
def odd_configs(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A config of the table with a few of its fields set to anything."""
    name = draw(st.sampled_from(sorted(model_rows())))
    config = copy.deepcopy(dict(model_rows()[name]["config"]))
    known = sorted(paths(config))
    inner = [(path[0], field) for path in known if len(path) > 1 for field in READ_BESIDE]
    places = [*known, *inner, *((field,) for field in READ_BESIDE)]
    for path in draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        section: Any = config
        for field in path[:-1]:
            section = section.get(field) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section[path[-1]] = draw(ANYTHING)
    return name, config


@settings(max_examples=150, deadline=None)
@given(odd_configs(), st.sampled_from([None, "H100"]), st.sampled_from([1, 2]))
def test_any_config_is_planned_for_or_refused(
    odd: tuple[str, dict[str, Any]], gpu: str | None, stages: int
) -> None:
    name, config = odd
    own = ModelFacts(name, "here", ModelConfig(config), model_rows()[name]["parameters"])
    try:
        told = make_plan(own, PlanRequest(gpu=gpu, pipeline_parallel_size=stages))
    except RefusedError:
        return
    assert isinstance(told, Plan)
    assert told.block_bytes > 0


@cache
def config_that_runs(model: str) -> str:
    """One of a family that Pagoda runs, as text."""
    cases = (*CASES.values(), *LATENT_CASES.values())
    return case_config(next(case for case in cases if case.family == model)).to_json_string()


@st.composite
def odd_configs_that_run(draw: st.DrawFn) -> dict[str, Any]:
    """Such a config with a few of its fields set to anything."""
    model = draw(st.sampled_from(sorted({family.model_type for family in ARCHITECTURES.values()})))
    config: dict[str, Any] = json.loads(config_that_runs(model))
    config["architectures"] = [ARCHITECTURE_OF[model]]
    rope = st.fixed_dictionaries(
        {"rope_type": st.sampled_from(sorted(ROPE_TYPES))},
        optional={name: NUMBERS | st.none() for name in ROPE_NUMBERS},
    )
    text = config.get("text_config", config)
    text["rope_parameters"] = draw(rope)
    names = sorted({*text, "head_dim", "sliding_window", "layer_types", "rope_theta"})
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        text[name] = draw(ANYTHING)
    return config


@settings(max_examples=300, deadline=None)
@given(odd_configs_that_run())
def test_any_config_is_read_by_the_engine_or_refused(config: dict[str, Any]) -> None:
    try:
        spec = decoder_spec(ModelConfig(config))
    except RefusedError:
        return
    assert spec.max_position_embeddings > 0
    angles = {angle for layer in spec.layers if layer.attention.rope for angle in
              layer.attention.rope.inv_freq}  # fmt: skip
    assert all(map(math.isfinite, angles))


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("Qwen/Qwen3-8B",
         {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": 5}},
         "linear_attn_config.full_attn_layers"),
        ("Qwen/Qwen3-30B-A3B", {"mlp_only_layers": 5}, "mlp_only_layers"),
        ("Qwen/Qwen3-30B-A3B", {"intermediate_size": ["x"]}, "intermediate_size"),
        ("nvidia/Nemotron-H-8B-Base-8K", {"hybrid_override_pattern": "M"},
         "hybrid_override_pattern"),
        ("Qwen/Qwen3-8B", {"rope_scaling": {"type": "linear", "factor": 1e308}},
         "rope_scaling.factor"),
        ("Qwen/Qwen3-8B", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("Qwen/Qwen3-8B", {"hidden_size": 10**400}, "hidden_size"),
        ("Qwen/Qwen3-8B", {"quantization_config": {"config_groups":
          {"group_0": {"weights": {"num_bits": 0}}}}}, "quantization_config.num_bits"),
        ("Qwen/Qwen3-8B", {"model_type": "mllama", "cross_attention_layers": 5},
         "cross_attention_layers"),
    ],
)  # fmt: skip
def test_a_field_that_makes_no_sense_is_named(
    name: str, change: dict[str, Any], field: str
) -> None:
    found = find_model(name)
    assert found is not None
    config = ModelConfig({**found[1]["config"], **change})
    with pytest.raises(ModelError) as caught:
        make_plan(ModelFacts(name, "here", config), PlanRequest(gpu="H100", max_model_len=128))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["~nosuch/x", "x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        find_facts(name)
