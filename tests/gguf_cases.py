"""Which cases are stored as GGUF files, and what such a file cannot say of them."""

from __future__ import annotations

from typing import Any

import transformers

from checkpoints import CASES, Case, build_model, scaled_rope
from latent_cases import LATENT_CASES

EVERY_CASE = {**CASES, **LATENT_CASES}
SCORES_BY_HEAD = {"query_pre_attn_scalar": 32}
FEW_EXPERTS = {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
"""Of models all of whose layers are dense: said, and not used."""
NONE_PREDICT = {"num_nextn_predict_layers": 0}
"""Converters leave layers of DeepSeek that predict further tokens out."""
WEIGHTED_YARN = scaled_rope(
    "yarn", factor=4.0, mscale=0.707, mscale_all_dim=0.707, original_max_position_embeddings=64
)
"""Files have one of DeepSeek's two weights."""
BY_DEFAULT = {"scale_emb": 12, "dim_model_base": 256, "v_head_dim": 16}
"""What no key says of MiniCPM3."""
STORED: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere-bias": {"tie_word_embeddings": True},
    "cohere2": {},
    "deepseek_v2": FEW_EXPERTS,
    "deepseek_v2-whole-queries": FEW_EXPERTS,
    "deepseek_v2-experts": {"mlp_bias": False},
    "deepseek_v2-groups": {},
    "deepseek_v3": NONE_PREDICT,
    "deepseek_v3-yarn": {**NONE_PREDICT, **WEIGHTED_YARN, "attention_bias": False},
    "deepseek_v3-experts": {**NONE_PREDICT, "q_lora_rank": 48},
    "deepseek_v3-one-group": NONE_PREDICT,
    "ernie4_5": {},
    "ernie4_5-bias": {},
    "ernie4_5-moe": {},
    "ernie4_5-moe-untied": {"moe_layer_end_index": -1},
    "exaone4": {},
    "exaone4-full": {},
    "falcon": {"bias": False},
    "falcon-grouped": {},
    "gemma": {},
    "gemma2": SCORES_BY_HEAD,
    "gemma3": SCORES_BY_HEAD,
    "glm": {"head_dim": 16},
    "glm4": {},
    "glm4-no-bias": {},
    "glm4-moe": {},
    "glm4-moe-groups": {},
    "gpt-oss": {},
    "gpt_neox": {"tie_word_embeddings": False},
    "gpt_neox-serial": {"hidden_act": "gelu", "attention_bias": True},
    "granite": {},
    "granite-bias": {},
    "granite-moe": {},
    "llama-gqa": {},
    "minicpm3": BY_DEFAULT,
    "minicpm3-plain": {**BY_DEFAULT, "scale_depth": 1.4, "q_lora_rank": 48},
    "minicpm3-long": BY_DEFAULT,
    "mixtral": {},
    "olmo": {},
    "olmo-bias": {},
    "olmo2": {},
    "olmo3": {},
    "olmo3-yarn": {},
    "olmoe": {},
    "phi": {},
    "phi3": {},
    "phi3-long": {},
    "qwen2": {},
    "qwen2-moe": {"mlp_only_layers": [], "norm_topk_prob": False},
    "qwen3": {},
    "qwen3-moe": {"decoder_sparse_step": 1, "norm_topk_prob": True},
    "seed_oss": {},
    "seed_oss-bias": {},
    "smollm3": {},
    "stablelm": {},
    "stablelm-parallel": {"tie_word_embeddings": False},
    "starcoder2": {"sliding_window": None},
}
"""Case → what it has to be changed by: what llama.cpp derives is not in a file."""


def stored_model(name: str) -> transformers.PreTrainedModel:
    """The model that a file of a case is written of."""
    case = EVERY_CASE[name]
    return build_model(Case(case.family, {**case.config, **STORED[name]}))
