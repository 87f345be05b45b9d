"""The reference of experts, beside transformers' own modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pagoda.execution.reference_experts import run_experts
from pagoda.models.decoder import Activation, ExpertsSpec, MLPSpec
from pagoda.models.expert_weights import ExpertsWeights


def randomised(module: torch.nn.Module) -> Any:
    torch.manual_seed(0)
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data.copy_(torch.randn_like(tensor) / tensor.shape[-1] ** 0.5)
    return module


def weights_of(module: Any, router: Any) -> ExpertsWeights[torch.Tensor]:
    """Of a module whose experts are merged."""
    gate_up = [each.chunk(2) for each in module.experts.gate_up_proj]
    return ExpertsWeights(
        router=router.weight,
        gate=tuple(gate for gate, _ in gate_up),
        up=tuple(up for _, up in gate_up),
        down=tuple(module.experts.down_proj),
        correction=getattr(router, "e_score_correction_bias", None),
    )


def with_shared(weights: ExpertsWeights[torch.Tensor], shared: Any) -> ExpertsWeights[torch.Tensor]:
    return replace(
        weights, shared_gate=shared.gate_proj.weight, shared_up=shared.up_proj.weight,
        shared_down=shared.down_proj.weight,
    )  # fmt: skip


def mixtral() -> tuple[Any, ExpertsSpec, ExpertsWeights[torch.Tensor]]:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=32, intermediate_size=48, num_local_experts=8, num_experts_per_tok=2
    )
    module = randomised(MixtralSparseMoeBlock(config))
    return module, ExpertsSpec(8, 2, 48), weights_of(module, module.gate)


def qwen2_moe() -> tuple[Any, ExpertsSpec, ExpertsWeights[torch.Tensor]]:
    from transformers.models.qwen2_moe.modeling_qwen2_moe import (
        Qwen2MoeConfig,
        Qwen2MoeSparseMoeBlock,
    )

    config = Qwen2MoeConfig(
        hidden_size=32, moe_intermediate_size=24, shared_expert_intermediate_size=40,
        num_experts=12, num_experts_per_tok=4, norm_topk_prob=False,
    )  # fmt: skip
    module = randomised(Qwen2MoeSparseMoeBlock(config))
    weights = with_shared(weights_of(module, module.gate), module.shared_expert)
    router = torch.cat([module.gate.weight, module.shared_expert_gate.weight])
    spec = ExpertsSpec(12, 4, 24, normalised=False, shared=MLPSpec(40), shared_gate=True)
    return module, spec, replace(weights, router=router)


def deepseek_v3() -> tuple[Any, ExpertsSpec, ExpertsWeights[torch.Tensor]]:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3Config,
        DeepseekV3MoE,
    )

    config = DeepseekV3Config(
        hidden_size=32, moe_intermediate_size=24, n_shared_experts=2, n_routed_experts=16,
        num_experts_per_tok=4, n_group=4, topk_group=2, routed_scaling_factor=2.5,
    )  # fmt: skip
    module = randomised(DeepseekV3MoE(config))
    spec = ExpertsSpec(
        16, 4, 24, scoring="sigmoid", scale=2.5, correction_bias=True, num_groups=4,
        num_used_groups=2, group_top=2, shared=MLPSpec(48),
    )  # fmt: skip
    return module, spec, with_shared(weights_of(module, module.gate), module.shared_experts)


def gpt_oss() -> tuple[Any, ExpertsSpec, ExpertsWeights[torch.Tensor]]:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssMLP

    config = GptOssConfig(
        hidden_size=32, intermediate_size=24, num_local_experts=8, num_experts_per_tok=4
    )
    module = randomised(GptOssMLP(config))
    own = module.experts
    own.gate_up_proj.data *= 30  # so that some is clamped
    gate_up = own.gate_up_proj.transpose(1, 2)
    weights = ExpertsWeights(
        router=module.router.weight, gate=tuple(gate_up[:, ::2]), up=tuple(gate_up[:, 1::2]),
        down=tuple(own.down_proj.transpose(1, 2)), router_bias=module.router.bias,
        gate_bias=own.gate_up_proj_bias[:, ::2], up_bias=own.gate_up_proj_bias[:, 1::2],
        down_bias=own.down_proj_bias,
    )  # fmt: skip
    spec = ExpertsSpec(8, 4, 24, activation=Activation.CLAMPED_SWIGLU, bias=True, router_bias=True)
    return module, spec, weights


@pytest.mark.parametrize("make", [mixtral, qwen2_moe, deepseek_v3, gpt_oss])
@torch.inference_mode()
def test_the_reference_is_what_transformers_computes(make: Any):
    module, spec, weights = make()
    x = torch.randn(30, 32)
    found = module(x[None])
    expected = (found[0] if isinstance(found, tuple) else found).reshape(30, 32)
    assert torch.allclose(run_experts(x, spec, weights), expected, rtol=1e-4, atol=1e-4)
