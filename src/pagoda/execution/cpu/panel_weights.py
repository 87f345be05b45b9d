"""A decoder's weights in the order in which products read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.kernels.cpu.panels import pack
from pagoda.models.weights import DecoderWeights
from pagoda.storage.cpu_storage import as_array


@dataclass(frozen=True, slots=True)
class PanelWeights(DecoderWeights):
    """Weights whose matrices lie in panels; gate and up each for themselves."""

    @classmethod
    def take_over(cls, weights: DecoderWeights) -> PanelWeights:
        """Turn every matrix into panels where it lies: `weights` must not be used otherwise again.

        Nothing is allocated. Raises InvalidOptionError for another dtype than float32 and bfloat16,
        and UnsupportedModelError for bfloat16 rows of odd length.
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
            if weights.dtype == torch.bfloat16 and matrix.shape[1] % 2:
                raise UnsupportedModelError("width", matrix.shape[1], "must be even in bfloat16")
        for matrix in matrices:
            pack(as_array(matrix))
        return cls(weights.embedding, weights.layers, weights.final_norm, weights.lm_head)
