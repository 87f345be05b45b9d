"""The architectures that are covered, one row each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models import family_names as names
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.families.cohere import cohere
from pagoda.models.families.cohere2 import cohere2
from pagoda.models.families.deepseek import deepseek_v2, deepseek_v3
from pagoda.models.families.ernie4_5 import ernie4_5
from pagoda.models.families.ernie4_5_moe import ernie4_5_moe
from pagoda.models.families.exaone4 import exaone4
from pagoda.models.families.falcon import falcon
from pagoda.models.families.gemma import gemma
from pagoda.models.families.gemma2 import gemma2
from pagoda.models.families.gemma3 import TEXT as GEMMA3_TEXT
from pagoda.models.families.gemma3 import gemma3
from pagoda.models.families.glm4 import glm, glm4
from pagoda.models.families.glm4_moe import glm4_moe
from pagoda.models.families.gpt_neox import gpt_neox
from pagoda.models.families.gpt_oss import gpt_oss
from pagoda.models.families.granite import granite, granite_moe
from pagoda.models.families.llama import llama
from pagoda.models.families.minicpm3 import minicpm3
from pagoda.models.families.mistral import TEXT as MISTRAL_TEXT
from pagoda.models.families.mistral import mistral
from pagoda.models.families.mixtral import mixtral
from pagoda.models.families.olmo import olmo
from pagoda.models.families.olmo2 import olmo2
from pagoda.models.families.olmo3 import olmo3
from pagoda.models.families.olmoe import olmoe
from pagoda.models.families.phi import phi
from pagoda.models.families.phi3 import phi3
from pagoda.models.families.qwen2 import qwen2
from pagoda.models.families.qwen2_moe import qwen2_moe
from pagoda.models.families.qwen3 import qwen3
from pagoda.models.families.qwen3_moe import qwen3_moe
from pagoda.models.families.seed_oss import seed_oss
from pagoda.models.families.smollm3 import smollm3
from pagoda.models.families.stablelm import stablelm
from pagoda.models.families.starcoder2 import starcoder2
from pagoda.models.names import (
    GGUF_FUSED_EXPERTS,
    GGUF_KEY_UP,
    GGUF_NAMES,
    GGUF_OLD_EXPERTS,
    GGUF_QKV,
    GGUF_VALUE_UP,
    HUGGING_FACE_NAMES,
    WeightNames,
)
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


ARCHITECTURES: dict[str, Family] = {
    "CohereForCausalLM": Family("cohere", cohere, names.NEIGHBOURS, names.GGUF_NEIGHBOURS),
    "Cohere2ForCausalLM": Family("cohere2", cohere2, names.NEIGHBOURS, names.GGUF_NEIGHBOURS),
    "DeepseekV2ForCausalLM": Family(
        "deepseek_v2", deepseek_v2, names.DEEPSEEK, names.GGUF_NEIGHBOURS
    ),
    "DeepseekV3ForCausalLM": Family(
        "deepseek_v3", deepseek_v3, names.DEEPSEEK, names.GGUF_NEIGHBOURS
    ),
    "Ernie4_5ForCausalLM": Family("ernie4_5", ernie4_5, names.NEIGHBOURS, names.GGUF_NEIGHBOURS),
    "Ernie4_5_MoeForCausalLM": Family(
        "ernie4_5_moe", ernie4_5_moe, names.ERNIE_MOE, names.GGUF_NEIGHBOURS
    ),
    "Exaone4ForCausalLM": Family("exaone4", exaone4, names.POST_NORMS),
    "FalconForCausalLM": Family("falcon", falcon, names.FALCON, names.GGUF_FALCON),
    "GemmaForCausalLM": Family("gemma", gemma, gguf_names=names.GGUF_GEMMA),
    "Gemma2ForCausalLM": Family("gemma2", gemma2, names.POST_NORMS, names.GGUF_GEMMA),
    "Gemma3ForCausalLM": Family("gemma3_text", gemma3, names.POST_NORMS, names.GGUF_GEMMA),
    "Gemma3ForConditionalGeneration": Family("gemma3", gemma3, names.POST_NORMS, text=GEMMA3_TEXT),
    "GlmForCausalLM": Family("glm", glm, names.GLM, names.GGUF_GLM),
    "Glm4ForCausalLM": Family("glm4", glm4, names.GLM4, names.GGUF_GLM),
    "Glm4MoeForCausalLM": Family("glm4_moe", glm4_moe, names.GLM4_MOE, names.GGUF_POST_ATTENTION),
    "GPTNeoXForCausalLM": Family("gpt_neox", gpt_neox, names.GPT_NEOX),
    "GptOssForCausalLM": Family("gpt_oss", gpt_oss, names.GPT_OSS, names.GGUF_POST_ATTENTION),
    "GraniteForCausalLM": Family("granite", granite, gguf_names=names.GGUF_NEIGHBOURS),
    "GraniteMoeForCausalLM": Family(
        "granitemoe", granite_moe, names.GRANITE_MOE, names.GGUF_NEIGHBOURS
    ),
    "LlamaForCausalLM": Family("llama", llama, gguf_names=names.GGUF_NEIGHBOURS),
    "MiniCPM3ForCausalLM": Family("minicpm3", minicpm3),
    "MistralForCausalLM": Family("mistral", mistral, gguf_names=names.GGUF_NEIGHBOURS),
    "Mistral3ForConditionalGeneration": Family("mistral3", mistral, text=MISTRAL_TEXT),
    "MixtralForCausalLM": Family("mixtral", mixtral, names.MIXTRAL, names.GGUF_NEIGHBOURS),
    "OlmoForCausalLM": Family("olmo", olmo, gguf_names=names.GGUF_NEIGHBOURS),
    "Olmo2ForCausalLM": Family("olmo2", olmo2, names.POST_NORMS),
    "Olmo3ForCausalLM": Family("olmo3", olmo3, names.POST_NORMS),
    "OlmoeForCausalLM": Family("olmoe", olmoe, names.QWEN_MOE),
    "PhiForCausalLM": Family("phi", phi, names.PHI),
    "Phi3ForCausalLM": Family("phi3", phi3, names.PHI3, names.GGUF_PHI3),
    "Qwen2ForCausalLM": Family("qwen2", qwen2),
    "Qwen2MoeForCausalLM": Family("qwen2_moe", qwen2_moe, names.QWEN_MOE),
    "Qwen3ForCausalLM": Family("qwen3", qwen3),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", qwen3_moe, names.QWEN_MOE),
    "SeedOssForCausalLM": Family("seed_oss", seed_oss, gguf_names=names.GGUF_POST_ATTENTION),
    "SmolLM3ForCausalLM": Family("smollm3", smollm3, gguf_names=names.GGUF_NEIGHBOURS),
    "StableLmForCausalLM": Family("stablelm", stablelm),
    "Starcoder2ForCausalLM": Family("starcoder2", starcoder2, names.STARCODER2),
}


def weight_names(architecture: str, kind: str, tensors: Collection[str]) -> WeightNames:
    """What an architecture's weights are called in a kind of files: directory or gguf.

    A GGUF file of any architecture may have q, k and v in one tensor, what makes keys and values of
    latents in two, gate and up of experts in one, or a tensor for each expert: its `tensors` tell.
    """
    family = ARCHITECTURES[architecture]
    own = family.names if kind != "gguf" else family.gguf_names
    first = own.layer.format(0)
    attention_norm, mlp_norm = own.parallel_norms
    if attention_norm and f"{first}{attention_norm}.weight" in tensors:
        own = replace(own, attention_norm=attention_norm, mlp_norm=mlp_norm)
    if kind != "gguf":
        return own
    if f"{first}{GGUF_QKV}.weight" in tensors:
        own = replace(own, qkv=GGUF_QKV)
    if f"{first}{GGUF_KEY_UP}.weight" in tensors:
        own = replace(own, key_up=GGUF_KEY_UP, value_up=GGUF_VALUE_UP)
    if f"{first}{GGUF_OLD_EXPERTS.gate.format(0)}.weight" in tensors:
        own = replace(own, experts=GGUF_OLD_EXPERTS)
    if any(name.endswith(f".{GGUF_FUSED_EXPERTS.gate_up}.weight") for name in tensors):
        own = replace(own, experts=GGUF_FUSED_EXPERTS)
    return own


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
    """Where the language model is in the files of a config; None: they hold nothing else, or the
    family is not covered."""
    family = _named_by(config)
    return None if family is None else family.text


def names_of(config: ModelConfig) -> WeightNames:
    """What the embedding and the head of a config's files are called; likewise."""
    family = _named_by(config)
    return HUGGING_FACE_NAMES if family is None else family.names


def _named_by(config: ModelConfig) -> Family | None:
    try:
        return find_family(config)
    except ModelError:
        return None


def language_tensors(config: ModelConfig, tensors: Mapping[str, T]) -> Mapping[str, T]:
    """The tensors of a config's language model, under its own names."""
    part = text_part_of(config)
    return tensors if part is None else part.tensors_of(tensors)


def find_family(config: ModelConfig) -> Family:
    """The family of the architecture that a config names, or of its `model_type` where it names
    none, as transformers finds it.

    Raises `UnsupportedModelError` where it is not covered, `ModelError` where there is not one.
    """
    listed = config.values.get("architectures")
    if listed in (None, []) and config.values.get("model_type") is not None:
        return _family_by_type(config)
    if type(listed) is not list or len(listed) != 1:
        limit = "must name one architecture, or be left out beside a model_type"
        raise config.error("architectures", listed, limit)
    architecture = listed[0]
    if type(architecture) is not str or architecture not in ARCHITECTURES:
        near = near_names(architecture, ARCHITECTURES)
        limit = f"covered are {', '.join(ARCHITECTURES)}{near}"
        raise UnsupportedModelError("architectures", architecture, limit)
    return ARCHITECTURES[architecture]


def _family_by_type(config: ModelConfig) -> Family:
    model_type = config.string("model_type")
    family = family_of(model_type)
    if family is None:
        covered = [each.model_type for each in ARCHITECTURES.values()]
        limit = f"covered are {', '.join(covered)}{near_names(model_type, covered)}"
        raise config.unsupported("model_type", model_type, limit)
    return family


def family_of(model_type: str) -> Family | None:
    """The family whose configs call themselves `model_type`; None where it is not covered."""
    families = (family for family in ARCHITECTURES.values() if family.model_type == model_type)
    return next(families, None)
