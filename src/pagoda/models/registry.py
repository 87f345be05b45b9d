"""The architectures that are covered, one row each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.families.cohere2 import cohere2
from pagoda.models.families.exaone4 import exaone4
from pagoda.models.families.gemma import gemma
from pagoda.models.families.gemma2 import gemma2
from pagoda.models.families.gemma3 import gemma3
from pagoda.models.families.glm4 import glm, glm4
from pagoda.models.families.gpt_oss import gpt_oss
from pagoda.models.families.granite import granite, granite_moe
from pagoda.models.families.llama import llama
from pagoda.models.families.mistral import mistral
from pagoda.models.families.mixtral import mixtral
from pagoda.models.families.olmo2 import olmo2
from pagoda.models.families.olmo3 import olmo3
from pagoda.models.families.olmoe import olmoe
from pagoda.models.families.phi3 import phi3
from pagoda.models.families.qwen2 import qwen2
from pagoda.models.families.qwen2_moe import qwen2_moe
from pagoda.models.families.qwen3 import qwen3
from pagoda.models.families.qwen3_moe import qwen3_moe
from pagoda.models.families.smollm3 import smollm3
from pagoda.models.names import GGUF_NAMES, GGUF_QKV, HUGGING_FACE_NAMES, ExpertNames, WeightNames
from pagoda.models.near import near_names
from pagoda.models.quantization import read_quantization


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
_GGUF_GLM = replace(_GGUF_ONE_GATE_UP, rotates_neighbours=True)

_QWEN_EXPERTS = ExpertNames(
    router="mlp.gate.weight",
    gate="mlp.experts.{}.gate_proj",
    up="mlp.experts.{}.up_proj",
    down="mlp.experts.{}.down_proj",
    shared_gate="mlp.shared_expert.gate_proj",
    shared_up="mlp.shared_expert.up_proj",
    shared_down="mlp.shared_expert.down_proj",
    shared_router="mlp.shared_expert_gate.weight",
)
_MIXTRAL_EXPERTS = ExpertNames(
    router="block_sparse_moe.gate.weight",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
)
_GRANITE_EXPERTS = ExpertNames(
    router="block_sparse_moe.router.layer.weight",
    gate="",
    up="",
    gate_up="block_sparse_moe.input_linear",
    down="block_sparse_moe.output_linear",
)
_GPT_OSS_EXPERTS = ExpertNames(
    router="mlp.router.weight",
    router_bias="mlp.router.bias",
    gate="",
    up="",
    gate_up="mlp.experts.gate_up_proj",
    down="mlp.experts.down_proj",
    weight="",
    bias="_bias",
    are_transposed=True,
)

ARCHITECTURES: dict[str, Family] = {
    "Cohere2ForCausalLM": Family(
        "cohere2",
        cohere2,
        replace(HUGGING_FACE_NAMES, rotates_neighbours=True),
        _NEIGHBOURS,
    ),
    "Exaone4ForCausalLM": Family("exaone4", exaone4, _POST_NORMS),
    "GemmaForCausalLM": Family("gemma", gemma, gguf_names=_GEMMA),
    "Gemma2ForCausalLM": Family("gemma2", gemma2, _POST_NORMS, _GEMMA),
    "Gemma3ForCausalLM": Family("gemma3_text", gemma3, _POST_NORMS, _GEMMA),
    "GlmForCausalLM": Family("glm", glm, _GLM, _GGUF_GLM),
    "Glm4ForCausalLM": Family(
        "glm4",
        glm4,
        replace(
            _GLM,
            attention_output_norm="post_self_attn_layernorm",
            mlp_output_norm="post_mlp_layernorm",
        ),
        _GGUF_GLM,
    ),
    "GptOssForCausalLM": Family(
        "gpt_oss", gpt_oss, replace(HUGGING_FACE_NAMES, experts=_GPT_OSS_EXPERTS)
    ),
    "GraniteMoeForCausalLM": Family(
        "granitemoe", granite_moe, replace(HUGGING_FACE_NAMES, experts=_GRANITE_EXPERTS)
    ),
    "GraniteForCausalLM": Family("granite", granite, gguf_names=_NEIGHBOURS),
    "LlamaForCausalLM": Family("llama", llama, gguf_names=_NEIGHBOURS),
    "MistralForCausalLM": Family("mistral", mistral, gguf_names=_NEIGHBOURS),
    "MixtralForCausalLM": Family(
        "mixtral", mixtral, replace(HUGGING_FACE_NAMES, experts=_MIXTRAL_EXPERTS)
    ),
    "OlmoeForCausalLM": Family("olmoe", olmoe, replace(HUGGING_FACE_NAMES, experts=_QWEN_EXPERTS)),
    "Olmo2ForCausalLM": Family("olmo2", olmo2, _POST_NORMS),
    "Olmo3ForCausalLM": Family("olmo3", olmo3, _POST_NORMS),
    "Phi3ForCausalLM": Family("phi3", phi3, _ONE_QKV, _GGUF_ONE_GATE_UP),
    "Qwen2ForCausalLM": Family("qwen2", qwen2),
    "Qwen2MoeForCausalLM": Family(
        "qwen2_moe", qwen2_moe, replace(HUGGING_FACE_NAMES, experts=_QWEN_EXPERTS)
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe", qwen3_moe, replace(HUGGING_FACE_NAMES, experts=_QWEN_EXPERTS)
    ),
    "Qwen3ForCausalLM": Family("qwen3", qwen3),
    "SmolLM3ForCausalLM": Family("smollm3", smollm3, gguf_names=_NEIGHBOURS),
}


def weight_names(architecture: str, kind: str, tensors: Collection[str]) -> WeightNames:
    """What an architecture's weights are called in a kind of files: directory or gguf.

    A GGUF file of any architecture may have q, k and v in one tensor: its `tensors` tell.
    """
    family = ARCHITECTURES[architecture]
    if kind != "gguf":
        return family.names
    names = family.gguf_names
    one = f"{names.layer.format(0)}{GGUF_QKV}.weight" in tensors
    return replace(names, qkv=GGUF_QKV) if one else names


def decoder_spec(config: ModelConfig, max_model_len: int | None = None) -> DecoderSpec:
    """The decoder a config describes.

    `max_model_len` is the longest sequence the engine will run (see `read_rope`). Raises
    `UnsupportedModelError` for an architecture, a feature or a scheme of weights that is not
    covered, `ModelError` for a field that is missing or wrong.
    """
    family = find_family(config)
    read_quantization(config)
    return family.read(config, max_model_len)


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
        limit = f"covered are {', '.join(ARCHITECTURES)}, as safetensors and as GGUF files{near}"
        raise UnsupportedModelError("architectures", architecture, limit)
    return ARCHITECTURES[architecture]


def family_of(model_type: str) -> Family | None:
    """The family whose configs call themselves `model_type`; None where it is not covered."""
    families = (family for family in ARCHITECTURES.values() if family.model_type == model_type)
    return next(families, None)
