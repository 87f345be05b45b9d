"""Shapes of well-known models, as their configurations give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.registry import decoder_spec

Values = Mapping[str, Any]


def _config(
    family: str, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int,
    head_dim: int, positions: int, theta: float, eps: float, tied: bool,
) -> dict[str, Any]:  # fmt: skip
    """As transformers 5 writes it; no token ends an answer."""
    return {
        "model_type": family,
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rms_norm_eps": eps,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": None,
    }


CONFIGS: Mapping[str, Values] = {
    "llama-3-8b": _config(
        "llama", 128256, 4096, 14336, 32, 32, 8, 128, 8192, 500_000.0, 1e-5, False
    ),
    "qwen3-0.6b": _config(
        "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, 40960, 1_000_000.0, 1e-6, True
    ),
    "qwen3-14b": _config(
        "qwen3", 151936, 5120, 17408, 40, 40, 8, 128, 40960, 1_000_000.0, 1e-6, False
    ),
}
TINY_CONFIGS: Mapping[str, Values] = {
    "tiny-llama": _config("llama", 320, 64, 96, 2, 4, 2, 16, 256, 10_000.0, 1e-5, False),
    "tiny-qwen3": _config("qwen3", 320, 64, 96, 1, 4, 1, 16, 256, 10_000.0, 1e-6, True),
}
"""For `--tiny`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without weights."""

    name: str
    values: Values
    spec: DecoderSpec

    @property
    def num_weights(self) -> int:
        """Numbers in its matrices; a tied embedding counts once."""
        spec, count = self.spec, 0
        for layer in spec.layers:
            attention = layer.attention
            heads = 2 * attention.num_heads + 2 * attention.num_kv_heads
            count += heads * attention.head_dim * spec.hidden_size
            count += 3 * spec.hidden_size * layer.mlp.intermediate_size
        embeddings = 1 if spec.tie_word_embeddings else 2
        return count + embeddings * spec.vocab_size * spec.hidden_size


def shape_of(name: str) -> Shape:
    """The shape of that name."""
    values = {**CONFIGS, **TINY_CONFIGS}[name]
    return Shape(name, values, decoder_spec(ModelConfig(values)))
