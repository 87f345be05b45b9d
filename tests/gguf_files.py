"""Small GGUF files, written as llama.cpp's converter lays them out.

`write_gguf(path, build_model(case))` stores a transformers model under GGUF's names, with the rows
of q and k interleaved for the architectures that want it, and the byte-level tokenizer of
`checkpoints`. Quantised types need rows of whole blocks: use `QUANTISABLE` sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, VOCAB_SIZE, Case, byte_alphabet
from stored_blocks import random_rows

QUANTISABLE = {"intermediate_size": 128}
"""Sizes on top of `checkpoints.SIZES` whose rows are whole blocks of 32."""

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
}
INTERLEAVED = ("llama", "smollm3")

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

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


def stored_tensors(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """GGUF name → values as a file holds them, in float32."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.detach().to(torch.float32).numpy()
        module, kind = name.rsplit(".", 1)
        prefix = ""
        if module.startswith("model.layers."):
            _, _, index, module = module.split(".", 3)
            prefix = f"blk.{index}."
        if module in ("self_attn.q_proj", "self_attn.k_proj") and architecture in INTERLEAVED:
            values = interleave(values, head_dim)
        tensors[f"{prefix}{NAMES[module]}.{kind}"] = values
    return tensors


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
    """Write a model and the byte tokenizer; matrices get the quantisation, vectors stay float32.

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
        kind = quantisation if values.ndim > 1 else GGML.F32
        if blocks is not None and name in blocks:
            kind, stored = GGML[blocks[name][0]], blocks[name][1]
        elif types is not None and name in types:
            kind = GGML[types[name]]
            stored = random_rows(kind.name, *values.shape)
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


def model_keys(config: Any) -> dict[str, Any]:
    """The metadata of the model, under the architecture's name."""
    return {
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "context_length": config.max_position_embeddings,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)
