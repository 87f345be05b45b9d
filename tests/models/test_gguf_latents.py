"""GGUF files of models that keep latents: both ways to store what makes heads of them, what their
keys say, and what is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from checkpoints import Case, build_model, scaled_rope
from gguf_files import GGML, stored_tensors, write_gguf
from gguf_latents import in_one_tensor
from latent_cases import LATENT_CASES
from pagoda.cli.plan_model import find_facts
from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.decoder import DecoderSpec, ExpertsSpec, LatentAttentionSpec
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.weights import DecoderWeights
from pagoda.planning.plan import make_plan
from pagoda.planning.request import PlanRequest

V3: Mapping[str, Any] = {
    **LATENT_CASES["deepseek_v3-experts"].config,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 0,
}
YARN = scaled_rope(
    "yarn", factor=4.0, mscale=0.7, mscale_all_dim=0.7, original_max_position_embeddings=64
)
MERGED = {
    "attention.head_count_kv": 4,
    "attention.key_length": 32,
    "attention.value_length": 16,
}
"""What older files say of heads, by the keys that newer ones say the same of latents with."""
ONLY_NEWER = ("attention.key_length_mla", "attention.value_length_mla")


def model_of(family: str, **config: Any) -> transformers.PreTrainedModel:
    own = V3 if family == "deepseek_v3" else LATENT_CASES[family].config
    return build_model(Case(family, {**own, **config}))


def written(tmp_path: Path, family: str = "deepseek_v3", **options: Any) -> str:
    config = options.pop("config", {})
    return str(write_gguf(tmp_path / "tiny.gguf", model_of(family, **config), **options))


def spec_of(tmp_path: Path, family: str = "deepseek_v3", **options: Any) -> DecoderSpec:
    return load_spec(locate(written(tmp_path, family, **options)))


def latents(spec: DecoderSpec) -> LatentAttentionSpec:
    attention = spec.layers[0].attention
    assert isinstance(attention, LatentAttentionSpec)
    return attention


def loaded(path: Path) -> tuple[DecoderSpec, DecoderWeights[Any]]:
    files = locate(str(path))
    spec = load_spec(files)
    return spec, load_weights(files, spec, "float32")


@pytest.mark.parametrize("rope", [{}, YARN])
def test_older_files_have_keys_and_values_in_one_tensor(tmp_path: Path, rope: Any) -> None:
    model = model_of("deepseek_v3", **rope)
    tensors = stored_tensors(model)
    apart = [name for name in tensors if name.endswith(("attn_k_b.weight", "attn_v_b.weight"))]
    newer = write_gguf(tmp_path / "newer.gguf", model)
    older = write_gguf(
        tmp_path / "older.gguf",
        model,
        without=(*apart, *ONLY_NEWER),
        metadata=MERGED,
        extra_tensors=in_one_tensor(tensors),
    )
    (spec, found), (same_spec, same) = loaded(newer), loaded(older)
    assert spec == same_spec
    state = model.state_dict()
    for index, (one, other) in enumerate(zip(found.layers, same.layers, strict=True)):
        stored = state[f"model.layers.{index}.self_attn.kv_b_proj.weight"].view(4, 24 + 16, 32)
        for layer in (one, other):
            assert layer.key_up is not None
            assert layer.value_up is not None
            assert torch.equal(layer.key_up, stored[:, :24])
            assert torch.equal(layer.value_up, stored[:, 24:])


def test_turned_keys_of_a_quantised_type_are_decoded_before_they_are_turned(tmp_path: Path) -> None:
    model, name = model_of("deepseek_v3", qk_nope_head_dim=32), "blk.1.attn_k_b.weight"
    rows = gguf.quants.quantize(stored_tensors(model)[name], GGML.Q8_0)
    _, weights = loaded(write_gguf(tmp_path / "tiny.gguf", model, blocks={name: ("Q8_0", rows)}))
    found = weights.layers[1].key_up
    assert found is not None
    assert np.array_equal(found, gguf.quants.dequantize(rows, GGML.Q8_0).swapaxes(1, 2))


@pytest.mark.parametrize("quantization", [None, "none"])
def test_plan_and_engine_agree_on_the_bytes_of_a_quantised_file(
    tmp_path: Path, quantization: str | None
) -> None:
    """What makes heads of latents is turned, so it is never kept as stored."""
    sizes = {
        "intermediate_size": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
        "v_head_dim": 32, "q_lora_rank": 64, "kv_lora_rank": 64, "moe_intermediate_size": 64,
    }  # fmt: skip
    path = written(tmp_path, config=sizes, quantisation=GGML.Q8_0)
    model = load_model(EngineOptions(model=path, dtype="bfloat16", quantization=quantization))
    assert (model.held.stored_as is None) == (quantization == "none")
    request = PlanRequest(engine="pagoda", dtype="bfloat16", quantization=quantization)
    plan = make_plan(find_facts(path), request)
    assert plan.weights_bytes == model.held.total_bytes == model.loaded.weights.size_bytes


def test_what_scores_experts_tells_the_third_version_from_the_second(tmp_path: Path) -> None:
    assert spec_of(tmp_path).architecture == "DeepseekV3ForCausalLM"
    groups = LATENT_CASES["deepseek_v2-groups"].config
    second = spec_of(tmp_path, "deepseek_v2", config=groups)
    assert second.architecture == "DeepseekV2ForCausalLM"
    experts = second.layers[1].mlp
    assert isinstance(experts, ExpertsSpec)
    assert (experts.num_groups, experts.num_used_groups, experts.group_top) == (4, 2, 1)


def test_a_file_that_says_nothing_of_groups_and_weights_has_none(tmp_path: Path) -> None:
    keys = (
        "expert_group_count", "expert_group_used_count", "expert_weights_scale",
        "expert_weights_norm", "leading_dense_block_count",
    )  # fmt: skip
    dense = {"first_k_dense_replace": 0}
    experts = spec_of(tmp_path, config=dense, without=keys).layers[0].mlp
    assert isinstance(experts, ExpertsSpec)
    assert (experts.num_groups, experts.scale, experts.normalised) == (1, 1.0, False)


def test_the_weight_of_yarn_is_a_tenth_of_the_config_s(tmp_path: Path) -> None:
    """Cosine and sine stay as they are, since both of DeepSeek's weights are the same."""
    attention = latents(spec_of(tmp_path, config=YARN))
    assert attention.rope.attention_factor == 1.0
    assert attention.scale == pytest.approx(32**-0.5 * (0.07 * np.log(4) + 1) ** 2)
    plain = latents(spec_of(tmp_path))
    assert (plain.scale, plain.rope.attention_factor) == (32**-0.5, 1.0)


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    model = model_of("deepseek_v3")
    ahead = {"blk.2.nextn.eh_proj.weight": np.ones((64, 128), dtype=np.float32)}
    keys = {"block_count": 3, "nextn_predict_layers": 1}
    path = write_gguf(tmp_path / "ahead.gguf", model, metadata=keys, extra_tensors=ahead)
    spec, weights = loaded(path)
    assert (len(spec.layers), spec.num_predicting_layers, len(weights.layers)) == (2, 1, 2)


def test_minicpm3_has_the_size_of_values_and_scales_that_no_key_says(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "minicpm3", config={"v_head_dim": 16})
    attention = latents(spec)
    assert (attention.nope_dim, attention.rope_dim, attention.value_dim) == (24, 8, 64 // 4)
    scales = (spec.embedding_scale, spec.layers[0].residual_scale, spec.logit_scale)
    assert scales == (12.0, 1.4 / 2, 256 / 64)


LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}


def test_minicpm3_is_extended_from_the_length_that_it_was_made_for(tmp_path: Path) -> None:
    config = scaled_rope("longrope", original_max_position_embeddings=64, **LONG)
    for keys, fourth in (({}, 1.3), ({"rope.scaling.original_context_length": 64}, 4.0)):
        spec = spec_of(tmp_path, "minicpm3", config=config, metadata=keys)
        expected = 10_000 ** (-6 / 8) / fourth
        assert latents(spec).rope.inv_freq[3] == pytest.approx(expected)
        assert latents(spec).rope.attention_factor == 1.0


@pytest.mark.parametrize(
    ("family", "options", "error", "match"),
    [
        ("deepseek_v3", {"metadata": {"expert_gating_func": 3}}, UnsupportedModelError,
         "expert_gating_func=3: only 1 and 2 are covered"),
        ("deepseek_v3", {"metadata": {"attention.temperature_scale": 0.1}}, UnsupportedModelError,
         "deepseek2.attention.temperature_scale=0.1"),
        ("deepseek_v2", {"config": {"num_experts_per_tok": 2}, "metadata": {
            "expert_weights_norm": True}}, UnsupportedModelError, "norm_topk_prob=True"),
        ("minicpm3", {"metadata": {"embedding_scale": 3.0}}, UnsupportedModelError,
         "minicpm3.embedding_scale=3.0: this feature is not covered"),
        ("minicpm3", {"metadata": {"logit_scale": 4.0}}, UnsupportedModelError,
         "minicpm3.logit_scale=4.0"),
        *((name, {"without": (key,)}, ModelError, f"{key}=None")
          for name, keys in (
              ("deepseek_v3", (
                  "expert_count", "expert_used_count", "expert_shared_count",
                  "expert_feed_forward_length", "attention.kv_lora_rank",
                  "attention.value_length_mla", "rope.dimension_count",
              )),
              ("minicpm3", ("attention.kv_lora_rank", "attention.q_lora_rank",
                            "attention.key_length", "rope.dimension_count")),
          )
          for key in keys),
        ("deepseek_v3", {"config": YARN, "without": ("rope.scaling.yarn_log_multiplier",)},
         ModelError, "yarn_log_multiplier=None"),
        ("deepseek_v3", {"metadata": {"attention.key_length_mla": 8}}, ModelError,
         "deepseek2.attention.key_length_mla=8: must be more than the 8 numbers that rotate"),
        ("deepseek_v3", {"metadata": {"attention.key_length_mla": "8"}}, ModelError,
         "deepseek2.attention.key_length_mla='8': must be a whole number"),
        ("deepseek_v3", {"metadata": {"attention.kv_lora_rank": 2**20}}, ModelError,
         "kv_lora_rank=1048576: must be at most"),
        ("deepseek_v3", {"metadata": {"rope.dimension_count": 7}}, ModelError, "must be even"),
        ("deepseek_v3", {"metadata": {"nextn_predict_layers": 2}}, ModelError,
         "num_hidden_layers=0"),
        ("deepseek_v3", {"metadata": {"expert_count": 2**20}}, ModelError,
         "must be at most 131,072 in all layers"),
        ("deepseek_v3", {"metadata": {"expert_group_count": 5}}, ModelError,
         "n_group=5: must divide the 12 experts"),
    ],
)  # fmt: skip
def test_what_is_missing_wrong_or_not_covered_is_named(
    tmp_path: Path, family: str, options: dict[str, Any], error: type[ModelError], match: str
) -> None:
    with pytest.raises(error, match=re.escape(match)):
        spec_of(tmp_path, family, **options)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.1.attn_k_b.weight", (4, 24, 32)),
        ("blk.1.attn_v_b.weight", (4, 32, 16)),
        ("blk.0.attn_kv_a_mqa.weight", (32, 64)),
        ("blk.1.ffn_down_exps.weight", (12, 64, 32)),
        ("blk.1.exp_probs_b.bias", (11,)),
        ("blk.1.ffn_gate_shexp.weight", (24, 64)),
    ],
)
def test_a_tensor_of_another_shape_is_refused_before_weights_are_read(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    own = {name: np.full(shape, np.nan, dtype=np.float32)}
    files = locate(written(tmp_path, extra_tensors=own))
    with pytest.raises(ModelError, match=re.escape(f"{name}={shape}: its shape must be")):
        load_weights(files, load_spec(files), "float32", lambda done, total: pytest.fail("read"))


def test_a_tensor_that_is_missing_or_too_many_is_named(tmp_path: Path) -> None:
    corrected = written(tmp_path, metadata={"expert_gating_func": 1, "expert_weights_norm": False})
    files = locate(corrected)
    with pytest.raises(ModelError, match=r"blk\.1\.exp_probs_b\.bias=.*has no such tensor"):
        load_weights(files, load_spec(files), "float32")
    files = locate(written(tmp_path, without=("blk.1.attn_v_b.weight",)))
    with pytest.raises(ModelError, match=r"blk\.1\.attn_v_b\.weight=None: the files lack"):
        load_weights(files, load_spec(files), "float32")
