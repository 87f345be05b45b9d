"""Small GGUF files, written as llama.cpp's converter lays them out.

`write_gguf(path, build_model(case))` stores a transformers model under GGUF's names, with the rows
of q and k interleaved for the architectures that want it, and the byte-level tokenizer of
`checkpoints`. Quantised types need rows of whole blocks: use `QUANTISABLE` sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from checkpoints import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    Case,
    byte_alphabet,
    num_kv_heads,
)
from gguf_experts import expert_tensors
from gguf_latents import latent_tensors
from gguf_model_keys import model_keys, rope_factors
from stored_blocks import random_rows

QUANTISABLE = {"intermediate_size": 128}
"""Sizes on top of `checkpoints.SIZES` whose rows are whole blocks of 32."""

ARCHITECTURES = {
    "cohere": "command-r",
    "cohere2": "cohere2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone4": "exaone4",
    "falcon": "falcon",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "glm": "chatglm",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "llama": "llama",
    "minicpm3": "minicpm3",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "phi": "phi2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
"""Model type → llama.cpp's architecture."""
INTERLEAVED = ("llama", "olmo", "smollm3", "granite", "granitemoe")
OFFSET_NORMS = ("gemma", "gemma2", "gemma3")
"""Architectures whose files have 1 added to the weights of norms."""

STAY_PLAIN = (".bias", "ffn_gate_inp.weight")
"""Endings of matrices that llama.cpp does not quantise: biases of experts, and routers."""

GGML = gguf.GGMLQuantizationType
MERGED = "he"
"""The one token of two bytes."""
CONTROL, NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL


def quantisable(case: Case) -> Case:
    """The same case with rows that quantised types can hold."""
    return Case(case.family, {**case.config, **QUANTISABLE})


def interleave(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of heads that rotate i with i + D/2 → rows that rotate i with i + 1."""
    order = np.arange(head_dim).reshape(2, head_dim // 2).T.reshape(-1)
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    return np.ascontiguousarray(heads[:, order]).reshape(rows.shape)


def one_after_the_other(rows: np.ndarray, num_kv_heads: int, head_dim: int) -> np.ndarray:
    """Rows of each KV head's queries, key and value → all queries, then keys, then values."""
    heads = rows.reshape(num_kv_heads, -1, head_dim, *rows.shape[1:])
    parts = heads[:, :-2], heads[:, -2], heads[:, -1]
    return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in parts])


def stored_tensors(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """GGUF name → values as a file holds them, in float32; names are those of the gguf package."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(_NUMBERS[architecture], config.num_hidden_layers)
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.detach().to(torch.float32).numpy()
        if "self_attn.q_proj." in name or "self_attn.k_proj." in name:
            values = interleave(values, head_dim) if architecture in INTERLEAVED else values
        if "query_key_value" in name:
            values = one_after_the_other(values, num_kv_heads(config), head_dim)
        if name.endswith("norm.weight") and architecture in OFFSET_NORMS:
            values = values + 1
        own = expert_tensors(name, values, config.model_type) or latent_tensors(
            name, values, config
        )
        if own:
            tensors |= own
            continue
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = values
    return tensors | rope_factors(config)


_NUMBERS = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}


def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    *,
    quantisation: gguf.GGMLQuantizationType = GGML.F32,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    extra_tensors: Mapping[str, np.ndarray] | None = None,
    types: Mapping[str, str] | None = None,
    blocks: Mapping[str, tuple[str, np.ndarray]] | None = None,
) -> Path:
    """Write a model and the byte tokenizer; matrices get the quantisation, but for routers.

    `metadata` overrides or adds keys (under the architecture's name where they have no dot in
    front), `without` leaves keys and tensors out. A tensor that `types` name gets random blocks of
    the type there in place of its values, one that `blocks` name the type and the rows there.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    keys = {**model_keys(config), **tokenizer_keys(), **(metadata or {})}
    for key, value in keys.items():
        if key not in without and value is not None:
            _add(writer, key if key.startswith(_GLOBAL) else f"{architecture}.{key}", value)
    for name, values in {**stored_tensors(model), **(extra_tensors or {})}.items():
        if name in without:
            continue
        kind = GGML.F32 if values.ndim == 1 or name.endswith(STAY_PLAIN) else quantisation
        if blocks is not None and name in blocks:
            kind, stored = GGML[blocks[name][0]], blocks[name][1]
        elif types is not None and name in types:
            kind = GGML[types[name]]
            rows = random_rows(kind.name, math.prod(values.shape[:-1]), values.shape[-1])
            stored = rows.reshape(*values.shape[:-1], -1)
        else:
            stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer_keys() -> dict[str, Any]:
    """The metadata of the byte-level tokenizer, with one merge, padded to the vocabulary."""
    tokens = [*byte_alphabet(), *SPECIAL_TOKENS, MERGED]
    kinds = [NORMAL] * 256 + [CONTROL] * len(SPECIAL_TOKENS) + [NORMAL]
    unused = range(len(tokens), VOCAB_SIZE)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *(f"[PAD{index}]" for index in unused)],
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds] + [5] * len(unused),
        "tokenizer.ggml.merges": [" ".join(MERGED)],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


_GLOBAL = ("general.", "tokenizer.", "split.")


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)
