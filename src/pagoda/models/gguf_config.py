"""The metadata of a GGUF file, put under the names of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.gguf import GGUFFile
from pagoda.models.gguf_architectures import EXPERTS, GGUF_ARCHITECTURES, GGUFArchitecture, Key
from pagoda.models.gguf_header import GGUFTensor
from pagoda.models.gguf_heads import head_sizes
from pagoda.models.gguf_metadata import ArchitectureKeys
from pagoda.models.gguf_rope import rope_parameters
from pagoda.models.gguf_types import require_read
from pagoda.models.names import GGUF_NAMES
from pagoda.models.near import near_names

_WIDTH = "embedding_length"
_NEEDED = {
    "hidden_size": _WIDTH,
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
}
_DEFAULT_THETA = 10_000.0
_BASE = "rope.freq_base"
_PATTERN = "attention.sliding_window_pattern"
_LOCAL_BASE = "rope.freq_base_swa"

_NEUTRAL = {
    "expert_count": 0,
    "expert_group_count": 1,
    "expert_shared_count": 0,
    "expert_shared_feed_forward_length": 0,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 0,
    "nextn_predict_layers": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.scale": 0.0,
    "attention.temperature_scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.causal": True,
    "rope.dimension_sections": 0,
    "rope.scale_linear": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Features that only some architectures have, with the value that means they are not in use."""


def gguf_architecture(file: GGUFFile) -> GGUFArchitecture:
    """The row of the file's architecture.

    Raises `UnsupportedModelError` where it is not covered.
    """
    name = file.metadata.get("general.architecture")
    if type(name) is not str or name not in GGUF_ARCHITECTURES:
        near = near_names(name, GGUF_ARCHITECTURES)
        limit = f"covered are {', '.join(GGUF_ARCHITECTURES)} (Mistral is stored as llama){near}"
        raise UnsupportedModelError("general.architecture", name, limit)
    row = GGUF_ARCHITECTURES[name]
    has_experts = ArchitectureKeys.of(file).raw(EXPERTS)
    return row.with_experts if row.with_experts is not None and has_experts else row


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """The config that the file's metadata and its list of tensors describe.

    The metadata holds no word about biases, a tied output head or the number of tokens: the tensors
    tell. Raises `UnsupportedModelError` for a feature that is not covered or a tensor of a type
    that is not read, `ModelError` for a key that is missing or that the tensors contradict.
    """
    row, own = gguf_architecture(file), ArchitectureKeys.of(file)
    _refuse_uncovered(row, own, file)
    require_read(file.tensors.values())
    _require_width(own, file)
    values = {name: own.needed(key) for name, key in {**_NEEDED, **row.norm_eps}.items()}
    values |= {name: own.get(key) for name, key in _OPTIONAL.items()}
    values |= {name: _value(own, key) for name, key in row.keys.items()}
    values |= _positions(row, own, file) | _windows(row, own, file, values)
    values |= _by_tensors(row, file)
    values |= head_sizes(row, own, ModelConfig(values))
    return ModelConfig({**values, **row.derive(ModelConfig(values))})


def _refuse_uncovered(row: GGUFArchitecture, own: ArchitectureKeys, file: GGUFFile) -> None:
    used = {key.name for key in row.keys.values()}
    own.require({key: value for key, value in _NEUTRAL.items() if key not in used})
    own.require(row.required)
    num_files = file.metadata.get("split.count", 1)
    if num_files not in (0, 1):
        raise UnsupportedModelError(
            "split.count", num_files, "merge the parts into one file first (gguf-split --merge)"
        )


def _require_width(own: ArchitectureKeys, file: GGUFFile) -> None:
    """Head sizes are made of the width, so that one that is wrong would show as another key's."""
    width, stored = own.needed(_WIDTH), _embedding(file).shape[1]
    if width != stored:
        raise own.error(_WIDTH, width, f"must be {stored:,}, as of {GGUF_NAMES.embedding}")


def _value(own: ArchitectureKeys, key: Key) -> Any:
    value = own.needed(key.name) if key.is_needed else own.get(key.name)
    return value or key.default


def _positions(row: GGUFArchitecture, own: ArchitectureKeys, file: GGUFFile) -> dict[str, Any]:
    stated = ModelConfig({_BASE: own.get(_BASE)}, own.prefix)
    theta = stated.number(_BASE, default=_DEFAULT_THETA, minimum=1.0)
    if _LOCAL_BASE not in {key.name for key in row.keys.values()}:
        own.require({_LOCAL_BASE: theta})
    parameters = rope_parameters(own, file, row.original_length)
    return {"rope_theta": theta, "rope_parameters": parameters}


def _windows(
    row: GGUFArchitecture, own: ArchitectureKeys, file: GGUFFile, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The architecture, which a window may change, the window, and which layers have it."""
    window = _value(own, row.window)
    windowed = row.windowed if window is not None else ""
    found = {"architectures": [windowed or row.name], "sliding_window": window}
    if row.period is None:
        return found
    pattern = own.raw(_PATTERN, row.period) if window is not None else 1
    if type(pattern) is not list:
        if type(pattern) is not int or pattern < 0:
            raise own.error(_PATTERN, pattern, "must be a whole number, or a list for the layers")
        # no file has more layers than tensors: a number that is too large is refused later
        count = min(ModelConfig(values).integer("num_hidden_layers"), len(file.tensors))
        pattern = [not pattern or (layer + 1) % pattern for layer in range(count)]
    types = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return {**found, "layer_types": types}


def _by_tensors(row: GGUFArchitecture, file: GGUFFile) -> dict[str, Any]:
    """What the tensors tell."""
    biases = [f"blk.0.{name}.bias" for name in row.attention_bias]
    return {
        "dtype": _dtype(file),
        "vocab_size": num_tokens(file),
        "tie_word_embeddings": GGUF_NAMES.lm_head not in file.tensors,
        "attention_bias": any(name in file.tensors for name in biases),
        "attention_out_bias": "blk.0.attn_output.bias" in file.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "has_two_norms": "blk.0.attn_norm_2.weight" in file.tensors,
    }


def num_tokens(file: GGUFFile) -> int:
    """Rows of the embedding; `ModelError` where the file has none."""
    return _embedding(file).shape[0]


def _embedding(file: GGUFFile) -> GGUFTensor:
    embedding = file.tensors.get(GGUF_NAMES.embedding)
    if embedding is None or len(embedding.shape) != 2:
        shape = embedding.shape if embedding is not None else None
        raise ModelError(GGUF_NAMES.embedding, shape, "the file lacks this matrix")
    return embedding


def _dtype(file: GGUFFile) -> str:
    """The dtype of unquantised matrices; bfloat16 where any is quantised."""
    types = {tensor.type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if types <= {"F32", "F64"}:
        return "float32"
    return "float16" if types == {"F16"} else "bfloat16"
