"""Bytes of a model's weights, in all and on each rank."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.planning.groups import stages_of
from pagoda.planning.parameters import LayerParameters, Parameters
from pagoda.planning.pool import PoolOptions
from pagoda.planning.quantization import Scheme, plain

_LOADER_SHARE = 0.01
_LOADER_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights as they are stored."""

    parameters: Parameters
    plain_bits: float
    """Bits of a number in embeddings, norms and routers."""
    layer_bits: float
    """Bits of a number in the layers' matrices."""
    expert_bits: float
    scale: float = 1.0
    """Bytes of the files over bytes counted, where the files are known."""

    @property
    def total_bytes(self) -> int:
        parts = self.parameters
        outside = (parts.embedding + parts.head + parts.other) * self.plain_bits
        inside = sum(self._layer_bits(part) for part in parts.layers)
        return round((outside + inside) * self.scale / 8)

    def rank_bytes(self, options: PoolOptions) -> tuple[int, ...]:
        """For each stage of the pipeline, the bytes on one of its ranks.

        Matrices are split evenly; the embedding is on the first stage, the head on the last, which
        has a copy of a tied embedding.
        """
        parts, size = self.parameters, options.tensor_parallel_size
        stages = stages_of(
            len(parts.layers), options.pipeline_parallel_size, options.pipeline_split
        )
        bits = [
            sum(self._layer_bits(part) for part in parts.layers[stage.start : stage.stop])
            for stage in stages
        ]
        bits[0] += (parts.embedding + parts.other) * self.plain_bits
        own_head = parts.head or (parts.embedding if len(stages) > 1 else 0)
        bits[-1] += own_head * self.plain_bits
        return tuple(round(stage_bits * self.scale / 8 / size) for stage_bits in bits)

    def read_bytes(self, num_tokens: int) -> int:
        """Bytes of weights that a step of `num_tokens` sequences reads, in all.

        Of the experts those that at least one token chose, were the choice even:
        experts × (1 - (1 - chosen / experts) ^ tokens).
        """
        head = (self.parameters.head or self.parameters.embedding) * self.plain_bits
        inside = sum(
            self._layer_bits(part, _share_chosen(part, num_tokens))
            for part in self.parameters.layers
        )
        return round((head + inside) * self.scale / 8)

    def _layer_bits(self, part: LayerParameters, experts_share: float = 1.0) -> float:
        dense = (part.attention + part.mlp) * self.layer_bits
        return dense + part.experts * self.expert_bits * experts_share


def store_weights(
    parameters: Parameters, dtype: str, scheme: Scheme | None, files_bytes: int | None = None
) -> Weights:
    """The weights under a scheme, or in plain `dtype` numbers; `files_bytes` goes first."""
    base = plain(dtype).bits
    layer_bits = base if scheme is None or scheme.experts_only else scheme.bits
    weights = Weights(parameters, base, layer_bits, base if scheme is None else scheme.bits)
    if files_bytes is None:
        return weights
    scale = files_bytes / weights.total_bytes
    return Weights(parameters, base, layer_bits, weights.expert_bits, scale)


def loaded_bytes(stored_bytes: int) -> int:
    """At most what stored weights take once loaded: rotary tables, padding of the vocabulary."""
    return stored_bytes + int(stored_bytes * _LOADER_SHARE) + _LOADER_BYTES


def _share_chosen(part: LayerParameters, num_tokens: int) -> float:
    if not part.num_experts:
        return 1.0
    return float(1 - (1 - part.experts_per_token / part.num_experts) ** num_tokens)
