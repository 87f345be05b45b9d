"""The metadata of a GGUF file, put under the names of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.gguf import GGUFFile
from pagoda.models.names import GGUF_NAMES
from pagoda.models.near import near_names

GGUF_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""Covered values of `general.architecture`, in the Hugging Face naming; Mistral is stored as llama.
"""

ROPE_FACTORS = "rope_freqs.weight"
_MOST_ROPE_FACTORS = 2**13
"""Pairs of numbers in the largest head."""

_NEEDED = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
}
_OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
}
_DEFAULT_THETA = 10_000.0

_NEUTRAL = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.causal": True,
    "rope.scale_linear": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Features that are not covered, with the value that means they are not in use."""

_SCALING = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}


def gguf_architecture(file: GGUFFile) -> str:
    """The file's architecture in the Hugging Face naming.

    Raises `UnsupportedModelError` where it is not covered.
    """
    name = file.metadata.get("general.architecture")
    if type(name) is not str or name not in GGUF_ARCHITECTURES:
        near = near_names(name, GGUF_ARCHITECTURES)
        limit = f"covered are {', '.join(GGUF_ARCHITECTURES)} (Mistral is stored as llama){near}"
        raise UnsupportedModelError("general.architecture", name, limit)
    return GGUF_ARCHITECTURES[name]


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """The config that the file's metadata and its list of tensors describe.

    The metadata holds no word about biases, a tied output head or the number of tokens: the tensors
    tell. Raises `UnsupportedModelError` for a feature that is not covered, `ModelError` for a key
    that is missing.
    """
    architecture = gguf_architecture(file)
    prefix = f"{file.metadata['general.architecture']}."
    own = _Metadata(prefix, file.metadata)
    _refuse_uncovered(own, file)
    values: dict[str, Any] = {name: own.needed(key) for name, key in _NEEDED.items()}
    values |= {name: own.get(key) for name, key in _OPTIONAL.items()}
    if architecture == "LlamaForCausalLM" and values["sliding_window"] is not None:
        architecture = "MistralForCausalLM"
    values |= {
        "architectures": [architecture],
        "dtype": _dtype(file),
        "vocab_size": num_tokens(file),
        "tie_word_embeddings": GGUF_NAMES.lm_head not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "rope_theta": own.get("rope.freq_base", _DEFAULT_THETA),
        "rope_parameters": _rope_parameters(own, file),
    }
    return _with_head_dim(ModelConfig(values), own)


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The keys under the architecture's name."""

    prefix: str
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """A value; a list, one for each layer, is taken where all layers have the same."""
        value = self.values.get(self.prefix + key, default)
        if type(value) is not list:
            return value
        if len(set(value)) != 1:
            raise UnsupportedModelError(
                self.prefix + key, value, "layers that differ in this are not covered"
            )
        return value[0]

    def needed(self, key: str) -> Any:
        """A value that has to be there."""
        value = self.get(key)
        if value is None:
            raise ModelError(
                self.prefix + key, None, "the file's metadata lacks this key, which is needed"
            )
        return value


def _refuse_uncovered(own: _Metadata, file: GGUFFile) -> None:
    for key, neutral in _NEUTRAL.items():
        value = own.get(key, neutral)
        if value != neutral:
            raise UnsupportedModelError(own.prefix + key, value, "this feature is not covered")
    num_files = file.metadata.get("split.count", 1)
    if num_files not in (0, 1):
        raise UnsupportedModelError(
            "split.count", num_files, "merge the parts into one file first (gguf-split --merge)"
        )


def _with_head_dim(config: ModelConfig, own: _Metadata) -> ModelConfig:
    """A file without `key_length` derives it, whatever the family would do; all of it rotates."""
    head_dim = config.optional_integer("head_dim")
    if head_dim is None:
        head_dim = config.integer("hidden_size") // config.integer("num_attention_heads")
    for key in ("attention.value_length", "rope.dimension_count"):
        value = own.get(key, head_dim)
        if value != head_dim:
            raise UnsupportedModelError(
                own.prefix + key, value, f"only the head size, {head_dim}, is covered"
            )
    return ModelConfig({**config.values, "head_dim": head_dim})


def num_tokens(file: GGUFFile) -> int:
    """Rows of the embedding; `ModelError` where the file has none."""
    embedding = file.tensors.get(GGUF_NAMES.embedding)
    if embedding is None or len(embedding.shape) != 2:
        shape = embedding.shape if embedding is not None else None
        raise ModelError(GGUF_NAMES.embedding, shape, "the file lacks this matrix")
    return embedding.shape[0]


def _dtype(file: GGUFFile) -> str:
    """The dtype of unquantised matrices; bfloat16 where any is quantised."""
    types = {tensor.type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if types == {"F32"}:
        return "float32"
    return "float16" if types == {"F16"} else "bfloat16"


def _rope_parameters(own: _Metadata, file: GGUFFile) -> dict[str, Any]:
    kind = own.get("rope.scaling.type", "none")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise UnsupportedModelError(
                f"{own.prefix}rope.scaling.type", kind, f"not covered together with {ROPE_FACTORS}"
            )
        return {"rope_type": "factors", "factors": _rope_factors(file)}
    if kind == "none":
        return {"rope_type": "default"}
    return {"rope_type": kind} | {name: own.get(key) for name, key in _SCALING.items()}


def _rope_factors(file: GGUFFile) -> list[float]:
    shape = file.tensors[ROPE_FACTORS].shape
    if len(shape) > 1 or shape[0] > _MOST_ROPE_FACTORS:
        limit = f"must be a vector of at most {_MOST_ROPE_FACTORS}"
        raise ModelError(ROPE_FACTORS, shape, limit)
    values: list[float] = file.read_rows(ROPE_FACTORS, slice(None))[0].tolist()
    return values
