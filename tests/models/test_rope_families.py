"""The rotary embeddings of families, by their own configs and modules in transformers."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from pagoda.models.config import ModelConfig
from pagoda.models.rope import ONE_FOR_ALL, RopeForm, attention_scale_factor, read_rope
from pagoda.models.rope_types import Rope

LONGEST = 4096
FULL = RopeForm("full_attention")
SLIDING = RopeForm("sliding_attention", extended=False)
GEMMA_SLIDING = RopeForm("sliding_attention", theta_field="rope_local_base_freq", extended=False)
PHI = RopeForm(
    partial_rotary_factor=1.0,
    original_max_position_embeddings=4096,
    longrope_names=("su", "yarn"),
)
HEADS = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": LONGEST,
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def lists(num_pairs: int) -> dict[str, list[float]]:
    """Two lists of LongRoPE."""
    short, long = np.random.default_rng(num_pairs).uniform(1, 60, (2, num_pairs)).tolist()
    return {"short_factor": short, "long_factor": long}


@dataclass(frozen=True)
class Case:
    """A config as a checkpoint has it, and how its family reads it."""

    family: str
    config: str
    rope: str
    values: Mapping[str, Any] = field(default_factory=dict)
    head_dim: int = 64
    theta: float = 10_000.0
    form: RopeForm = ONE_FOR_ALL

    @property
    def own(self) -> ModelConfig:
        return ModelConfig({**HEADS, **self.values})

    def read(self, max_model_len: int | None = None) -> Rope:
        return read_rope(self.own, self.head_dim, self.theta, max_model_len, self.form)

    def made(self) -> Any:
        """The config of transformers."""
        kind = getattr(importlib.import_module("transformers"), self.config)
        return kind(**copy.deepcopy({**HEADS, **self.values}))

    def module(self) -> torch.nn.Module:
        """The rotary module of transformers."""
        name = f"transformers.models.{self.family}.modeling_{self.family}"
        kind: Callable[..., torch.nn.Module] = getattr(importlib.import_module(name), self.rope)
        return kind(self.made())

    def expected(self, length: int) -> tuple[Any, float]:
        """inv_freq and factor of transformers, after it has seen a sequence of `length` tokens."""
        kind = self.form.layer_type
        module = self.module()
        module(torch.zeros(1), torch.tensor([[length - 1]]), *([] if kind is None else [kind]))
        prefix = "" if kind is None else f"{kind}_"
        inv_freq = getattr(module, f"{prefix}inv_freq")
        return inv_freq.numpy(), getattr(module, f"{prefix}attention_scaling")


def case(family: str, name: str, values: Mapping[str, Any] | None = None, **own: Any) -> Case:
    config = own.pop("config", f"{name}Config")
    return Case(family, config, f"{name}RotaryEmbedding", values or {}, **own)


def gemma(form: RopeForm, theta: float, **values: Any) -> Case:
    own = {"config": "Gemma3TextConfig", "head_dim": 256, "theta": theta, "form": form}
    return case("gemma3", "Gemma3", {"layer_types": BOTH, **values}, **own)


def olmo(form: RopeForm, **values: Any) -> Case:
    return case("olmo3", "Olmo3", {"layer_types": BOTH, **values}, theta=5e5, form=form)


def phi(**values: Any) -> Case:
    return case("phi3", "Phi3", values, form=PHI)


BOTH = ["sliding_attention", "full_attention"]
GEMMA_OLD = {
    "rope_theta": 2e6,
    "rope_local_base_freq": 20_000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}
GEMMA_NEW = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 30_000.0},
    }
}
GEMMA_4 = {
    "head_dim": 32,
    "global_head_dim": 64,
    "layer_types": BOTH,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
DEEPSEEK = {
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "max_position_embeddings": 163_840,
}

CASES = {
    "glm-4, its own share": case(
        "glm4", "Glm4", {"head_dim": 64}, form=RopeForm(partial_rotary_factor=0.5)
    ),
    "glm-4, a share": case(
        "glm4",
        "Glm4",
        {"head_dim": 64, "partial_rotary_factor": 0.25, "rope_theta": 1e5},
        form=RopeForm(partial_rotary_factor=0.5),
    ),
    "stablelm": case("stablelm", "StableLm", form=RopeForm(partial_rotary_factor=0.25)),
    "stablelm, a share in the section": case(
        "stablelm",
        "StableLm",
        {"rope_parameters": {"rope_theta": 1e5, "partial_rotary_factor": 0.75}},
        form=RopeForm(partial_rotary_factor=0.25),
    ),
    "stablelm, two shares": case(
        "stablelm",
        "StableLm",
        {"rope_parameters": {"partial_rotary_factor": 0.75}, "partial_rotary_factor": 0.5},
        form=RopeForm(partial_rotary_factor=0.25),
    ),
    "cohere 2": case("cohere2", "Cohere2", {"rope_theta": 5e4}),
    "phi-3": phi(rope_theta=1e4),
    "phi-3, su": phi(
        rope_scaling={"type": "su", "original_max_position_embeddings": 1024, **lists(32)},
        original_max_position_embeddings=1024,
    ),
    "phi-3, yarn is longrope": phi(
        rope_scaling={"type": "yarn", **lists(32)}, original_max_position_embeddings=512
    ),
    "phi-3, its own length": phi(
        rope_scaling={"type": "longrope", **lists(32)}, max_position_embeddings=16_384
    ),
    "phi-3, the length beside the section": phi(
        rope_scaling={
            "type": "longrope",
            "original_max_position_embeddings": 256,
            **lists(32),
        },
        original_max_position_embeddings=1024,
    ),
    "phi-4-mini": phi(
        rope_scaling={"type": "longrope", **lists(24)},
        original_max_position_embeddings=1024,
        partial_rotary_factor=0.75,
    ),
    "minicpm3": case(
        "minicpm3",
        "MiniCPM3",
        {
            "qk_rope_head_dim": 32,
            "rope_scaling": {
                "type": "longrope",
                "original_max_position_embeddings": 1024,
                **lists(16),
            },
        },
        head_dim=32,
    ),
    "gemma 3, full, older": gemma(FULL, 1e6, **GEMMA_OLD),
    "gemma 3, sliding, older": gemma(GEMMA_SLIDING, 1e4, **GEMMA_OLD),
    "gemma 3, full": gemma(FULL, 1e6, **GEMMA_NEW),
    "gemma 3, sliding": gemma(GEMMA_SLIDING, 1e4, **GEMMA_NEW),
    "gemma 3, full, nothing said": gemma(FULL, 1e6),
    "gemma 3, sliding, nothing said": gemma(GEMMA_SLIDING, 1e4),
    "gemma 3, a section of null": gemma(
        GEMMA_SLIDING, 1e4, rope_parameters={**GEMMA_NEW["rope_parameters"], BOTH[0]: None}
    ),
    "gemma 4, full": case(
        "gemma4",
        "Gemma4Text",
        GEMMA_4,
        form=RopeForm("full_attention", partial_rotary_factor=1.0),
    ),
    "gemma 4, sliding": case(
        "gemma4", "Gemma4Text", GEMMA_4, head_dim=32, form=RopeForm("sliding_attention")
    ),
    "olmo 3, full, older": olmo(FULL, rope_scaling=YARN, rope_theta=5e5),
    "olmo 3, sliding, older": olmo(SLIDING, rope_scaling=YARN, rope_theta=5e5),
    "olmo 3, full": olmo(
        FULL,
        rope_parameters={"full_attention": {**YARN, "attention_factor": 1.2, "rope_theta": 1e6}},
    ),
    "olmo 3, full, a length beside the section too": olmo(
        FULL,
        rope_parameters={"full_attention": YARN},
        original_max_position_embeddings=256,
    ),
    "olmo 3, sliding": olmo(
        SLIDING, rope_parameters={"full_attention": {**YARN, "rope_theta": 1e6}}
    ),
    "gpt-oss": case(
        "gpt_oss",
        "GptOss",
        {"head_dim": 64, "rope_scaling": {**YARN, "truncate": False}, "rope_theta": 150_000},
        theta=150_000.0,
    ),
    "deepseek v3": case("deepseek_v3", "DeepseekV3", DEEPSEEK),
    "qwen 3": case(
        "qwen3",
        "Qwen3",
        {
            "head_dim": 64,
            "rope_theta": 1e6,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32_768,
            },
            "max_position_embeddings": 131_072,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [7, LONGEST])
def test_angles_are_those_of_the_family(name: str, length: int) -> None:
    """`length` is within the length before the extension of any case, or beyond that of most."""
    own = CASES[name].read(max_model_len=length).spec
    inv_freq, factor = CASES[name].expected(length)
    np.testing.assert_allclose(own.inv_freq, inv_freq, rtol=1e-6)
    assert own.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("length", [7, LONGEST])
def test_phi_moe_has_a_factor_for_either_list(length: int) -> None:
    """transformers takes the short list for either, the model's own code does not."""
    scaling = {"type": "longrope", **lists(32), "short_mscale": 1.25, "long_mscale": 1.5}
    scaling["original_max_position_embeddings"] = 1024
    moe = case("phimoe", "Phimoe", {"rope_parameters": scaling}, theta=1e6)
    own = moe.read(max_model_len=length).spec
    position = torch.tensor([[length - 1]])
    cosine, sine = (each[0, 0].double() for each in moe.module()(torch.zeros(1), position))
    np.testing.assert_allclose(torch.hypot(cosine, sine), own.attention_factor, rtol=1e-6)


def test_the_scale_of_attention_is_that_of_deepseek() -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    deepseek = CASES["deepseek v3"]
    expected = yarn_apply_mscale(deepseek.made().rope_parameters, 0.125)
    assert 0.125 * attention_scale_factor(deepseek.own) == pytest.approx(expected, rel=1e-12)


def test_the_longest_sequence_of_a_kind_of_layer() -> None:
    assert CASES["gemma 3, full, older"].read().max_position_embeddings == 8 * LONGEST
    assert CASES["gemma 3, sliding, older"].read().max_position_embeddings == LONGEST
    assert CASES["phi-3, su"].read().max_position_embeddings == LONGEST
