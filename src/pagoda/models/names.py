"""How a checkpoint stores a decoder: names of its weights, and how they lie there."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of the tensors of a layer's experts, behind the layer's prefix.

    Those of gate, up and down leave the ending out. {} in them is the expert's number; without it
    the tensor is that of all experts, [E, rows, columns].
    """

    router: str
    down: str
    gate: str = ""
    up: str = ""
    gate_up: str = ""
    """Rows of gate, then of up, where they are one tensor."""
    bias: str = ".bias"
    """Ending of a bias."""
    weight: str = ".weight"
    router_bias: str = ""
    correction: str = ""
    correction_is_row: bool = False
    """It is [1, E], not [E]."""
    shared_gate: str = ""
    shared_up: str = ""
    shared_down: str = ""
    shared_gate_up: str = ""
    shared_router: str = ""
    """Of the gate of the shared expert."""
    shared_router_is_vector: bool = False
    """It is [h], not [1, h]."""
    are_transposed: bool = False
    """Tensors of all experts are [E, columns, rows], and rows of gate and of up take turns."""

    @property
    def are_of_all(self) -> bool:
        """Whether no expert has a tensor of its own."""
        return "{}" not in f"{self.gate}{self.up}{self.gate_up}{self.down}"


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Names of one checkpoint format.

    A layer's tensor is called `layer.format(index) + name + ".weight"` (or `".bias"`); the names
    below leave both ends out. The others are whole names. "": the format has no such weight.
    """

    embedding: str
    final_norm: str
    lm_head: str
    layer: str
    attention_norm: str
    q: str
    k: str
    v: str
    q_norm: str
    k_norm: str
    o: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    ignored: tuple[str, ...]
    """Endings of tensors that may be in the file and are computed here, or taken elsewhere."""
    attention_output_norm: str = ""
    mlp_output_norm: str = ""
    sink_logits: str = ""
    """With its ending, which is not the same in all formats."""
    qkv: str = ""
    """Rows of q, then of k, then of v, where they are one tensor."""
    qkv_takes_turns: bool = False
    """Those are of each KV head in turn: of its queries, of its key, of its value."""
    parallel_norms: tuple[str, str] = ("", "")
    """Of `attention_norm` and `mlp_norm` in files that have the first of these, where layers have
    both norms for what each takes."""
    gate_up: str = ""
    """Rows of gate, then of up, where they are one tensor."""
    q_down: str = ""
    """This and the next five: of latent attention."""
    q_down_norm: str = ""
    q_up: str = ""
    kv_down: str = ""
    kv_down_norm: str = ""
    kv_up: str = ""
    """Rows of each head's keys, then of its values."""
    key_up: str = ""
    """Of keys alone, each head's matrix turned, where these two are tensors of their own."""
    value_up: str = ""
    rotates_neighbours: bool = False
    """Rows of q and k are stored for a rotation of i with i + 1."""
    norm_offset: float = 0.0
    """What has been added to the weights of norms that the model has."""
    experts: ExpertNames | None = None


HUGGING_FACE_NAMES = WeightNames(
    embedding="model.embed_tokens.weight",
    final_norm="model.norm.weight",
    lm_head="lm_head.weight",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    o="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    sink_logits="self_attn.sinks",
    q_down="self_attn.q_a_proj",
    q_down_norm="self_attn.q_a_layernorm",
    q_up="self_attn.q_b_proj",
    kv_down="self_attn.kv_a_proj_with_mqa",
    kv_down_norm="self_attn.kv_a_layernorm",
    kv_up="self_attn.kv_b_proj",
    ignored=("rotary_emb.inv_freq",),
)

_GGUF_EXPERTS = ExpertNames(
    router="ffn_gate_inp.weight",
    router_bias="ffn_gate_inp.bias",
    gate="ffn_gate_exps",
    up="ffn_up_exps",
    down="ffn_down_exps",
    shared_gate="ffn_gate_shexp",
    shared_up="ffn_up_shexp",
    shared_down="ffn_down_shexp",
    shared_router="ffn_gate_inp_shexp.weight",
    shared_router_is_vector=True,
    correction="exp_probs_b.bias",
)

GGUF_NAMES = WeightNames(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    lm_head="output.weight",
    layer="blk.{}.",
    attention_norm="attn_norm",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    o="attn_output",
    mlp_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    attention_output_norm="post_attention_norm",
    mlp_output_norm="post_ffw_norm",
    sink_logits="attn_sinks.weight",
    q_down="attn_q_a",
    q_down_norm="attn_q_a_norm",
    q_up="attn_q_b",
    kv_down="attn_kv_a_mqa",
    kv_down_norm="attn_kv_a_norm",
    kv_up="attn_kv_b",
    experts=_GGUF_EXPERTS,
    ignored=("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
)

GGUF_QKV = "attn_qkv"
"""Of a file that has q, k and v in one tensor."""
GGUF_KEY_UP, GGUF_VALUE_UP = "attn_k_b", "attn_v_b"
"""Of a file that has what latents are turned to keys and to values with in two tensors."""
GGUF_FUSED_EXPERTS = replace(_GGUF_EXPERTS, gate_up="ffn_gate_up_exps")
"""Of a file that has rows of gate and of up of all experts in one tensor."""
GGUF_OLD_EXPERTS = replace(_GGUF_EXPERTS, gate="ffn_gate.{}", up="ffn_up.{}", down="ffn_down.{}")
"""Of a file that has a tensor for each expert, as Mixtral's first ones do."""
