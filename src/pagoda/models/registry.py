"""The architectures that are covered, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.families.cohere import cohere
from pagoda.models.families.cohere2 import cohere2
from pagoda.models.families.ernie4_5 import ernie4_5
from pagoda.models.families.exaone4 import exaone4
from pagoda.models.families.gemma import gemma
from pagoda.models.families.gemma2 import gemma2
from pagoda.models.families.gemma3 import TEXT as GEMMA3_TEXT
from pagoda.models.families.gemma3 import gemma3
from pagoda.models.families.glm4 import glm, glm4
from pagoda.models.families.granite import granite
from pagoda.models.families.llama import llama
from pagoda.models.families.mistral import TEXT as MISTRAL_TEXT
from pagoda.models.families.mistral import mistral
from pagoda.models.families.olmo2 import olmo2
from pagoda.models.families.olmo3 import olmo3
from pagoda.models.families.phi3 import phi3
from pagoda.models.families.qwen2 import qwen2
from pagoda.models.families.qwen3 import qwen3
from pagoda.models.families.seed_oss import seed_oss
from pagoda.models.families.smollm3 import smollm3
from pagoda.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, WeightNames
from pagoda.models.near import near_names
from pagoda.models.quantization import read_quantization
from pagoda.models.text_part import TextPart

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture that is covered."""

    model_type: str
    """What its configs call themselves."""
    read: Callable[[ModelConfig, int | None], DecoderSpec]
    """Turns a config and the longest sequence to be run, in tokens, into the decoder."""
    names: WeightNames = HUGGING_FACE_NAMES
    """What weights are called in safetensors."""
    gguf_names: WeightNames = GGUF_NAMES
    text: TextPart | None = None
    """Where the language model is, if it is a part of the checkpoint."""


_NEIGHBOURS = replace(GGUF_NAMES, rotates_neighbours=True)
_POST_NORMS = replace(
    HUGGING_FACE_NAMES,
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
_GEMMA = replace(GGUF_NAMES, norm_offset=1.0)
_ONE_QKV = replace(HUGGING_FACE_NAMES, qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
_GLM = replace(HUGGING_FACE_NAMES, gate_up="mlp.gate_up_proj", rotates_neighbours=True)
_GGUF_ONE_GATE_UP = replace(GGUF_NAMES, gate_up="ffn_up")

_INTERLEAVED = replace(HUGGING_FACE_NAMES, rotates_neighbours=True)

ARCHITECTURES: dict[str, Family] = {
    "CohereForCausalLM": Family("cohere", cohere, _INTERLEAVED, _NEIGHBOURS),
    "Cohere2ForCausalLM": Family(
        "cohere2",
        cohere2,
        _INTERLEAVED,
        _NEIGHBOURS,
    ),
    "Ernie4_5ForCausalLM": Family("ernie4_5", ernie4_5, _INTERLEAVED),
    "Exaone4ForCausalLM": Family("exaone4", exaone4, _POST_NORMS),
    "GemmaForCausalLM": Family("gemma", gemma, gguf_names=_GEMMA),
    "Gemma2ForCausalLM": Family("gemma2", gemma2, _POST_NORMS, _GEMMA),
    "Gemma3ForCausalLM": Family("gemma3_text", gemma3, _POST_NORMS, _GEMMA),
    "Gemma3ForConditionalGeneration": Family("gemma3", gemma3, _POST_NORMS, text=GEMMA3_TEXT),
    "GlmForCausalLM": Family("glm", glm, _GLM),
    "Glm4ForCausalLM": Family(
        "glm4",
        glm4,
        replace(
            _GLM,
            attention_output_norm="post_self_attn_layernorm",
            mlp_output_norm="post_mlp_layernorm",
        ),
        replace(_GGUF_ONE_GATE_UP, rotates_neighbours=True),
    ),
    "GraniteForCausalLM": Family("granite", granite, gguf_names=_NEIGHBOURS),
    "LlamaForCausalLM": Family("llama", llama, gguf_names=_NEIGHBOURS),
    "MistralForCausalLM": Family("mistral", mistral, gguf_names=_NEIGHBOURS),
    "Mistral3ForConditionalGeneration": Family("mistral3", mistral, text=MISTRAL_TEXT),
    "Olmo2ForCausalLM": Family("olmo2", olmo2, _POST_NORMS),
    "Olmo3ForCausalLM": Family("olmo3", olmo3, _POST_NORMS),
    "Phi3ForCausalLM": Family("phi3", phi3, _ONE_QKV, replace(_GGUF_ONE_GATE_UP, qkv="attn_qkv")),
    "Qwen2ForCausalLM": Family("qwen2", qwen2),
    "Qwen3ForCausalLM": Family("qwen3", qwen3),
    "SeedOssForCausalLM": Family("seed_oss", seed_oss),
    "SmolLM3ForCausalLM": Family("smollm3", smollm3, gguf_names=_NEIGHBOURS),
}


def weight_names(architecture: str, kind: str) -> WeightNames:
    """What an architecture's weights are called in a kind of files: directory or gguf."""
    family = ARCHITECTURES[architecture]
    return family.gguf_names if kind == "gguf" else family.names


def decoder_spec(config: ModelConfig, max_model_len: int | None = None) -> DecoderSpec:
    """The decoder a config describes.

    `max_model_len` is the longest sequence the engine will run (see `read_rope`). Raises
    `UnsupportedModelError` for an architecture, a feature or a scheme of weights that is not
    covered, `ModelError` for a field that is missing or wrong.
    """
    family = find_family(config)
    read_quantization(config)
    own = config if family.text is None else family.text.config_of(config)
    return family.read(own, max_model_len)


def text_part_of(config: ModelConfig) -> TextPart | None:
    """Where the language model is in the files of a config; None: they hold nothing else.

    A config without `architectures` goes by its `model_type`. None as well where it is not covered.
    """
    names, model_type = config.values.get("architectures"), config.values.get("model_type")
    name = names[0] if isinstance(names, list) and names else None
    family = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if name is None and isinstance(model_type, str):
        family = family_of(model_type)
    return None if family is None else family.text


def language_tensors(config: ModelConfig, tensors: Mapping[str, T]) -> Mapping[str, T]:
    """The tensors of a config's language model, under its own names."""
    part = text_part_of(config)
    return tensors if part is None else part.tensors_of(tensors)


def find_family(config: ModelConfig) -> Family:
    """The family of the architecture that a config names.

    Raises `UnsupportedModelError` where it is not covered, `ModelError` where there is not one.
    """
    names = config.values.get("architectures")
    if type(names) is not list or len(names) != 1:
        raise config.error("architectures", names, "must name one architecture")
    architecture = names[0]
    if type(architecture) is not str or architecture not in ARCHITECTURES:
        near = near_names(architecture, ARCHITECTURES)
        limit = f"covered are {', '.join(ARCHITECTURES)}{near}"
        raise UnsupportedModelError("architectures", architecture, limit)
    return ARCHITECTURES[architecture]


def family_of(model_type: str) -> Family | None:
    """The family whose configs call themselves `model_type`; None where it is not covered."""
    families = (family for family in ARCHITECTURES.values() if family.model_type == model_type)
    return next(families, None)
