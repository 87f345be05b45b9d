"""The families that Pagoda runs, read for other engines too by the one reader there is.

`pagoda.models.registry.decoder_spec` reads a config for Pagoda's engine, with the defaults that
transformers gives to missing fields; vLLM reads it through transformers, so they hold there as
well. But other engines compute more than Pagoda: other activations, kinds of rope, quantised
weights. None of that changes which layers there are and how large they are.
"""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.registry import ARCHITECTURES, family_of
from pagoda.planning.fields import model_type_of

_BESIDE_THE_SHAPE = (
    "attn_logit_softcapping",
    "dtype", "hidden_act", "max_position_embeddings", "original_max_position_embeddings",
    "hidden_activation", "partial_rotary_factor", "rms_norm_eps", "rope_local_base_freq",
    "rope_parameters", "rope_scaling", "rope_theta", "torch_dtype",
)  # fmt: skip
"""Fields that decide neither layers nor weights: an engine may cover more of them than Pagoda."""


def covered_shape(text: ModelConfig) -> DecoderSpec | None:
    """The layers and weights of a language model whose family Pagoda runs; None for others.

    What the decoder says of positions, norms and dtype is not the config's. Raises as
    `decoder_spec` for a field that is missing or wrong.
    """
    name = model_type_of(text)
    family = ARCHITECTURES.get(name) or family_of(name)
    if family is None:
        return None
    shape = {name: value for name, value in text.values.items() if name not in _BESIDE_THE_SHAPE}
    return family.read(ModelConfig(shape | {"max_position_embeddings": 1}, text.prefix), None)
