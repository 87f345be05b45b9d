"""The fields of a `config.json` under one name each, wherever a family puts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagoda.cache.formats import FLOAT_DTYPES, canonical
from pagoda.models.config import ModelConfig
from pagoda.models.registry import ARCHITECTURES, family_of, text_part_of
from pagoda.planning.patterns import FAMILIES, Family
from pagoda.planning.searched import count_of_layers, fields_of_blocks

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config", "text_model")
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": (
        "n_layer", "n_layers", "num_layers", "decoder_layers", "num_transformer_layers",
    ),
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_key_value_heads": (
        "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num", "kv_n_heads",
        "num_key_value_heads_per_layer",
    ),
    "head_dim": ("attention_head_dim", "hidden_size_per_head", "kv_channels"),
    "intermediate_size": ("n_inner", "ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "d_ff"),
    "max_position_embeddings": (
        "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "max_target_positions",
        "model_max_length",
    ),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_k", "moe_top_k", "top_k_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_ffn_hidden_size"),
    "torch_dtype": ("dtype",),
    "vocab_size": ("padded_vocab_size",),
}  # fmt: skip
_MOST_SCALING = 2**20
_INHERITED = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")


def text_config(config: ModelConfig) -> ModelConfig:
    """The part of a config that describes the language model, its fields under one name each."""
    part = text_part_of(config)
    is_covered = part is not None and part.is_named_by(config)
    section = part.config_of(config) if part is not None and is_covered else config
    for name in (*_TEXT_SECTIONS, "text_config"):
        inner = section.section(name)
        if inner is not None:
            section = inner
    values = dict(section.values)
    for name in _INHERITED:
        if values.get(name) is None and config.values.get(name) is not None:
            values[name] = config.values[name]
    if not values.get("model_type"):
        values["model_type"] = config.values.get("model_type")
    attention = section.section("attn_config")
    for name, others in _ALIASES.items():
        found = _first(values, others)
        if found is None and attention is not None:
            found = _first(attention.values, others)
        # a field that is missing stays so: in some families null means something else
        if values.get(name) is None and found is not None:
            values[name] = found
    values.update(fields_of_blocks(ModelConfig(values, section.prefix)))
    _count_layers(values, model_type_of(ModelConfig(values, section.prefix)))
    return ModelConfig(values, section.prefix)


def _count_layers(values: dict[str, Any], model_type: str) -> None:
    """Fill in the number of layers from lists of them, but for families that Pagoda runs.

    Those need the number: transformers takes its own default where it is missing.
    """
    if model_type in ARCHITECTURES or family_of(model_type) is not None:
        return
    if values.get("num_hidden_layers") is None and (count := count_of_layers(values)) is not None:
        values["num_hidden_layers"] = count


def language_config(config: ModelConfig) -> ModelConfig:
    """`text_config` with what its family's published configs leave out."""
    return read_language(config)[0]


def read_language(config: ModelConfig) -> tuple[ModelConfig, Family | None]:
    """The language model's config, see `language_config`, and its family.

    A family goes by the model type of the language part, or of the whole; None where neither is
    known.
    """
    text = text_config(config)
    types = (model_type_of(text), model_type_of(config))
    family = next((FAMILIES[name] for name in types if name in FAMILIES), None)
    return with_defaults(text, family.defaults if family else {}), family


def with_defaults(config: ModelConfig, defaults: Mapping[str, Any]) -> ModelConfig:
    """The config with a family's defaults where a field is missing."""
    given = {name: value for name, value in config.values.items() if value is not None}
    return ModelConfig({**config.values, **defaults, **given}, config.prefix)


def dtype_of(config: ModelConfig) -> str:
    """The dtype of the checkpoint's plain numbers; bfloat16 where nothing is said."""
    name = canonical(config.string("torch_dtype", default="bfloat16").removeprefix("torch."))
    if name not in FLOAT_DTYPES:
        raise config.error("torch_dtype", name, f"one of {', '.join(FLOAT_DTYPES)}")
    return name


def longest_of(config: ModelConfig, *, extends_yarn: bool) -> int | None:
    """Positions that a config is for, with what its rotary scaling adds; None: it does not say.

    `linear` and `dynamic` multiply; the others' configs give the length after scaling already.
    `yarn` is read in both ways: original × factor where `extends_yarn`.
    """
    longest = config.optional_integer("max_position_embeddings")
    scaling = config.section("rope_scaling") or config.section("rope_parameters")
    if longest is None or scaling is None or str(config.values["model_type"]).startswith("gemma3"):
        return longest
    kind = scaling.values.get("rope_type", scaling.values.get("type"))
    factor = scaling.optional_number("factor") or 1.0
    if factor > _MOST_SCALING:
        raise scaling.error("factor", factor, f"must be at most {_MOST_SCALING}")
    if kind in ("linear", "dynamic"):
        return int(longest * factor)
    if kind == "yarn" and extends_yarn:
        return int(scaling.integer("original_max_position_embeddings", default=longest) * factor)
    return longest


def model_type_of(config: ModelConfig) -> str:
    """What the family calls itself, or the name of its class."""
    name = config.values.get("model_type")
    if name:
        return config.string("model_type")
    classes = config.items("architectures", str, length=0)
    listed = config.values.get("architectures") or []
    return str(listed[0]) if classes is not None and listed else "unnamed"


def per_layer(
    config: ModelConfig, name: str, num_layers: int, default: int | None
) -> tuple[int, ...]:
    """A whole number for each layer, from a list of them or one for all."""
    if isinstance(config.values.get(name), list):
        found = config.items(name, int, length=num_layers)
        assert found is not None
        return tuple(ModelConfig({name: one}, config.prefix).integer(name) for one in found)
    return (config.integer(name, default=default),) * num_layers


def mlp_width(config: ModelConfig, layer: int = 0) -> int | None:
    """`intermediate_size`, of one layer where there is a list of them."""
    name = "intermediate_size"
    if not isinstance(config.values.get(name), list):
        return config.optional_integer(name, minimum=0)
    widths = config.items(name, int, length=layer + 1)
    assert widths is not None
    return ModelConfig({name: widths[layer]}, config.prefix).optional_integer(name, minimum=0)


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)
