"""The metadata of a GGUF file, put under the names of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.gguf import GGUFFile


@dataclass(frozen=True, slots=True)
class GGUFArchitecture:
    """One value of `general.architecture`."""

    architecture: str
    """The same in the Hugging Face naming."""
    interleaved: bool
    """Whether rows of q and k are stored for a rotation of neighbours, i with i + 1."""


GGUF_ARCHITECTURES = {
    "llama": GGUFArchitecture("LlamaForCausalLM", interleaved=True),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM", interleaved=False),
    "qwen3": GGUFArchitecture("Qwen3ForCausalLM", interleaved=False),
    "smollm3": GGUFArchitecture("SmolLM3ForCausalLM", interleaved=True),
}

ROPE_FACTORS = "rope_freqs.weight"

_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
}

_NEUTRAL = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.causal": True,
}
"""Features that are not covered, with the value that means they are not in use."""

_ROPE_SCALING = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}


def gguf_architecture(file: GGUFFile) -> GGUFArchitecture:
    """The row of the file's architecture; `UnsupportedModelError` where there is none."""
    name = file.metadata.get("general.architecture")
    if name not in GGUF_ARCHITECTURES:
        raise UnsupportedModelError(
            "general.architecture", name, f"covered are {', '.join(GGUF_ARCHITECTURES)}"
        )
    return GGUF_ARCHITECTURES[name]


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """The config that the file's metadata and list of tensors describe.

    Biases and a tied output head are told by the presence of their tensors. A file without
    `*.vocab_size` has as many tokens as its embedding has rows. Raises `UnsupportedModelError` for
    a feature that is not covered.
    """
    architecture = gguf_architecture(file).architecture
    own = _own_metadata(file)
    _refuse_uncovered(own)
    values: dict[str, Any] = {name: own.get(key) for name, key in _FIELDS.items()}
    values |= {
        "architectures": [architecture],
        "dtype": _dtype(file),
        "vocab_size": own.get("vocab_size", _embedding_rows(file)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "sliding_window": own.get("attention.sliding_window"),
        "rope_parameters": _rope_parameters(own, file),
    }
    return ModelConfig(values)


def _own_metadata(file: GGUFFile) -> Mapping[str, Any]:
    """The keys under the architecture's name, without it."""
    prefix = f"{file.metadata['general.architecture']}."
    return {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }


def _refuse_uncovered(own: Mapping[str, Any]) -> None:
    for key, neutral in _NEUTRAL.items():
        if own.get(key, neutral) != neutral:
            raise UnsupportedModelError(key, own[key], "this feature is not covered")
    head_dim = own.get("attention.key_length")
    if own.get("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(
            "attention.value_length", own["attention.value_length"], "must equal key_length"
        )


def _embedding_rows(file: GGUFFile) -> int | None:
    embedding = file.tensors.get("token_embd.weight")
    return None if embedding is None else embedding.shape[0]


def _dtype(file: GGUFFile) -> str:
    """The dtype of unquantised weights; bfloat16 where any matrix is quantised."""
    types = {tensor.type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return {("F32",): "float32", ("F16",): "float16"}.get(tuple(sorted(types)), "bfloat16")


def _rope_parameters(own: Mapping[str, Any], file: GGUFFile) -> dict[str, Any]:
    kind = own.get("rope.scaling.type", "none")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise UnsupportedModelError(
                "rope.scaling.type", kind, f"not covered together with the tensor {ROPE_FACTORS}"
            )
        return {"rope_type": "factors", "factors": _rope_factors(file)}
    if kind == "none":
        return {"rope_type": "default"}
    parameters = {name: own.get(key) for name, key in _ROPE_SCALING.items()}
    return {"rope_type": kind} | parameters


def _rope_factors(file: GGUFFile) -> list[float]:
    num_values = file.tensors[ROPE_FACTORS].shape[-1]
    return file.read_rows(ROPE_FACTORS, 0, 1)[0, :num_values].tolist()
