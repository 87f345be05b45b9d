"""A decoder's weights in the order in which products read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.kernels.cpu.panels import pack
from pagoda.models.decoder import DecoderSpec
from pagoda.models.weights import DecoderWeights
from pagoda.storage.cpu_storage import as_array


def require_even_rows(spec: DecoderSpec, dtype: str) -> None:
    """Refuse a model whose rows cannot be multiplied two numbers at a time, as bfloat16 is.

    Raises UnsupportedModelError naming the config's field.
    """
    if dtype != "bfloat16":
        return
    widths = {"hidden_size": {spec.hidden_size}}
    widths["intermediate_size"] = {layer.mlp.intermediate_size for layer in spec.layers}
    for field, sizes in widths.items():
        for size in sizes:
            if size % 2:
                limit = "must be even in bfloat16 on a CPU; --dtype float32 runs it"
                raise UnsupportedModelError(field, size, limit)


@dataclass(frozen=True, slots=True)
class PanelWeights(DecoderWeights):
    """Weights whose matrices lie in panels; gate and up each for themselves."""

    @classmethod
    def take_over(cls, weights: DecoderWeights) -> PanelWeights:
        """Turn every matrix into panels where it lies: `weights` must not be used otherwise again.

        Nothing is allocated. Rows of bfloat16 have to be even (`require_even_rows`). Raises
        InvalidOptionError for another dtype than float32 and bfloat16.
        """
        if isinstance(weights, PanelWeights):
            return weights
        if weights.dtype not in (torch.float32, torch.bfloat16):
            raise InvalidOptionError("dtype", str(weights.dtype), "float32 or bfloat16 on a CPU")
        matrices = [weights.embedding]
        if weights.lm_head is not weights.embedding:
            matrices.append(weights.lm_head)
        for layer in weights.layers:
            matrices += [layer.qkv, layer.o, *layer.gate_up.chunk(2), layer.down]
        for matrix in matrices:
            pack(as_array(matrix))
        return cls(weights.embedding, weights.layers, weights.final_norm, weights.lm_head)
