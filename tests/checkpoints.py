"""Small random checkpoints of every covered family, written by transformers.

`write_checkpoint(directory, CASES["qwen3"])` leaves a directory as `save_pretrained` does, with
a byte-level tokenizer beside it; `reference_model(directory)` is transformers' own view of it.
Everything is drawn from a seed, biases and norms too, so that none can be forgotten unnoticed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import initialization

from pagoda.models.registry import ARCHITECTURES

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 288
"""Vocabulary of the models: the 256 bytes, the special tokens, and some rows that no token has."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}

OWN_FIELDS: Mapping[str, Mapping[str, str]] = {
    "falcon": {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
    "gpt_neox": {"num_key_value_heads": ""},
}
"""What families call fields of `SIZES`; "": they have no such thing."""

CONFIGS = {
    family.model_type: transformers.CONFIG_MAPPING[family.model_type]
    for family in ARCHITECTURES.values()
}
"""transformers' class of config for every family that is covered."""


_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
SEEING: Mapping[str, Any] = {
    "gemma3": {
        "vision_config": {"model_type": "siglip_vision_model", **_TOWER},
        "mm_tokens_per_image": 4,
    },
    "mistral3": {"vision_config": {"model_type": "pixtral", "head_dim": 16, **_TOWER}},
}
"""What configs of families that see images have beside the text."""


@dataclass(frozen=True)
class Case:
    """One checkpoint: a family and what its config changes in `SIZES`."""

    family: str
    config: Mapping[str, Any] = field(default_factory=dict)


def _llama(**config: Any) -> Case:
    return Case("llama", config)


def scaled_rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **parameters}}


ROUTED: Mapping[str, Any] = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "routed_scaling_factor": 1.5,
}
"""What families say of experts of which some are for every row."""
CORRECTION = "e_score_correction_bias"
"""How names end of what is added to the scores of experts."""
ERNIE_EXPERTS: Mapping[str, Any] = {
    "moe_num_experts": 7,
    "moe_k": 3,
    "moe_intermediate_size": 24,
}
_LAYERS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]

CASES: Mapping[str, Case] = {
    "llama-mha": _llama(num_key_value_heads=4),
    "llama-gqa": _llama(),
    "llama-mqa": _llama(num_key_value_heads=1),
    "llama-tied": _llama(tie_word_embeddings=True),
    "llama-attention-bias": _llama(attention_bias=True),
    "llama-mlp-bias": _llama(mlp_bias=True),
    "llama-head-dim": _llama(head_dim=32),
    "llama-linear": _llama(**scaled_rope("linear", factor=2.0)),
    "llama-dynamic": _llama(**scaled_rope("dynamic", factor=2.0)),
    "llama-llama3": _llama(
        **scaled_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        )
    ),
    "llama-yarn": _llama(**scaled_rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "mistral": Case("mistral", {"sliding_window": None}),
    "mistral-window": Case("mistral", {"sliding_window": 8}),
    "mistral3-seeing": Case(
        "mistral3",
        {
            "model_type": "mistral",
            "head_dim": 32,
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
    ),
    "mistral3-tied": Case("mistral3", {"model_type": "mistral", "sliding_window": 8}),
    "qwen2": Case("qwen2"),
    "qwen2-tied": Case("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    ),
    "qwen3": Case("qwen3", {"head_dim": 32}),
    "qwen3-bias": Case("qwen3", {"head_dim": 32, "attention_bias": True}),
    "qwen3-window": Case(
        "qwen3",
        {
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 2,
        },
    ),
    "cohere": Case("cohere", {"logit_scale": 0.3}),
    "cohere-bias": Case("cohere", {"attention_bias": True, "tie_word_embeddings": False}),
    "cohere2": Case("cohere2", {"sliding_window": 8, "logit_scale": 0.3}),
    "cohere2-bias": Case(
        "cohere2", {"layer_types": _LAYERS, "attention_bias": True, "sliding_window": 20}
    ),
    "ernie4_5": Case("ernie4_5", {"head_dim": 32}),
    "ernie4_5-bias": Case("ernie4_5", {"head_dim": 24, "use_bias": True}),
    "ernie4_5-moe": Case(
        "ernie4_5_moe", {**ERNIE_EXPERTS, "moe_layer_start_index": 2, "moe_num_shared_experts": 1}
    ),
    "ernie4_5-moe-untied": Case(
        "ernie4_5_moe",
        {
            **ERNIE_EXPERTS,
            "moe_layer_interval": 2,
            "moe_layer_start_index": 0,
            "moe_layer_end_index": 2,
            "tie_word_embeddings": False,
        },
    ),
    "exaone4": Case("exaone4", {"sliding_window": 8, "head_dim": 24}),
    "exaone4-full": Case(
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}
    ),
    "falcon": Case("falcon", {"bias": True}),
    "falcon-grouped": Case(
        "falcon", {"new_decoder_architecture": True, "tie_word_embeddings": False}
    ),
    "falcon-serial": Case(
        "falcon", {"multi_query": False, "num_key_value_heads": 4, "parallel_attn": False}
    ),
    "gemma": Case("gemma", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": Case(
        "gemma2",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma2-untied": Case(
        "gemma2",
        {
            "head_dim": 32,
            "layer_types": _LAYERS,
            "sliding_window": 20,
            "tie_word_embeddings": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    "gemma3": Case(
        "gemma3_text",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3-bias": Case(
        "gemma3_text",
        {
            "head_dim": 32,
            "layer_types": _LAYERS,
            "sliding_window": 20,
            "attention_bias": True,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma3-seeing": Case(
        "gemma3",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "query_pre_attn_scalar": 20,
            "layer_types": _LAYERS,
        },
    ),
    "glm": Case("glm", {"head_dim": 32}),
    "glm4": Case("glm4", {"head_dim": 24}),
    "glm4-no-bias": Case("glm4", {"head_dim": 32, "attention_bias": False}),
    "glm4-moe": Case(
        "glm4_moe",
        {**ROUTED, "first_k_dense_replace": 1, "use_qk_norm": True, "norm_topk_prob": False},
    ),
    "glm4-moe-groups": Case(
        "glm4_moe",
        {**ROUTED, "head_dim": 24, "attention_bias": True, "n_group": 3, "topk_group": 2},
    ),
    "granite": Case(
        "granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.22,
            "logits_scaling": 3.0,
        },
    ),
    "granite-bias": Case(
        "granite", {"attention_bias": True, "mlp_bias": True, "residual_multiplier": 0.5}
    ),
    "gpt-oss": Case(
        "gpt_oss",
        {"head_dim": 32, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 8},
    ),
    "gpt_neox": Case("gpt_neox", {"tie_word_embeddings": True}),
    "gpt_neox-serial": Case(
        "gpt_neox",
        {
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            **scaled_rope("default", partial_rotary_factor=0.5),
        },
    ),
    "granite-moe": Case(
        "granitemoe",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
        },
    ),
    "mixtral": Case("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-window": Case(
        "mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 8}
    ),
    "olmoe": Case("olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "qwen2-moe": Case(
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 72,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe": Case(
        "qwen3_moe",
        {
            "num_experts": 9,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 24,
            "decoder_sparse_step": 2,
        },
    ),
    "olmo": Case("olmo"),
    "olmo-bias": Case("olmo", {"attention_bias": True, "tie_word_embeddings": True}),
    "olmo2": Case("olmo2"),
    "olmo2-bias": Case("olmo2", {"attention_bias": True, "head_dim": 24}),
    "olmo3": Case("olmo3", {"sliding_window": 8}),
    "olmo3-yarn": Case(
        "olmo3",
        {
            "sliding_window": 20,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 5e5,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    "phi": Case("phi"),
    "phi3": Case("phi3", {"sliding_window": 8}),
    "phi3-long": Case(
        "phi3",
        {
            "num_key_value_heads": 1,
            "original_max_position_embeddings": 64,
            **scaled_rope(
                "longrope",
                partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                long_factor=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            ),
        },
    ),
    "seed_oss": Case("seed_oss", {"head_dim": 32}),
    "seed_oss-bias": Case(
        "seed_oss",
        {
            "head_dim": 24,
            "attention_bias": False,
            "attention_out_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": Case("smollm3"),
    "smollm3-untied": Case("smollm3", {"tie_word_embeddings": False}),
    "smollm3-no-rope-layers": Case("smollm3", {"no_rope_layers": [0, 1, 1, 0]}),
    "smollm3-window": Case(
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 8, "no_rope_layer_interval": 2},
    ),
    "stablelm": Case(
        "stablelm",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        },
    ),
    "stablelm-parallel": Case(
        "stablelm",
        {"use_parallel_residual": True, "use_qkv_bias": True, "tie_word_embeddings": True},
    ),
    "starcoder2": Case("starcoder2", {"sliding_window": 8}),
    "starcoder2-no-bias": Case("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
}
"""Every covered family and feature, by name, but those of `latent_cases`."""


def case_config(case: Case) -> transformers.PretrainedConfig:
    """transformers' config of a case; of one that sees, `SIZES` are those of the text."""
    renamed = OWN_FIELDS.get(case.family, {})
    own = {renamed.get(name, name): value for name, value in {**SIZES, **case.config}.items()}
    own.pop("", None)
    if case.family not in SEEING:
        return CONFIGS[case.family](**own)
    tied = own.get("tie_word_embeddings", True)
    return CONFIGS[case.family](text_config=own, tie_word_embeddings=tied, **SEEING[case.family])


def auto_class(config: transformers.PretrainedConfig) -> Any:
    """What makes transformers' model of a config."""
    if config.model_type in SEEING:
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


def empty_model(config: transformers.PretrainedConfig) -> Any:
    """transformers' model of a config, without numbers and without a token that pads."""
    own = copy.deepcopy(config)
    own.get_text_config().pad_token_id = None
    with torch.device("meta"), initialization.no_init_weights():
        model = auto_class(own).from_config(own)
    model.tie_weights()
    return model


def language_layers(model: Any) -> Any:
    """What of transformers' model holds the decoder's layers."""
    whole = getattr(model, model.base_model_prefix)
    return getattr(whole, "language_model", whole)


def first_of(own: Any, *names: str) -> Any:
    """The first of these attributes that there is: what families call the same thing."""
    return next(getattr(own, name) for name in names if hasattr(own, name))


def layers_of(model: Any) -> Any:
    """The layers of transformers' model."""
    return first_of(language_layers(model), "layers", "h")


def attention_of(layer: Any) -> Any:
    """What one of them has for attention."""
    return first_of(layer, "self_attn", "self_attention", "attention")


def num_kv_heads(config: Any) -> int:
    """KV heads by transformers' config."""
    if config.model_type == "gpt_neox":
        return config.num_attention_heads
    if config.model_type != "falcon":
        return config.num_key_value_heads
    is_one = config.multi_query and not config.new_decoder_architecture
    return 1 if is_one else config.num_kv_heads


def build_model(case: Case, *, seed: int = 0) -> transformers.PreTrainedModel:
    """The random model of a case, in float32, computing attention eagerly."""
    config = case_config(case)
    with initialization.no_init_weights():  # all are drawn below
        model = auto_class(config).from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
    model.tie_weights()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *corrections(model)]:
            weight.normal_(generator=generator)
            if weight.dim() > 1:
                weight.mul_(weight.shape[1] ** -0.5)
            elif "norm" in name or ".ln_" in name:
                weight.mul_(0.2).add_(1.0)
            else:
                weight.mul_(0.3)
    return model.eval()


def corrections(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """What is added to the scores of experts, which transformers does not count as parameters."""
    return [each for each in model.named_buffers() if each[0].endswith(CORRECTION)]


def write_checkpoint(
    directory: Path,
    case: Case,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    tokenizer: bool = True,
) -> Path:
    """Write a case's model, and the byte-level tokenizer, as transformers does; its directory."""
    build_model(case, seed=seed).to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
    if tokenizer:
        write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> Path:
    """Write a byte-level tokenizer with a chat template: id = byte, then `SPECIAL_TOKENS`."""
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<|bos|>", eos_token="<|eos|>"
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(directory)
    return directory


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    kept += range(ord("®"), ord("ÿ") + 1)
    moved = iter(range(256, 512))
    return [chr(byte if byte in kept else next(moved)) for byte in range(256)]


def byte_tokenizer() -> tokenizers.Tokenizer:
    """One token for each byte, without merges, and the special tokens after them."""
    vocabulary = {character: byte for byte, character in enumerate(byte_alphabet())}
    backend = tokenizers.Tokenizer(BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, normalized=False) for token in SPECIAL_TOKENS]
    )
    return backend


def reference_model(directory: Path) -> transformers.PreTrainedModel:
    """transformers' model of a checkpoint, in float32, computing attention eagerly."""
    own = auto_class(transformers.AutoConfig.from_pretrained(directory))
    model = own.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval()
