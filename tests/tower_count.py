"""The parameters of what sees images before a language model, from `vision_config`, with the
projection into the text model: `tower_parameters(config)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parameter_parts import Config


def encoder_layers(v: Config, layers: int, width: int) -> int:
    """Transformer layers with biases in the feed-forward part and norms of two values."""
    hidden = v["hidden_size"]
    return layers * (4 * hidden**2 + 2 * hidden * width + width + hidden + 4 * hidden)


def patches(v: Config) -> int:
    return 3 * v["patch_size"] ** 2 * v["hidden_size"]


def grid(v: Config) -> int:
    return (v["image_size"] // v["patch_size"]) ** 2


def siglip(v: Config, text_hidden: int) -> int:
    """Gemma 3, arXiv:2503.19786: SigLIP, a norm and a projection."""
    hidden = v["hidden_size"]
    layers = encoder_layers(v, v["num_hidden_layers"], v["intermediate_size"])
    layers += v["num_hidden_layers"] * 4 * hidden
    embeddings = patches(v) + hidden + grid(v) * hidden
    return layers + embeddings + 2 * hidden + hidden * text_hidden + hidden


def pixtral(v: Config, text_hidden: int) -> int:
    """Pixtral, arXiv:2410.07073: gated, two norms a layer; four patches become one token."""
    hidden, width = v["hidden_size"], v["intermediate_size"]
    layers = v["num_hidden_layers"] * (4 * hidden**2 + 3 * hidden * width + 2 * hidden)
    projector = hidden + 4 * hidden**2 + hidden * text_hidden + text_hidden**2
    return layers + patches(v) + hidden + projector


def llama_4_vision(v: Config, text_hidden: int) -> int:
    hidden, width = v["hidden_size"], v["intermediate_size"]
    layers = encoder_layers(v, v["num_hidden_layers"], width)
    layers += v["num_hidden_layers"] * 4 * hidden
    embeddings = patches(v) + (grid(v) + 2) * hidden + 4 * hidden
    out = v["projector_output_dim"]
    adapter = width * v["projector_input_dim"] + v["projector_input_dim"] * out
    return layers + embeddings + adapter + out * text_hidden


def qwen_vision(v: Config, text_hidden: int) -> int:
    """Patches span two frames; four patches become one token."""
    hidden, merged = v["hidden_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    layers = encoder_layers(v, v["depth"], v["intermediate_size"]) + v["depth"] * 4 * hidden
    embeddings = v["temporal_patch_size"] * patches(v) + hidden
    embeddings += v["num_position_embeddings"] * hidden
    merger = 2 * hidden + merged**2 + merged + merged * text_hidden + text_hidden
    return layers + embeddings + merger


def gemma_4_vision(v: Config, text_hidden: int) -> int:
    hidden, width = v["hidden_size"], v["intermediate_size"]
    layer = 4 * hidden**2 + 3 * hidden * width + 4 * hidden + 2 * v["head_dim"]
    positions = 2 * v["position_embedding_size"] * hidden
    layers = v["num_hidden_layers"] * layer
    return layers + patches(v) + positions + hidden * text_hidden


def mllama_vision(v: Config, text_hidden: int) -> int:
    """Llama 3.2 Vision: local and gated global layers; positions for every shape of tiling."""
    hidden, tiles, shapes = v["hidden_size"], v["max_num_tiles"], 9
    count = v["num_hidden_layers"] + v["num_global_layers"]
    layers = encoder_layers(v, count, v["intermediate_size"]) + 2 * v["num_global_layers"]
    places = grid(v) + 1
    positions = places * hidden + shapes * tiles * (places + 2) * hidden + 3
    added_words = 8 * text_hidden
    projector = v["vision_output_dim"] * text_hidden + text_hidden
    return layers + patches(v) + 5 * hidden + positions + projector + added_words


TOWERS: Mapping[str, Callable[[Config, int], int]] = {
    "siglip_vision_model": siglip,
    "pixtral": pixtral,
    "llama4_vision_model": llama_4_vision,
    "qwen3_5": qwen_vision,
    "qwen3_5_moe": qwen_vision,
    "gemma4_vision": gemma_4_vision,
    "mllama_vision_model": mllama_vision,
}


def tower_parameters(config: Config) -> int:
    """Zero for a model of text alone."""
    vision = config.get("vision_config")
    if vision is None:
        return 0
    return TOWERS[vision["model_type"]](vision, config["text_config"]["hidden_size"])
