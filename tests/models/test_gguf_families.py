"""GGUF files of every covered architecture, against the models they were made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from checkpoints import CASES, Case, build_model, scaled_rope
from gguf_files import ARCHITECTURES, write_gguf
from latent_cases import LATENT_CASES
from pagoda.execution.reference import reference_logits
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.gguf_architectures import GGUF_ARCHITECTURES
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.registry import decoder_spec

EVERY_CASE = {**CASES, **LATENT_CASES}
NUM_TOKENS = 96  # past every window, and past the length before an extension
SCORES_BY_HEAD = {"query_pre_attn_scalar": 32}
FEW_EXPERTS = {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
"""Of models all of whose layers are dense: said, and not used."""
NONE_PREDICT = {"num_nextn_predict_layers": 0}
"""Converters leave layers of DeepSeek that predict further tokens out."""
WEIGHTED_YARN = scaled_rope(
    "yarn", factor=4.0, mscale=0.707, mscale_all_dim=0.707, original_max_position_embeddings=64
)
BY_DEFAULT = {"scale_emb": 12, "dim_model_base": 256, "v_head_dim": 16}
STORED: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere-bias": {"tie_word_embeddings": True},
    "cohere2": {},
    "deepseek_v2": FEW_EXPERTS,
    "deepseek_v2-whole-queries": FEW_EXPERTS,
    "deepseek_v2-experts": {},
    "deepseek_v2-groups": {},
    "deepseek_v3": NONE_PREDICT,
    "deepseek_v3-yarn": {**NONE_PREDICT, **WEIGHTED_YARN},
    "deepseek_v3-experts": NONE_PREDICT,
    "deepseek_v3-one-group": NONE_PREDICT,
    "ernie4_5": {},
    "ernie4_5-bias": {},
    "exaone4": {},
    "exaone4-full": {},
    "gemma": {},
    "gemma2": SCORES_BY_HEAD,
    "gemma3": SCORES_BY_HEAD,
    "glm": {"head_dim": 16},
    "glm4": {},
    "glm4-no-bias": {},
    "glm4-moe": {},
    "glm4-moe-groups": {},
    "gpt-oss": {},
    "granite": {},
    "granite-bias": {},
    "granite-moe": {},
    "llama-gqa": {},
    "minicpm3": BY_DEFAULT,
    "minicpm3-plain": {**BY_DEFAULT, "scale_depth": 1.4, "q_lora_rank": 48},
    "minicpm3-long": BY_DEFAULT,
    "mixtral": {},
    "olmo2": {},
    "olmo3": {},
    "olmo3-yarn": {},
    "olmoe": {},
    "phi3": {},
    "phi3-long": {},
    "qwen2": {},
    "qwen2-moe": {"mlp_only_layers": [], "norm_topk_prob": False},
    "qwen3": {},
    "qwen3-moe": {"decoder_sparse_step": 1, "norm_topk_prob": True},
    "seed_oss": {},
    "seed_oss-bias": {},
    "smollm3": {},
}
"""Case → what it has to be changed by: what llama.cpp derives is not in a file."""


def stored_model(name: str) -> transformers.PreTrainedModel:
    case = EVERY_CASE[name]
    return build_model(Case(case.family, {**case.config, **STORED[name]}))


def reference_spec(model: transformers.PreTrainedModel) -> DecoderSpec:
    """What the model's own config says."""
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return decoder_spec(ModelConfig({**config, "dtype": "float32"}), NUM_TOKENS)


def in_float32(value: Any) -> Any:
    """A spec as plain values, numbers with as many digits as a file has of them."""
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: in_float32(getattr(value, name)) for name in names}
    if type(value) is tuple:
        return [in_float32(item) for item in value]
    return np.float32(value).item() if type(value) is float else value


@pytest.mark.parametrize("name", STORED)
def test_a_file_gives_the_spec_and_the_logits_of_its_model(name: str, tmp_path: Path) -> None:
    model = stored_model(name)
    files = locate(str(write_gguf(tmp_path / "tiny.gguf", model)))
    spec = load_spec(files, NUM_TOKENS)
    assert in_float32(spec) == in_float32(reference_spec(model))
    token_ids = np.random.default_rng(3).integers(0, spec.vocab_size, NUM_TOKENS).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0]
    logits = reference_logits(spec, load_weights(files, spec, "float32"), token_ids)
    assert (logits - expected).abs().max() < 1e-4


def test_every_architecture_is_among_them() -> None:
    stored = {ARCHITECTURES[EVERY_CASE[name].family] for name in STORED}
    assert stored == set(GGUF_ARCHITECTURES)
