"""Which experts rows go to: as the reference says, which is as transformers' own routers say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernel_arrays import call_routine

from pagoda.execution.reference_experts import route
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.route import RouteFields, route_bytes, route_routine
from pagoda.models.decoder import ExpertsSpec

GROUPED = {"num_groups": 8, "num_used_groups": 3}
SPECS = [
    ExpertsSpec(2, 1, 1),
    ExpertsSpec(5, 5, 1, normalised=False),
    ExpertsSpec(7, 3, 1, scoring="sigmoid", scale=2.5),
    ExpertsSpec(64, 8, 1, normalised=False),
    ExpertsSpec(64, 8, 1, scoring="sigmoid", correction_bias=True),
    ExpertsSpec(64, 6, 1, normalised=False, scale=16.0, **GROUPED),
    ExpertsSpec(64, 8, 1, scoring="sigmoid", correction_bias=True, group_top=2, **GROUPED),
    ExpertsSpec(6, 2, 1, num_groups=6, num_used_groups=2),
    ExpertsSpec(33, 4, 1, correction_bias=True),
]


def routed(logits: Array, spec: ExpertsSpec, correction: Array | None) -> tuple[Array, Array]:
    """By the kernel."""
    num_rows, stride = logits.shape
    scale = np.array([spec.scale], np.float32)
    fields = np.array(
        RouteFields(
            spec.num_experts, spec.num_used, int(spec.scoring == "softmax"), int(spec.normalised),
            spec.num_groups, spec.num_used_groups, spec.group_top,
            0 if correction is None else correction.ctypes.data, scale.ctypes.data,
        ),
        np.int64,
    )  # fmt: skip
    chosen = np.full((num_rows + 1, spec.num_used), -1, np.int32)
    weights = np.full((num_rows + 1, spec.num_used), np.nan, np.float32)
    memory = np.full(route_bytes(spec.num_experts) + 64, 0xAA, np.uint8)
    call_routine(
        route_routine(), chosen.ctypes.data, weights.ctypes.data, logits.ctypes.data, stride,
        num_rows, fields.ctypes.data, memory.ctypes.data,
    )  # fmt: skip
    assert (chosen[-1] == -1).all()
    assert np.isnan(weights[-1]).all()
    assert (memory[-64:] == 0xAA).all()
    return chosen[:-1], weights[:-1]


def some_logits(spec: ExpertsSpec, num_rows: int = 40) -> tuple[Array, Array | None]:
    rng = np.random.default_rng(spec.num_experts)
    logits = (3 * rng.normal(size=(num_rows, spec.num_experts))).astype(np.float32)
    if not spec.correction_bias:
        return logits, None
    return logits, rng.normal(size=spec.num_experts).astype(np.float32)


@pytest.mark.parametrize("spec", SPECS)
def test_rows_are_routed_as_the_reference_routes_them(spec: ExpertsSpec):
    logits, correction = some_logits(spec)
    chosen, weights = routed(logits, spec, correction)
    bias = None if correction is None else torch.from_numpy(correction)
    expected = route(torch.from_numpy(logits).double(), spec, bias)
    assert np.array_equal(chosen, expected[0].numpy())
    assert np.allclose(weights, expected[1].numpy(), rtol=2e-6, atol=1e-30)


def test_a_row_does_not_depend_on_those_beside_it():
    spec = SPECS[6]
    logits, correction = some_logits(spec)
    chosen, weights = routed(logits, spec, correction)
    for row in range(len(logits)):
        alone = routed(logits[row : row + 1], spec, correction)
        assert np.array_equal(alone[0], chosen[row : row + 1])
        assert np.array_equal(alone[1], weights[row : row + 1])


def test_there_may_be_more_logits_than_experts():
    """The gate of a shared expert comes after them."""
    spec = SPECS[3]
    logits, _ = some_logits(spec)
    wide = np.concatenate([logits, np.full((len(logits), 1), 1e9, np.float32)], axis=1)
    for found, expected in zip(routed(wide, spec, None), routed(logits, spec, None), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_of_equal_scores_the_first_is_highest(scoring: str):
    logits = np.zeros((3, 12), np.float32)
    logits[1, 7] = logits[2, 11] = 1
    spec = ExpertsSpec(12, 3, 1, scoring=scoring)
    grouped = ExpertsSpec(12, 3, 1, scoring=scoring, num_groups=4, num_used_groups=2, group_top=2)
    assert routed(logits, spec, None)[0].tolist() == [[0, 1, 2], [0, 1, 7], [0, 1, 11]]
    assert routed(logits, grouped, None)[0].tolist() == [[0, 1, 2], [0, 1, 7], [0, 1, 11]]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_whatever_logits_are_there_are_as_many_experts_as_wanted(spec: ExpertsSpec, value: float):
    _, correction = some_logits(spec, 1)
    logits = np.full((2, spec.num_experts), value, np.float32)
    logits[1, ::2] = 0
    for row in routed(logits, spec, correction)[0]:
        assert len(set(row.tolist())) == spec.num_used
        assert (row >= 0).all()
        assert (row < spec.num_experts).all()


def test_far_logits_have_weights_that_are_numbers():
    logits = np.array([[-200, -300, -1000, -200]], np.float32)
    _, weights = routed(logits, ExpertsSpec(4, 2, 1, scoring="sigmoid"), None)
    assert (weights == 0).all()
    _, weights = routed(logits, ExpertsSpec(4, 2, 1), None)
    assert np.allclose(weights, 0.5)


def deepseek(version: str, **fields: Any) -> Any:
    """A router of DeepSeek's in groups."""
    from transformers.models import deepseek_v2, deepseek_v3

    if version == "2":
        config = deepseek_v2.DeepseekV2Config(
            n_routed_experts=64, num_experts_per_tok=6, routed_scaling_factor=16.0, n_group=8,
            topk_group=3, topk_method="group_limited_greedy", hidden_size=32, **fields,
        )  # fmt: skip
        return deepseek_v2.modeling_deepseek_v2.DeepseekV2TopkRouter(config)
    config = deepseek_v3.DeepseekV3Config(
        n_routed_experts=64, num_experts_per_tok=8, routed_scaling_factor=2.5, n_group=8,
        topk_group=3, hidden_size=32, **fields,
    )  # fmt: skip
    return deepseek_v3.modeling_deepseek_v3.DeepseekV3TopkRouter(config)


def glm4_moe() -> Any:
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeConfig, Glm4MoeTopkRouter

    return Glm4MoeTopkRouter(
        Glm4MoeConfig(hidden_size=32, n_routed_experts=20, num_experts_per_tok=4, n_group=1,
                      topk_group=1, routed_scaling_factor=1.5)
    )  # fmt: skip


def ernie4_5_moe() -> Any:
    from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import (
        Ernie4_5_MoeConfig,
        Ernie4_5_MoeTopKRouter,
    )

    config = Ernie4_5_MoeConfig(hidden_size=32, moe_num_experts=20, moe_k=4)
    return Ernie4_5_MoeTopKRouter(config)


def mixtral() -> Any:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralTopKRouter

    return MixtralTopKRouter(
        MixtralConfig(hidden_size=32, num_local_experts=8, num_experts_per_tok=2)
    )


def qwen3_moe(normalised: bool) -> Any:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeTopKRouter

    return Qwen3MoeTopKRouter(
        Qwen3MoeConfig(
            hidden_size=32, num_experts=60, num_experts_per_tok=8, norm_topk_prob=normalised
        )
    )


def qwen2_moe() -> Any:
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeTopKRouter

    return Qwen2MoeTopKRouter(
        Qwen2MoeConfig(hidden_size=32, num_experts=60, num_experts_per_tok=4, norm_topk_prob=False)
    )


def olmoe() -> Any:
    from transformers.models.olmoe.modeling_olmoe import OlmoeConfig, OlmoeTopKRouter

    return OlmoeTopKRouter(OlmoeConfig(hidden_size=32, num_experts=64, num_experts_per_tok=8))


def gpt_oss() -> Any:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssTopKRouter

    return GptOssTopKRouter(
        GptOssConfig(hidden_size=32, num_local_experts=32, num_experts_per_tok=4)
    )


def granitemoe() -> Any:
    from transformers.models.granitemoe.modeling_granitemoe import (
        GraniteMoeConfig,
        GraniteMoeTopKRouter,
    )

    return GraniteMoeTopKRouter(
        GraniteMoeConfig(hidden_size=32, num_local_experts=40, num_experts_per_tok=8)
    )


ROUTERS = {
    "mixtral": (mixtral, ExpertsSpec(8, 2, 1)),
    "qwen3_moe": (lambda: qwen3_moe(True), ExpertsSpec(60, 8, 1)),
    "qwen3_moe, not normalised": (
        lambda: qwen3_moe(False),
        ExpertsSpec(60, 8, 1, normalised=False),
    ),
    "qwen2_moe": (qwen2_moe, ExpertsSpec(60, 4, 1, normalised=False)),
    "olmoe": (olmoe, ExpertsSpec(64, 8, 1, normalised=False)),
    "gpt_oss": (gpt_oss, ExpertsSpec(32, 4, 1, router_bias=True)),
    "granitemoe": (granitemoe, ExpertsSpec(40, 8, 1)),
    "deepseek_v2": (lambda: deepseek("2"), SPECS[5]),
    "deepseek_v3": (
        lambda: deepseek("3", norm_topk_prob=True),
        ExpertsSpec(
            64, 8, 1, scoring="sigmoid", scale=2.5, correction_bias=True, group_top=2, **GROUPED
        ),
    ),
    "deepseek_v3, not normalised": (
        lambda: deepseek("3", norm_topk_prob=False),
        ExpertsSpec(
            64, 8, 1, scoring="sigmoid", normalised=False, scale=2.5, correction_bias=True,
            group_top=2, **GROUPED,
        ),
    ),
    "ernie4_5_moe": (ernie4_5_moe, ExpertsSpec(20, 4, 1, correction_bias=True)),
    "glm4_moe": (
        glm4_moe,
        ExpertsSpec(20, 4, 1, scoring="sigmoid", scale=1.5, correction_bias=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTERS)
@torch.inference_mode()
def test_a_family_routes_as_its_spec_says(name: str):
    make, spec = ROUTERS[name]
    torch.manual_seed(0)
    router = make()
    for tensor in [*router.parameters(), *router.buffers()]:
        tensor.copy_(torch.randn_like(tensor))
    logits, shares, experts = router(torch.randn(50, 32))
    if spec.router_bias:
        assert router.bias.abs().min() > 0  # and is in the logits
    named = [*router.named_parameters(), *router.named_buffers()]
    found = [tensor for name, tensor in named if name.endswith("e_score_correction_bias")]
    assert len(found) == spec.correction_bias
    bias = found[0].flatten() if found else None
    order = experts.argsort(dim=-1)
    expected = experts.gather(1, order), shares.gather(1, order)
    correction = None if bias is None else bias.numpy()
    ours = routed(logits.float().numpy(), spec, correction)
    for found in (ours, tuple(each.numpy() for each in route(logits, spec, bias))):
        assert np.array_equal(found[0], expected[0].numpy())
        assert np.allclose(found[1], expected[1].numpy(), rtol=1e-5, atol=1e-7)
