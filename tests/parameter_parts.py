"""The parameters of the parts of language models, worked out from the fields of a config.json.

Plain arithmetic over the published shapes, for checking tables of facts: it shares nothing with
the planner, so that the two can disagree. A layer has a part that mixes tokens and a feed-forward
part; a `Family` says how a model's parts differ from Llama's. Buffers, and scalars of which a
layer has one, are left out. A config given to these functions holds its family under "family".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]
Part = Callable[[Config], int]


def head_dim(c: Config) -> int:
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


# --- What mixes the tokens of a layer ---------------------------------------------------------


def projections(c: Config, hidden: int, heads: int, kv_heads: int, dim: int) -> int:
    family = c["family"]
    queries = heads * dim * (2 if family.gated_queries else 1)
    keys = kv_heads * dim
    values = 0 if family.values_are_keys(c) and kv_heads == global_kv_heads(c) else keys
    weights = hidden * (queries + keys + values) + heads * dim * hidden
    bias = queries + keys + values if family.qkv_bias(c) else 0
    norms = {"none": 0, "head": 2 * dim, "whole": heads * dim + keys}[family.query_norm(c)]
    return weights + bias + (hidden if family.out_bias(c) else 0) + norms


def attention(c: Config) -> int:
    heads = c["num_attention_heads"]
    kv_heads = c["family"].kv_heads(c)
    return projections(c, c["hidden_size"], heads, kv_heads, head_dim(c))


def global_kv_heads(c: Config) -> int:
    return c.get("num_global_key_value_heads") or c.get("num_key_value_heads", 0)


def global_attention(c: Config) -> int:
    """Full attention of a model whose full layers have heads of another size."""
    heads = c["num_attention_heads"]
    return projections(c, c["hidden_size"], heads, global_kv_heads(c), c["global_head_dim"])


def gpt_oss_attention(c: Config) -> int:
    """A sink, one learned logit, beside each query head."""
    return attention(c) + c["num_attention_heads"]


def latent_attention(c: Config) -> int:
    """DeepSeek-V2, arXiv:2405.04434 section 2.1; the indexer of V3.2 where the config has one."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    rank, query_rank = c["kv_lora_rank"], c["q_lora_rank"]
    source = query_rank or hidden
    queries = source * heads * (nope + rope)
    queries += (hidden + 1) * query_rank if query_rank else 0
    latent = hidden * (rank + rope) + rank + rank * heads * (nope + value)
    dim = c.get("index_head_dim", 0)
    indexer = dim and dim * (source * c["index_n_heads"] + hidden + 2) + hidden * c["index_n_heads"]
    return queries + latent + heads * value * hidden + indexer


def gated_delta_net(c: Config) -> int:
    """Qwen3-Next: queries, keys, values and the output's gate in one projection; decay, β."""
    hidden, value_heads = c["hidden_size"], c["linear_num_value_heads"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = value_heads * c["linear_value_head_dim"]
    convolution = (2 * keys + values) * c["linear_conv_kernel_dim"]
    into = hidden * (2 * keys + 2 * values + 2 * value_heads)
    return into + convolution + 2 * value_heads + c["linear_value_head_dim"] + values * hidden


def lightning_attention(c: Config) -> int:
    """MiniMax-01, arXiv:2501.08313: one head of keys a query head, a gate, a norm."""
    inner = c["num_attention_heads"] * head_dim(c)
    return c["hidden_size"] * inner * 5 + inner


def mamba_1(c: Config) -> int:
    """arXiv:2312.00752, with Jamba's norms on the time step and on B and C."""
    hidden, state, rank = c["hidden_size"], c["mamba_d_state"], c["mamba_dt_rank"]
    inner = c["mamba_expand"] * hidden
    step = inner * (rank + 2 * state) + rank * inner + inner + rank + 2 * state
    return 3 * hidden * inner + inner * (c["mamba_d_conv"] + 1) + step + inner * (state + 1)


def mamba_2(
    hidden: int, heads: int, dim: int, state: int, groups: int, kernel: int, norm: bool
) -> int:
    """arXiv:2405.21060: one projection for z, x, B, C and the time step."""
    inner = heads * dim
    convolved = inner + 2 * groups * state
    into = hidden * (inner + convolved + heads)
    return into + convolved * (kernel + 1) + 3 * heads + (inner if norm else 0) + inner * hidden


def nemotron_mamba(c: Config) -> int:
    heads, dim = c["mamba_num_heads"], c["mamba_head_dim"]
    return mamba_2(
        c["hidden_size"], heads, dim, c["ssm_state_size"], c["n_groups"], c["conv_kernel"], True
    )


def bamba_mamba(c: Config) -> int:
    """Granite 4 and Falcon-H1 name the fields alike."""
    heads, dim, norm = c["mamba_n_heads"], c["mamba_d_head"], c.get("mamba_rms_norm", True)
    groups, kernel = c["mamba_n_groups"], c["mamba_d_conv"]
    return mamba_2(c["hidden_size"], heads, dim, c["mamba_d_state"], groups, kernel, norm)


def codestral_mamba(c: Config) -> int:
    heads, dim = c["num_heads"], c["head_dim"]
    groups, kernel = c["n_groups"], c["conv_kernel"]
    return mamba_2(c["hidden_size"], heads, dim, c["state_size"], groups, kernel, True)


# --- The feed-forward part of a layer ----------------------------------------------------------


def feed_forward(c: Config, width: int) -> int:
    family = c["family"]
    matrices = 3 if family.gated else 2
    bias = (matrices - 1) * width + c["hidden_size"] if family.mlp_bias(c) else 0
    return matrices * c["hidden_size"] * width + bias


def dense(c: Config) -> int:
    return feed_forward(c, c["family"].dense_width(c))


def double_wide(c: Config) -> int:
    return feed_forward(c, 2 * c["intermediate_size"])


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer."""

    count: int
    chosen: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False


def first(c: Config, *names: str) -> int:
    return next((c[name] for name in names if c.get(name) is not None), 0)


def experts(c: Config) -> Experts:
    width = first(c, "moe_intermediate_size", "intermediate_size")
    shared = first(c, "shared_expert_intermediate_size", "shared_intermediate_size")
    if c.get("n_shared_experts"):
        shared = first(c, "moe_shared_expert_intermediate_size") or c["n_shared_experts"] * width
    family = c["family"]
    return Experts(
        first(c, "num_experts", "num_local_experts", "n_routed_experts"),
        first(c, "num_experts_per_tok", "top_k_experts"),
        width,
        family.shared_width(c) or shared,
        family.shared_gate,
    )


def mixture(c: Config) -> int:
    """The experts, what every token visits, and the router."""
    e, hidden = experts(c), c["hidden_size"]
    shared = feed_forward(c, e.shared_width) if e.shared_width else 0
    router = hidden * (e.count + e.shared_gate) + e.count * c["family"].router_bias
    return e.count * feed_forward(c, e.width) + shared + router
