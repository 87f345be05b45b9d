"""Bytes of a model's weights, in all and on each rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from pagoda.models.quantization import presumed_types, read_quantization
from pagoda.models.registry import weight_names
from pagoda.models.weight_parts import DecoderParts
from pagoda.planning.architecture import Architecture
from pagoda.planning.fields import text_config
from pagoda.planning.groups import stages_of
from pagoda.planning.parameters import LayerParameters, Parameters, count_parameters
from pagoda.planning.pool import PoolOptions
from pagoda.planning.quantization import Scheme, plain, scheme_named, scheme_of
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.sizing.device_policy import DevicePolicy
from pagoda.sizing.held_weights import HeldWeights, hold
from pagoda.sizing.quantised_weights import quantised_types

_LOADER_SHARE = 0.01
_LOADER_BYTES = 32 * 2**20
_DEQUANTISED = "what is quantised in the checkpoint is de-quantised when it is loaded"
_PRESUMED = "no files of weights are here: taken to be quantised as the config says, layer by layer"


class Weights(Protocol):
    """A model's weights as an engine stores them."""

    @property
    def parameters(self) -> Parameters: ...

    @property
    def stored_as(self) -> str | None:
        """How, where they are no plain numbers."""
        ...

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was taken for granted, in words."""
        ...

    @property
    def total_bytes(self) -> int: ...

    def rank_bytes(self, options: PoolOptions) -> tuple[int, ...]:
        """For each stage of the pipeline, the bytes on one of its ranks."""
        ...

    def read_bytes(self, num_tokens: int) -> int:
        """Bytes of weights that a step of `num_tokens` sequences reads, in all: of experts those
        that an even router is expected to send some of them to (`pagoda.sizing.experts_read`)."""
        ...


@dataclass(frozen=True, slots=True)
class PagodaWeights:
    """Pagoda's, to the byte, on its one device; see `Weights`."""

    parameters: Parameters
    held: HeldWeights
    is_presumed: bool
    """The types are those that the config says: there are no files."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """Nothing where all become plain numbers; that they do is told."""
        if self.held.is_dequantised:
            return (f"{_DEQUANTISED}: {self.held}",)
        return (_PRESUMED,) if self.is_presumed else ()

    @property
    def stored_as(self) -> str | None:
        return self.held.stored_as

    @property
    def total_bytes(self) -> int:
        return self.held.total_bytes

    def rank_bytes(self, options: PoolOptions) -> tuple[int, ...]:
        """All of them."""
        return (self.total_bytes,)

    def read_bytes(self, num_tokens: int) -> int:
        """As the engine counts them."""
        return self.held.step_bytes(num_tokens)


@dataclass(frozen=True, slots=True)
class CountedWeights:
    """Numbers × bits; see `Weights`."""

    parameters: Parameters
    plain_bits: float
    """Bits of a number in embeddings, norms and routers."""
    layer_bits: float
    """Bits of a number in the layers' matrices."""
    expert_bits: float
    scale: float = 1.0
    """Bytes of the files over bytes counted, where the files are known."""
    stored_as: str | None = None
    assumed: tuple[str, ...] = ()

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
        """See `Weights`."""
        head = (self.parameters.head or self.parameters.embedding) * self.plain_bits
        inside = sum(
            self._layer_bits(part, part.share_read(num_tokens)) for part in self.parameters.layers
        )
        return round((head + inside) * self.scale / 8)

    def _layer_bits(self, part: LayerParameters, experts_share: float = 1.0) -> float:
        dense = (part.attention + part.mlp) * self.layer_bits
        return dense + part.experts * self.expert_bits * experts_share


def weights_in_pagoda(
    facts: ModelFacts, request: PlanRequest, model: Architecture, dtype: str, policy: DevicePolicy
) -> PagodaWeights:
    """The weights as Pagoda's engine would have them on such a device."""
    decoder = model.decoder
    assert decoder is not None
    scheme, types = read_quantization(facts.config), facts.tensor_types
    names = weight_names(decoder.architecture, facts.kind, types or {})
    parts = kinds = DecoderParts.of_kinds(decoder, names)
    # numbers alone tell apart the names of layers that are alike, and of experts
    if types is not None or (scheme and _has_digits(scheme.ignored)):
        one_expert = names.experts is not None and names.experts.are_of_all
        parts = DecoderParts.of(decoder, names, one_expert=one_expert)
    if types is None:
        types = {} if scheme is None else presumed_types(scheme, parts, decoder.dtype)
    held = hold(
        parts,
        dtype,
        types,
        keeps_stored=policy.keeps_stored(dtype, request.quantization),
        quantised=quantised_types(parts, types, request.quantization),
        scheme=None if scheme is None else scheme.title,
    )
    held.require_multiplied_in(request.activation_dtype)
    is_presumed = facts.tensor_types is None and scheme is not None
    parameters = count_parameters(facts.config, model, facts.parameters, kinds)
    return PagodaWeights(parameters, held, is_presumed)


def _has_digits(names: Iterable[str]) -> bool:
    return any(map(str.isdigit, "".join(names)))


def weights_in_vllm(
    facts: ModelFacts, model: Architecture, dtype: str, asked: str | None
) -> CountedWeights:
    """The weights as vLLM holds them, `asked` to store them so."""
    parameters = count_parameters(facts.config, model, facts.parameters)
    own = scheme_of(facts.config) or scheme_of(text_config(facts.config))
    scheme = None if asked == "none" else scheme_named(asked) or own
    is_own = scheme == own and asked != "none"
    is_as_wide = plain(dtype).bits == plain(model.dtype).bits
    is_kept = scheme is not None or facts.stored_as is not None or is_as_wide
    files = facts.files_bytes if is_own and is_kept else None
    weights = store_weights(parameters, dtype, scheme, files)
    stored_as = facts.stored_as if scheme is None else scheme.name
    return replace(weights, stored_as=None if asked == "none" else stored_as)


def store_weights(
    parameters: Parameters, dtype: str, scheme: Scheme | None, files_bytes: int | None = None
) -> CountedWeights:
    """The weights under a scheme, or in plain `dtype` numbers; `files_bytes` goes first."""
    base = plain(dtype).bits
    layer_bits = base if scheme is None or scheme.experts_only else scheme.bits
    weights = CountedWeights(parameters, base, layer_bits, base if scheme is None else scheme.bits)
    if files_bytes is None:
        return weights
    return replace(weights, scale=files_bytes / weights.total_bytes)


def loaded_bytes(stored_bytes: int) -> int:
    """At most what stored weights take once loaded: rotary tables, padding of the vocabulary."""
    return stored_bytes + int(stored_bytes * _LOADER_SHARE) + _LOADER_BYTES
