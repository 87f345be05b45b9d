"""Which part every layer of a model has, and `Family`: how a family differs from Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parameter_parts import (
    Config,
    Part,
    attention,
    bamba_mamba,
    dense,
    double_wide,
    head_dim,
    lightning_attention,
    mamba_1,
    mixture,
    nemotron_mamba,
)


def nothing(_: Config) -> int:
    return 0


def every(part: Part) -> Callable[[Config], Sequence[Part]]:
    return lambda c: [part] * c["num_hidden_layers"]


def by_kind(parts: Mapping[str, Part]) -> Callable[[Config], Sequence[Part]]:
    """By the config's own list of kinds, or by the interval at which full attention comes."""

    def mixers(c: Config) -> Sequence[Part]:
        interval = c.get("full_attention_interval", 0)
        period = ["linear_attention"] * (interval - 1) + ["full_attention"]
        names = c.get("layer_types") or period * (c["num_hidden_layers"] // interval)
        return [parts[name] for name in names]

    return mixers


def periodic(
    offset: str, period: str, part: Part, other: Part
) -> Callable[[Config], Sequence[Part]]:
    return lambda c: [
        part if i % c[period] == c[offset] else other for i in range(c["num_hidden_layers"])
    ]


def after_the_first(c: Config) -> Sequence[Part]:
    """DeepSeek, Kimi and GLM: the first layers are dense."""
    dense_layers = c["first_k_dense_replace"]
    return [dense] * dense_layers + [mixture] * (c["num_hidden_layers"] - dense_layers)


def granite_feed_forward(c: Config) -> Sequence[Part]:
    return every(mixture if c["num_local_experts"] else dense)(c)


def interleaved(c: Config) -> Sequence[Part]:
    """Llama 4: experts in every layer of that many."""
    step = c["interleave_moe_layer_step"]
    return [mixture if (i + 1) % step == 0 else dense for i in range(c["num_hidden_layers"])]


def gemma_4_feed_forward(c: Config) -> Sequence[Part]:
    """A mixture comes beside the dense part; layers without own keys may be twice as wide."""
    own = c["num_hidden_layers"] - c["num_kv_shared_layers"]
    tail = double_wide if c["use_double_wide_mlp"] else dense
    beside = gemma_4_mixture if c["enable_moe_block"] else nothing
    parts = [dense] * own + [tail] * (c["num_hidden_layers"] - own)
    return [(lambda c, part=part: part(c) + beside(c)) for part in parts]


def gemma_4_mixture(c: Config) -> int:
    """Three more norms, a scale for the router's input and one for every expert."""
    return mixture(c) + 4 * c["hidden_size"] + c["num_experts"]


PATTERN = {"M": nemotron_mamba, "*": attention, "-": dense, "E": mixture}


def by_pattern(c: Config) -> Sequence[Part]:
    """Nemotron-H: a layer is one part alone."""
    return [PATTERN[letter] for letter in c["hybrid_override_pattern"]]


def jamba_mixers(c: Config) -> Sequence[Part]:
    return periodic("attn_layer_offset", "attn_layer_period", attention, mamba_1)(c)


def jamba_feed_forwards(c: Config) -> Sequence[Part]:
    return periodic("expert_layer_offset", "expert_layer_period", mixture, dense)(c)


def minimax_mixers(c: Config) -> Sequence[Part]:
    return [attention if full else lightning_attention for full in c["attn_type_list"]]


def parallel_mixers(c: Config) -> int:
    """Falcon-H1: attention and a state-space model side by side."""
    return attention(c) + bamba_mamba(c)


def cross_attention_mixers(c: Config) -> Sequence[Part]:
    """Llama 3.2 Vision: the same matrices over the image; a norm for the heads, two gates."""
    crossing = set(c["cross_attention_layers"])
    return [cross_attention if i in crossing else attention for i in range(c["num_hidden_layers"])]


def cross_attention(c: Config) -> int:
    return attention(c) + 2 * head_dim(c) + 2


def no(_: Config) -> bool:
    return False


def yes(_: Config) -> bool:
    return True


def flag(name: str) -> Callable[[Config], bool]:
    return lambda c: bool(c.get(name))


def grouped(c: Config) -> int:
    return c.get("num_key_value_heads") or c["num_attention_heads"]


def four_times(c: Config) -> int:
    return c.get("intermediate_size") or 4 * c["hidden_size"]


ATTENTION_EVERYWHERE = every(attention)
DENSE_EVERYWHERE = every(dense)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family differs from Llama."""

    mixers: Callable[[Config], Sequence[Part]] = ATTENTION_EVERYWHERE
    feed_forwards: Callable[[Config], Sequence[Part]] = DENSE_EVERYWHERE
    norms: int = 2
    """Norms of the hidden size in a layer."""
    norm_values: int = 1
    """1 for a scale alone, 2 for a scale and a bias."""
    embedding_norm: bool = False
    qkv_bias: Callable[[Config], bool] = no
    out_bias: Callable[[Config], bool] = no
    query_norm: Callable[[Config], str] = lambda c: "none"
    """No norm on queries and keys, one for each head's size, or one for all heads together."""
    gated_queries: bool = False
    values_are_keys: Callable[[Config], bool] = no
    kv_heads: Callable[[Config], int] = grouped
    gated: bool = True
    mlp_bias: Callable[[Config], bool] = no
    dense_width: Callable[[Config], int] = four_times
    shared_width: Callable[[Config], int] = lambda c: 0
    shared_gate: bool = False
    router_bias: bool = False
    tied: bool = False
    """What an absent tie_word_embeddings means."""
    head_bias: bool = False
    learned_positions: int = 0
    """Rows of learned positions beyond max_position_embeddings, plus one; 0 for none."""
    extra: Part = nothing
