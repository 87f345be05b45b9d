"""GGUF files of one architecture: what they say otherwise than others, and what they leave out."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import CASES, Case, build_model
from gguf_files import stored_tensors, write_gguf
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec, ExpertsSpec
from pagoda.models.families.gpt_oss import DEFAULT_ROPE
from pagoda.models.gguf_heads import rotated_share
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.registry import decoder_spec


def spec_of(tmp_path: Path, name: str, **options: Any) -> DecoderSpec:
    path = write_gguf(tmp_path / "tiny.gguf", build_model(CASES[name]), **options)
    return load_spec(locate(str(path)))


_SHARED = "expert_shared_feed_forward_length"
EVERY_LAYER = {"mlp_only_layers": [], "norm_topk_prob": False}
"""What Qwen2-MoE's files say by saying nothing."""


def windows(spec: DecoderSpec) -> list[int | None]:
    return [layer.attention.sliding_window for layer in spec.layers]


def bases(spec: DecoderSpec) -> list[float | None]:
    """The base of each layer's angles, by its second one; None: a layer without positions."""
    ropes = [layer.attention.rope for layer in spec.layers]
    return [None if rope is None else rope.inv_freq[1] for rope in ropes]


def test_gemma2_has_caps_and_a_window_where_the_file_says_nothing(tmp_path):
    keys = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
    spec = spec_of(tmp_path, "gemma2", without=keys)
    assert windows(spec) == [4096, None] * 2
    assert spec.layers[0].attention.logit_cap == 50
    assert spec.logit_cap == 30


@pytest.mark.parametrize(("name", "largest"), [("gemma2", 46), ("gemma3", 62)])
def test_queries_of_the_largest_gemma_are_scaled_otherwise(name, largest, tmp_path):
    assert spec_of(tmp_path, name).layers[0].attention.scale == 32**-0.5
    spec = spec_of(tmp_path, name, metadata={"block_count": largest})
    assert spec.layers[0].attention.scale == 16**-0.5


def test_granite_without_its_scales_is_llama(tmp_path):
    keys = ("attention.scale", "embedding_scale", "residual_scale")
    spec = spec_of(tmp_path, "granite", without=keys)
    [layer] = set(spec.layers)
    assert (layer.attention.scale, layer.residual_scale) == (16**-0.5, 1.0)
    assert (spec.embedding_scale, spec.logit_scale) == (1.0, 1 / 3)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (2, [8, None, 8, None]),
        (0, [8] * 4),
        ([False, True, True, False], [None, 8, 8, None]),
        ([1, 0, 0, 1, 1], [8, None, None, 8]),
    ],
)
def test_which_layers_slide_is_a_number_or_a_list(pattern, expected, tmp_path):
    for name in ("cohere2", "olmo3"):
        keys = {"attention.sliding_window": 8, "attention.sliding_window_pattern": pattern}
        assert windows(spec_of(tmp_path, name, metadata=keys)) == expected


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("gemma3", "Gemma3ForCausalLM"), ("olmo3", "Olmo2ForCausalLM"), ("phi3", "Phi3ForCausalLM")],
)
def test_a_window_of_nought_is_none(name, architecture, tmp_path):
    spec = spec_of(tmp_path, name, metadata={"attention.sliding_window": 0})
    assert spec.architecture == architecture
    assert set(windows(spec)) == {None}
    assert len(set(bases(spec))) == 1


def test_sliding_layers_of_gemma3_have_a_base_of_their_own(tmp_path):
    local, own = "rope.freq_base_swa", 500.0
    for keys, base in (({"without": (local,)}, 1e4), ({"metadata": {local: own}}, own)):
        found = bases(spec_of(tmp_path, "gemma3", **keys))
        assert found[0] == pytest.approx(base ** (-2 / 32))
        assert found[5] == pytest.approx(1e6 ** (-2 / 32) / 8)


def test_a_file_that_does_not_say_how_much_of_a_head_rotates_rotates_all(tmp_path):
    for name, pairs in (("glm4", 12), ("phi3-long", 8)):
        kept = "rope_factors_long.weight", "rope_factors_short.weight", "rope.scaling.attn_factor"
        spec = spec_of(tmp_path, name, without=("rope.dimension_count", *kept))
        rope = spec.layers[0].attention.rope
        assert rope is not None
        assert len(rope.inv_freq) == pairs


def test_a_share_of_a_head_gives_back_its_number():
    for head_dim in range(2, 300):
        for count in range(1, head_dim + 1):
            assert int(head_dim * rotated_share(count, head_dim)) == count


def test_longrope_takes_its_factor_of_attention_from_the_file(tmp_path):
    own = {"rope.scaling.attn_factor": 1.25}
    rope = spec_of(tmp_path, "phi3-long", metadata=own).layers[0].attention.rope
    assert rope is not None
    assert rope.attention_factor == 1.25
    rope = spec_of(tmp_path, "phi3-long", without=tuple(own)).layers[0].attention.rope
    assert rope is not None
    assert rope.attention_factor == 1.0


@pytest.mark.parametrize(("name", "head_dim"), [("glm", 16), ("llama-gqa", 16)])
def test_a_file_of_any_architecture_may_have_q_k_and_v_in_one_tensor(name, head_dim, tmp_path):
    model = build_model(Case(CASES[name].family, {**CASES[name].config, "head_dim": head_dim}))
    apart, tensors = write_gguf(tmp_path / "apart.gguf", model), stored_tensors(model)
    parts, merged = {}, {}
    for layer in range(4):
        for kind in ("weight", "bias"):
            names = [f"blk.{layer}.attn_{part}.{kind}" for part in "qkv"]
            if names[0] in tensors:
                parts |= dict.fromkeys(names)
                rows = np.concatenate([tensors[part] for part in names])
                merged[f"blk.{layer}.attn_qkv.{kind}"] = rows
    together = write_gguf(
        tmp_path / "together.gguf", model, without=tuple(parts), extra_tensors=merged
    )
    files = [locate(str(path)) for path in (apart, together)]
    assert load_spec(files[0]) == load_spec(files[1])
    found = [load_weights(each, load_spec(each), "float32").layers for each in files]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.qkv, other.qkv)
        assert (one.qkv_bias is None) == (name != "glm")
        assert one.qkv_bias is None or torch.equal(one.qkv_bias, other.qkv_bias)


@pytest.mark.parametrize(
    ("name", "metadata", "match"),
    [
        ("granite", {"rope.scaling.finetuned": False}, "granite.rope.scaling.finetuned=False"),
        ("granite", {"attn_logit_softcapping": 30.0}, "granite.attn_logit_softcapping=30.0"),
        ("glm4", {"nextn_predict_layers": 1}, "glm4.nextn_predict_layers=1: this feature is not"),
        ("glm4", {"rope.dimension_sections": [8, 12, 12, 0]}, "glm4.rope.dimension_sections="),
        ("qwen3", {"expert_count": 8}, "qwen3.expert_count=8: this feature is not covered"),
        ("mixtral", {"expert_gating_func": 2}, "llama.expert_gating_func=2"),
        ("mixtral", {"expert_weights_norm": False}, "llama.expert_weights_norm=False"),
        ("mixtral", {"expert_weights_scale": 2.5}, "llama.expert_weights_scale=2.5"),
        ("mixtral", {"expert_group_count": 2}, "llama.expert_group_count=2"),
        ("olmoe", {"expert_weights_norm": True}, "olmoe.expert_weights_norm=True"),
        ("olmoe", {"attention.clamp_kqv": 8.0}, "olmoe.attention.clamp_kqv=8.0"),
        ("glm4-moe", {"expert_gating_func": 1}, "glm4moe.expert_gating_func=1"),
        ("seed_oss", {"attention.value_length": 16}, "seed_oss.attention.value_length=16"),
        ("ernie4_5", {"rope.dimension_count": 16}, "ernie4_5.rope.dimension_count=16: only the"),
        ("olmo", {"attention.clamp_kqv": 8.0}, "olmo.attention.clamp_kqv=8.0"),
        ("granite-moe", {_SHARED: 64}, "granitemoe.expert_shared_feed_forward_length=64"),
        ("gemma", {"rope.dimension_count": 16}, "gemma.rope.dimension_count=16: only the head"),
        ("olmo3", {"rope.freq_base_swa": 99.0}, "olmo2.rope.freq_base_swa=99.0: this feature"),
        ("phi3-long", {"rope.scaling.type": "yarn"}, "together with rope_factors_short.weight"),
    ],
)
def test_what_an_architecture_does_not_cover_is_refused(name, metadata, match, tmp_path):
    with pytest.raises(UnsupportedModelError, match=re.escape(match)):
        spec_of(tmp_path, name, metadata=metadata)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("cohere2", {"without": ("logit_scale",)}, "cohere2.logit_scale=None: the file's metadata"),
        ("cohere2", {"without": ("attention.sliding_window",)}, "cohere2.attention.sliding_window"),
        ("cohere2", {"without": ("attention.layer_norm_epsilon",)}, "cohere2.attention.layer_norm"),
        ("granite", {"without": ("logit_scale",)}, "granite.logit_scale=None"),
        ("mixtral", {"without": ("expert_used_count",)}, "llama.expert_used_count=None"),
        ("gpt-oss", {"without": ("expert_feed_forward_length",)}, "gpt-oss.expert_feed_forward_l"),
        ("gpt-oss", {"without": ("attention.sliding_window",)}, "gpt-oss.attention.sliding_win"),
        ("olmo", {"without": ("attention.layer_norm_epsilon",)}, "olmo.attention.layer_norm_eps"),
        ("stablelm", {"without": ("attention.layer_norm_epsilon",)}, "stablelm.attention.layer_n"),
        ("stablelm", {"metadata": {"rope.dimension_count": 18}}, "at most the head size, 16"),
        ("cohere", {"without": ("logit_scale",)}, "command-r.logit_scale=None"),
        ("cohere", {"without": ("attention.layer_norm_epsilon",)}, "command-r.attention.layer_n"),
        ("glm4-moe", {"without": ("expert_shared_count",)}, "glm4moe.expert_shared_count=None"),
        ("glm4-moe", {"metadata": {"nextn_predict_layers": 5}}, "num_hidden_layers=0"),
        (
            "ernie4_5-moe",
            {"metadata": {"expert_shared_feed_forward_length": 25}},
            "expert_shared_feed_forward_length=25: must be 24, as of the others",
        ),
        ("olmoe", {"metadata": {"expert_count": 2**20}}, "must be at most 131,072 in all layers"),
        ("olmoe", {"metadata": {"expert_used_count": 9}}, "must be at most the 8 experts"),
        ("phi3", {"metadata": {"rope.dimension_count": 18}}, "must be at most the head size, 16"),
        ("phi3-long", {"without": ("rope_factors_long.weight",)}, "the file lacks this vector"),
        (
            "phi3-long",
            {"without": ("rope.scaling.original_context_length",)},
            "phi3.rope.scaling.original_context_length=None",
        ),
        (
            "gemma3",
            {"metadata": {"attention.sliding_window_pattern": "LLLG"}},
            "gemma3.attention.sliding_window_pattern='LLLG': must be a whole number",
        ),
        (
            "olmo3",
            {"metadata": {"attention.sliding_window_pattern": [True, False]}},
            "layer_types=['sliding_attention', 'full_attention']: must have at least 4 items",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(name, options, match, tmp_path):
    with pytest.raises(ModelError, match=re.escape(match)):
        spec_of(tmp_path, name, **options)


def test_command_r_with_norms_of_heads_is_refused(tmp_path: Path) -> None:
    norms = {"blk.0.attn_q_norm.weight": np.ones((4, 16), dtype=np.float32)}
    with pytest.raises(UnsupportedModelError, match="use_qk_norm=True: only false is covered"):
        spec_of(tmp_path, "cohere", extra_tensors=norms)


def test_stablelm_with_norms_of_heads_or_without_biases_is_refused(tmp_path: Path) -> None:
    norms = {"blk.0.attn_q_norm.weight": np.ones((4, 16), dtype=np.float32)}
    with pytest.raises(UnsupportedModelError, match="qk_layernorm=True: only false is covered"):
        spec_of(tmp_path, "stablelm", extra_tensors=norms)
    model = build_model(CASES["stablelm"])
    path = write_gguf(tmp_path / "tiny.gguf", model, without=("blk.1.ffn_norm.bias",))
    files = locate(str(path))
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_norm\.bias=None: the files lack"):
        load_weights(files, load_spec(files), "float32")


@pytest.mark.parametrize("tail", [(), ("blk.3.attn_output.bias",)])
def test_biases_of_seed_oss_are_told_one_by_one(tail, tmp_path):
    own = {name: np.ones(64, dtype=np.float32) for name in tail}
    layer = spec_of(tmp_path, "seed_oss", extra_tensors=own).layers[0]
    assert (layer.attention.qkv_bias, layer.attention.output_bias) == (True, False)


def test_layers_that_predict_further_tokens_are_left_out_by_their_count(tmp_path: Path) -> None:
    """A file of GLM-4.5 has them behind the others, whatever is in them."""
    ahead = {
        "blk.4.nextn.eh_proj.weight": np.ones((64, 128), dtype=np.float32),
        "blk.4.attn_q.weight": np.ones((1, 1), dtype=np.float32),
    }
    model = build_model(CASES["glm4-moe"])
    path = write_gguf(tmp_path / "tiny.gguf", model, extra_tensors=ahead)
    files = locate(str(path))
    spec = load_spec(files)
    assert (len(spec.layers), spec.num_predicting_layers) == (4, 1)
    assert len(load_weights(files, spec, "float32").layers) == 4
    path = write_gguf(path, model, metadata={"nextn_predict_layers": 0}, extra_tensors=ahead)
    files = locate(str(path))
    with pytest.raises(ModelError, match=r"blk\.4\.attn_q\.weight=.*its shape must be"):
        load_weights(files, load_spec(files), "float32")


@pytest.mark.parametrize("name", ["mixtral", "glm4-moe", "gpt-oss"])
def test_gate_and_up_of_experts_may_be_one_tensor(name: str, tmp_path: Path) -> None:
    model = build_model(CASES[name])
    tensors, apart, fused = stored_tensors(model), [], {}
    for gate in [each for each in tensors if "ffn_gate_exps" in each]:
        up = gate.replace("gate", "up")
        apart += [gate, up]
        fused[gate.replace("gate", "gate_up")] = np.concatenate([tensors[gate], tensors[up]], 1)
    paths = [
        write_gguf(tmp_path / "apart.gguf", model),
        write_gguf(tmp_path / "fused.gguf", model, without=tuple(apart), extra_tensors=fused),
    ]
    files = [locate(str(path)) for path in paths]
    found = [load_weights(each, load_spec(each), "float32").layers for each in files]
    for one, other in zip(*found, strict=True):
        of_both = zip(one.tensors(), other.tensors(), strict=True)
        assert all(torch.equal(*pair) for pair in of_both)


def test_a_mixtral_file_may_have_a_tensor_for_each_expert(tmp_path: Path) -> None:
    model = build_model(CASES["mixtral"])
    together, tensors = write_gguf(tmp_path / "together.gguf", model), stored_tensors(model)
    stacked = {name: values for name, values in tensors.items() if "_exps." in name}
    own = {
        name.replace("_exps", f".{number}"): values[number]
        for name, values in stacked.items()
        for number in range(4)
    }
    path = tmp_path / "apart.gguf"
    apart = write_gguf(path, model, without=tuple(stacked), extra_tensors=own)
    files = [locate(str(path)) for path in (together, apart)]
    found = [load_weights(each, load_spec(each), "float32").layers for each in files]
    for one, other in zip(*found, strict=True):
        pairs = zip(one.experts.tensors(), other.experts.tensors(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_experts_of_qwen_without_a_size_have_that_of_dense_layers(tmp_path: Path) -> None:
    case = CASES["qwen2-moe"]
    model = build_model(Case(case.family, {**case.config, **EVERY_LAYER}))
    keys = ("expert_feed_forward_length", _SHARED)
    spec = load_spec(locate(str(write_gguf(tmp_path / "tiny.gguf", model, without=keys))))
    [mlp] = {layer.mlp for layer in spec.layers}
    assert isinstance(mlp, ExpertsSpec)
    assert mlp.shared is not None
    assert (mlp.intermediate_size, mlp.shared.intermediate_size) == (112 // 2, 112)


def test_gpt_oss_has_a_ramp_whose_bounds_are_not_rounded(tmp_path: Path) -> None:
    own = {"head_dim": 64, "rope_parameters": {**DEFAULT_ROPE, "rope_theta": 150_000.0}}
    case = CASES["gpt-oss"]
    found = []
    for truncate in (False, True):
        own["rope_parameters"]["truncate"] = truncate
        model = build_model(Case(case.family, {**case.config, **own}))
        config = ModelConfig({**model.config.to_dict(), "architectures": [type(model).__name__]})
        found.append(decoder_spec(config).layers[0].attention.rope)
    spec = load_spec(locate(str(write_gguf(tmp_path / "tiny.gguf", model))))
    assert spec.layers[0].attention.rope == found[0] != found[1]


def test_gemmas_norms_lose_what_the_file_has_added(tmp_path):
    model = build_model(CASES["gemma3"])
    files = locate(str(write_gguf(tmp_path / "tiny.gguf", model)))
    spec = load_spec(files)
    weights, state = load_weights(files, spec, "float32"), model.state_dict()
    own = {
        "attention_norm": "input_layernorm", "q_norm": "self_attn.q_norm",
        "attention_output_norm": "post_attention_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    }  # fmt: skip
    for field, name in own.items():
        found = getattr(weights.layers[3], field)
        assert torch.allclose(found, state[f"model.layers.3.{name}.weight"], rtol=0, atol=3e-7)
    assert torch.allclose(weights.final_norm, state["model.norm.weight"], rtol=0, atol=3e-7)
    assert spec.norm.weight_offset == 1
    assert math.isclose(spec.embedding_scale, 8)
