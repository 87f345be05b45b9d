"""Families of latent attention, of which `CASES` has none: their layers keep no heads of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints import ROUTED, Case, scaled_rope

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 4,
}
"""All layers are dense."""
_SPARSE: dict[str, Any] = {**_LATENT, **ROUTED, "first_k_dense_replace": 1}
"""All but the first have experts."""

LATENT_CASES: Mapping[str, Case] = {
    "deepseek_v2": Case("deepseek_v2", _LATENT),
    "deepseek_v2-whole-queries": Case(
        "deepseek_v2",
        {
            **_LATENT,
            "q_lora_rank": None,
            "attention_bias": True,
            "mlp_bias": True,
            "v_head_dim": 20,
        },
    ),
    "deepseek_v3": Case("deepseek_v3", _LATENT),
    "deepseek_v3-yarn": Case(
        "deepseek_v3",
        {
            **_LATENT,
            "attention_bias": True,
            "kv_lora_rank": 40,
            **scaled_rope(
                "yarn",
                factor=4.0,
                mscale=0.7,
                mscale_all_dim=1.0,
                original_max_position_embeddings=64,
            ),
        },
    ),
    "deepseek_v2-experts": Case("deepseek_v2", {**_SPARSE, "mlp_bias": True}),
    "deepseek_v2-groups": Case(
        "deepseek_v2",
        {**_SPARSE, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek_v3-experts": Case(
        "deepseek_v3", {**_SPARSE, "n_group": 3, "topk_group": 2, "q_lora_rank": None}
    ),
    "deepseek_v3-one-group": Case(
        "deepseek_v3", {**_SPARSE, "n_group": 1, "topk_group": 1, "norm_topk_prob": False}
    ),
    "minicpm3": Case("minicpm3", {**_LATENT, "dim_model_base": 16, "scale_emb": 3}),
    "minicpm3-plain": Case(
        "minicpm3",
        {
            **_LATENT,
            "q_lora_rank": None,
            "dim_model_base": None,
            "scale_depth": None,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "minicpm3-long": Case(
        "minicpm3",
        {
            **_LATENT,
            **scaled_rope(
                "longrope",
                short_factor=[1.0, 1.1, 1.2, 1.3],
                long_factor=[1.0, 2.0, 3.0, 4.0],
                original_max_position_embeddings=256,
            ),
        },
    ),
}
"""By name."""

LATENT_FAMILIES = {case.family for case in LATENT_CASES.values()}
