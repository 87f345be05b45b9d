"""How tensors of latent attention lie in GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np


def latent_tensors(name: str, values: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    """What makes keys and values of DeepSeek's latents, in two tensors; empty for others.

    Keys of a head are turned, as newer converters write them.
    """
    if not name.endswith("kv_b_proj.weight") or not config.model_type.startswith("deepseek"):
        return {}
    prefix = f"blk.{name.split('.')[2]}."
    heads = values.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, kept = np.split(heads, [config.qk_nope_head_dim], axis=1)
    return {
        f"{prefix}attn_k_b.weight": np.ascontiguousarray(keys.swapaxes(1, 2)),
        f"{prefix}attn_v_b.weight": np.ascontiguousarray(kept),
    }


def in_one_tensor(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same as older files have it: of each head rows of its keys, then of its values."""
    found = {}
    for name, keys in tensors.items():
        if name.endswith("attn_k_b.weight"):
            kept = tensors[name.replace("k_b", "v_b")]
            merged = np.concatenate([keys.swapaxes(1, 2), kept], axis=1)
            found[name.replace("k_b", "kv_b")] = merged.reshape(-1, merged.shape[-1])
    return found
