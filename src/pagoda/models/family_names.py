"""What weights are called by family, where that is not what most call them."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, ExpertNames

NEIGHBOURS = replace(HUGGING_FACE_NAMES, rotates_neighbours=True)
POST_NORMS = replace(
    HUGGING_FACE_NAMES,
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
PHI3 = replace(HUGGING_FACE_NAMES, qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
GLM = replace(NEIGHBOURS, gate_up="mlp.gate_up_proj")
GLM4 = replace(
    GLM,
    attention_output_norm="post_self_attn_layernorm",
    mlp_output_norm="post_mlp_layernorm",
)
_EXPERTS = ExpertNames(
    router="mlp.gate.weight",
    gate="mlp.experts.{}.gate_proj",
    up="mlp.experts.{}.up_proj",
    down="mlp.experts.{}.down_proj",
)
_BESIDE_SHARED_ONES = replace(
    _EXPERTS,
    correction="mlp.gate.e_score_correction_bias",
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)
QWEN_MOE = replace(
    HUGGING_FACE_NAMES,
    experts=replace(
        _EXPERTS,
        shared_gate="mlp.shared_expert.gate_proj",
        shared_up="mlp.shared_expert.up_proj",
        shared_down="mlp.shared_expert.down_proj",
        shared_router="mlp.shared_expert_gate.weight",
    ),
)
DEEPSEEK = replace(NEIGHBOURS, experts=_BESIDE_SHARED_ONES)
ERNIE_MOE = replace(
    NEIGHBOURS,
    experts=replace(
        _BESIDE_SHARED_ONES,
        correction="mlp.moe_statics.e_score_correction_bias",
        correction_is_row=True,
    ),
)
GLM4_MOE = replace(HUGGING_FACE_NAMES, experts=_BESIDE_SHARED_ONES)
MIXTRAL = replace(
    HUGGING_FACE_NAMES,
    experts=ExpertNames(
        router="block_sparse_moe.gate.weight",
        gate="block_sparse_moe.experts.{}.w1",
        up="block_sparse_moe.experts.{}.w3",
        down="block_sparse_moe.experts.{}.w2",
    ),
)
GRANITE_MOE = replace(
    HUGGING_FACE_NAMES,
    experts=ExpertNames(
        router="block_sparse_moe.router.layer.weight",
        gate_up="block_sparse_moe.input_linear",
        down="block_sparse_moe.output_linear",
    ),
)
GPT_OSS = replace(
    HUGGING_FACE_NAMES,
    experts=ExpertNames(
        router="mlp.router.weight",
        router_bias="mlp.router.bias",
        gate_up="mlp.experts.gate_up_proj",
        down="mlp.experts.down_proj",
        weight="",
        bias="_bias",
        are_transposed=True,
    ),
)

_OF_FOUR_WIDTHS = replace(
    HUGGING_FACE_NAMES, up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h", qkv_takes_turns=True
)
FALCON = replace(
    _OF_FOUR_WIDTHS,
    embedding="transformer.word_embeddings.weight",
    final_norm="transformer.ln_f.weight",
    layer="transformer.h.{}.",
    qkv="self_attention.query_key_value",
    o="self_attention.dense",
    parallel_norms=("ln_attn", "ln_mlp"),
)
GPT_NEOX = replace(
    _OF_FOUR_WIDTHS,
    embedding="gpt_neox.embed_in.weight",
    final_norm="gpt_neox.final_layer_norm.weight",
    lm_head="embed_out.weight",
    layer="gpt_neox.layers.{}.",
    qkv="attention.query_key_value",
    o="attention.dense",
    ignored=("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"),
)
PHI = replace(
    HUGGING_FACE_NAMES,
    final_norm="model.final_layernorm.weight",
    o="self_attn.dense",
    up="mlp.fc1",
    down="mlp.fc2",
)
STARCODER2 = replace(HUGGING_FACE_NAMES, up="mlp.c_fc", down="mlp.c_proj")

GGUF_FALCON = replace(GGUF_NAMES, parallel_norms=("attn_norm_2", "attn_norm"))
GGUF_NEIGHBOURS = replace(GGUF_NAMES, rotates_neighbours=True)
GGUF_POST_ATTENTION = replace(GGUF_NAMES, mlp_norm="post_attention_norm")
GGUF_GEMMA = replace(GGUF_NAMES, norm_offset=1.0)
GGUF_PHI3 = replace(GGUF_NAMES, gate_up="ffn_up")
GGUF_GLM = replace(GGUF_PHI3, rotates_neighbours=True)
