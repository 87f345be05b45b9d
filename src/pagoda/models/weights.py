"""The weights of a decoder, merged as they are used, and how they are put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar

import torch

from pagoda.errors import InvalidOptionError, ModelError
from pagoda.models.decoder import DecoderSpec
from pagoda.models.expert_parts import ExpertsParts
from pagoda.models.expert_weights import ExpertsWeights
from pagoda.models.names import WeightNames
from pagoda.models.part import Part, Parts
from pagoda.models.stored_rows import Matrix, StoredMatrix, StoredRows
from pagoda.models.weight_memory import GPUMemory, HostMemory, WeightMemory
from pagoda.models.weight_parts import DecoderParts, LayerParts

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

OnProgress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all."""


M = TypeVar("M")
"""What matrices are: contiguous tensors, or `Matrix` where some stay as stored."""


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[M]):
    """One layer; matrices are row-major [out, in].

    h is the hidden size, D the head size, Hq and Hkv the heads, I the intermediate size. Latent
    attention has queries of nope + R numbers, a latent of r, values of v, and queries made of Q
    numbers, or of h; what it alone has stands at the end.
    """

    attention_norm: torch.Tensor | None
    """[h], or [2 h], weights and biases, as all norms of rows; which there are is the layer's
    `NormPlacement`"""
    qkv: M
    """[(Hq + 2 Hkv) * D, h]: all query heads, then the key heads, then the value heads.

    Of latent attention the queries alone: [Hq * (nope + R), Q or h].
    """
    qkv_bias: torch.Tensor | None
    """[(Hq + 2 Hkv) * D]"""
    q_norm: torch.Tensor | None
    """[D], or [Hq * D] where all heads are normed as one row; or [Q]"""
    k_norm: torch.Tensor | None
    """[D] or [Hkv * D]; or [r], of the latent"""
    o: M
    """[h, Hq * D], or [h, Hq * v]"""
    o_bias: torch.Tensor | None
    """[h]"""
    attention_output_norm: torch.Tensor | None
    """[h]"""
    mlp_norm: torch.Tensor | None
    """[h]"""
    gate_up: M | None
    """[2 I, h]: the rows of gate, then those of up; None where there are experts, or no gate"""
    gate_up_bias: torch.Tensor | None
    """[2 I]"""
    up: M | None
    """[I, h], where there is no gate"""
    up_bias: torch.Tensor | None
    """[I]; likewise"""
    down: M | None
    """[h, I]; None where there are experts"""
    down_bias: torch.Tensor | None
    """[h]"""
    mlp_output_norm: torch.Tensor | None
    """[h]"""
    sink_logits: torch.Tensor | None
    """[Hq]"""
    q_down: M | None = None
    """[Q, h]"""
    q_down_bias: torch.Tensor | None = None
    """[Q]"""
    kv_down: M | None = None
    """[r + R, h]: of the latent, then of the key that all heads share"""
    kv_down_bias: torch.Tensor | None = None
    """[r + R]"""
    key_up: torch.Tensor | None = None
    """[Hq, nope, r]"""
    value_up: torch.Tensor | None = None
    """[Hq, v, r]"""
    experts: ExpertsWeights[M] | None = None

    def tensors(self) -> Iterator[Any]:
        """All that there are."""
        weights = [getattr(self, field.name) for field in fields(self) if field.name != "experts"]
        yield from (weight for weight in weights if weight is not None)
        yield from () if self.experts is None else self.experts.tensors()


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[M]):
    """All weights of a decoder, of one dtype but for matrices that stay as stored."""

    embedding: M
    """[vocab, h]"""
    layers: tuple[LayerWeights[M], ...]
    final_norm: torch.Tensor
    """[h] or [2 h]"""
    lm_head: M
    """[vocab, h]; the very matrix of `embedding` where the two are tied."""
    logit_bias: torch.Tensor | None = None
    """[vocab]"""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every weight that does not stay as stored."""
        return self.final_norm.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights; a tied one counts once."""
        tensors = {id(tensor): tensor for tensor in self._tensors()}
        return sum(tensor.nbytes for tensor in tensors.values())

    def _tensors(self) -> list[Any]:
        found: list[Any] = [self.embedding, self.final_norm, self.lm_head]
        found += () if self.logit_bias is None else (self.logit_bias,)
        return [*found, *(each for layer in self.layers for each in layer.tensors())]


Keeps = Callable[[Sequence[StoredRows]], Sequence[StoredRows]]
"""What is kept of a matrix of these parts: themselves, or quantised ones; empty: it is read."""


def keeps_none(parts: Sequence[StoredRows]) -> Sequence[StoredRows]:
    """Everything is de-quantised."""
    return ()


class TensorSource(Protocol):
    """A checkpoint, whatever its format."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor in it, row-major."""
        ...

    @property
    def spare(self) -> frozenset[str]:
        """Tensors that change nothing, which a model may not have."""
        ...

    def read(self, part: Part, target: torch.Tensor) -> None:
        """Copy a part into `target`, which has its shape, converting to its dtype."""
        ...

    def stored(self, part: Part) -> StoredRows | None:
        """A matrix as the file stores it, its rows in the order of `read`; None for a vector."""
        ...


def load_decoder(
    spec: DecoderSpec,
    source: TensorSource,
    names: WeightNames,
    dtype: str,
    on_progress: OnProgress | None = None,
    device: torch.device | None = None,
    keeps: Keeps = keeps_none,
) -> DecoderWeights[Any]:
    """Read all weights as `dtype`, each straight into its merged tensor.

    With a `device` each is moved there once it is whole, and main memory never holds them all.
    Matrices that the caller `keeps` are not read: they are `StoredMatrix`, and count with the bytes
    in all of `on_progress`. So is gate and up together where one of them is kept.

    Before anything is allocated, every tensor the spec needs is looked up and its shape compared;
    one that is missing, misshaped or unknown to the spec is a `ModelError` that names it, as is one
    whose numbers are not all finite, once it is read.
    """
    if dtype not in DTYPES:
        raise InvalidOptionError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    parts = DecoderParts.of(spec, names)
    needed = parts.all
    _check(source, parts, names)
    stored = _stored(source, parts.matrices, keeps)
    read = [part for part in needed if part not in stored]
    size_bytes = sum(
        math.prod(part.shape) * DTYPES[part.held_as or dtype].itemsize for part in read
    )
    memory = HostMemory(size_bytes, len(read)) if device is None else GPUMemory(device)
    total_bytes = size_bytes + sum(rows.nbytes for rows in stored.values())
    assembler = _Assembler(source, DTYPES[dtype], memory, stored, total_bytes, on_progress)
    tokens = assembler.matrix(parts.embedding)
    return DecoderWeights(
        embedding=tokens,
        layers=tuple(assembler.layer(layer) for layer in parts.layers),
        final_norm=assembler.merge(parts.final_norm),
        lm_head=assembler.matrix(parts.lm_head) if parts.lm_head else tokens,
        logit_bias=assembler.merge_if_any(parts.logit_bias),
    )


def _stored(
    source: TensorSource, matrices: Sequence[Parts], keeps: Keeps
) -> dict[Part, StoredRows]:
    """The parts of every matrix that is kept."""
    found: dict[Part, StoredRows] = {}
    for parts in matrices:
        rows = [source.stored(part) for part in parts]
        whole = [each for each in rows if each is not None]
        if len(whole) == len(parts) and (kept := keeps(whole)):
            found.update(zip(parts, kept, strict=True))
    return found


def _check(source: TensorSource, parts: DecoderParts, names: WeightNames) -> None:
    """Every part is there in its shape, and nothing else that the model would need."""
    shapes, needed = source.shapes, parts.all
    for part in needed:
        if part.is_one:
            continue
        if part.name not in shapes:
            limit = f"the files lack this tensor, {part.stored_shape}"
            if part.name.removesuffix("weight") + "qweight" in shapes:
                limit += "; there is a qweight, but config.json has no quantization_config for it"
            raise ModelError(part.name, None, limit)
        if shapes[part.name] != part.stored_shape:
            raise ModelError(part.name, shapes[part.name], f"its shape must be {part.stored_shape}")
    known = {part.name for part in needed if not part.is_one} | {names.lm_head} | source.spare
    for name in sorted(shapes.keys() - known):
        if not (name.endswith(names.ignored) or name.startswith(parts.left_out)):
            raise ModelError(
                name, shapes[name], "the model that the config describes has no such tensor"
            )


def _require_finite(name: str, values: torch.Tensor) -> None:
    """Raises `ModelError` for numbers that are NaN or infinite: every answer would be.

    A sum tells nearly always, many times faster than a look at each number.
    """
    if not math.isfinite(values.sum().item()) and not bool(torch.isfinite(values).all()):
        dtype = str(values.dtype).removeprefix("torch.")
        raise ModelError(name, None, f"its numbers must be finite as {dtype}, and some are not")


class _Assembler:
    """Merges parts and tells how far it has come."""

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        memory: WeightMemory,
        stored: Mapping[Part, StoredRows],
        total_bytes: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._room = memory
        self._stored = stored
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._on_progress = on_progress

    def merge(self, parts: Parts, room: WeightMemory | None = None) -> torch.Tensor:
        """Allocate the merged tensor, in `room` if one is given, and read every part into its
        rows."""
        room = room or self._room
        num_rows = sum(part.shape[0] for part in parts)
        held_as = parts[0].held_as
        dtype = self._dtype if held_as is None else DTYPES[held_as]
        merged = room.tensor((num_rows, *parts[0].shape[1:]), dtype)
        end = 0
        for part in parts:
            start, end = end, end + part.shape[0]
            target = merged[start:end]
            self._read(part, target)
            _require_finite(part.name, target)
            self._done_bytes += target.nbytes
            if self._on_progress is not None:
                self._on_progress(self._done_bytes, self._total_bytes)
        return room.settle(merged)

    def _read(self, part: Part, target: torch.Tensor) -> None:
        if part.is_one:
            target.fill_(1.0)
            return
        if not part.added:
            self._source.read(part, target)
            return
        values = torch.empty(part.shape, dtype=torch.float32)
        self._source.read(part, values)
        target.copy_(values.sub_(part.added))

    def matrix(self, parts: Parts, room: WeightMemory | None = None) -> Matrix:
        """The parts merged, or, where one is stored, each by itself."""
        if not any(part in self._stored for part in parts):
            return self.merge(parts, room)
        return StoredMatrix(tuple(self._stored.get(part) or self.merge((part,)) for part in parts))

    def merge_if_any(self, parts: Parts) -> torch.Tensor | None:
        """None where the layer has no such weight."""
        return self.merge(parts) if parts else None

    def matrix_if_any(self, parts: Parts) -> Matrix | None:
        """None where the layer has no such matrix."""
        return self.matrix(parts) if parts else None

    def layer(self, layer: LayerParts) -> LayerWeights[Matrix]:
        """All weights of one layer."""
        parts = layer.own
        return LayerWeights(
            attention_norm=self.merge_if_any(parts["attention_norm"]),
            qkv=self.matrix(parts["qkv"]),
            qkv_bias=self.merge_if_any(parts["qkv_bias"]),
            q_norm=self.merge_if_any(parts["q_norm"]),
            k_norm=self.merge_if_any(parts["k_norm"]),
            o=self.matrix(parts["o"]),
            o_bias=self.merge_if_any(parts["o_bias"]),
            attention_output_norm=self.merge_if_any(parts["attention_output_norm"]),
            mlp_norm=self.merge_if_any(parts["mlp_norm"]),
            gate_up=self.matrix_if_any(parts["gate_up"]),
            gate_up_bias=self.merge_if_any(parts["gate_up_bias"]),
            up=self.matrix_if_any(parts["up"]),
            up_bias=self.merge_if_any(parts["up_bias"]),
            down=self.matrix_if_any(parts["down"]),
            down_bias=self.merge_if_any(parts["down_bias"]),
            mlp_output_norm=self.merge_if_any(parts["mlp_output_norm"]),
            sink_logits=self.merge_if_any(parts["sink_logits"]),
            q_down=self.matrix_if_any(parts["q_down"]),
            q_down_bias=self.merge_if_any(parts["q_down_bias"]),
            kv_down=self.matrix_if_any(parts["kv_down"]),
            kv_down_bias=self.merge_if_any(parts["kv_down_bias"]),
            key_up=self.merge_if_any(parts["key_up"]),
            value_up=self.merge_if_any(parts["value_up"]),
            experts=None if layer.experts is None else self.experts(layer.experts),
        )

    def experts(self, parts: ExpertsParts) -> ExpertsWeights[Matrix]:
        """All weights of a layer's experts."""

        def of_each(biases: Parts) -> torch.Tensor | None:
            return self.merge(biases).view(len(biases), -1) if biases else None

        def together(matrices: Sequence[Parts]) -> tuple[Matrix, ...]:
            room = self._room.together(len(matrices))
            return tuple(self.matrix(own, room) for own in matrices)

        return ExpertsWeights(
            router=self.matrix(parts.router),
            gate=together(parts.gate),
            up=together(parts.up),
            down=together(parts.down),
            router_bias=self.merge_if_any(parts.router_bias),
            correction=self.merge_if_any(parts.correction),
            gate_bias=of_each(parts.gate_bias),
            up_bias=of_each(parts.up_bias),
            down_bias=of_each(parts.down_bias),
            shared_gate=self.matrix_if_any(parts.shared_gate),
            shared_up=self.matrix_if_any(parts.shared_up),
            shared_down=self.matrix_if_any(parts.shared_down),
            shared_gate_bias=self.merge_if_any(parts.shared_gate_bias),
            shared_up_bias=self.merge_if_any(parts.shared_up_bias),
            shared_down_bias=self.merge_if_any(parts.shared_down_bias),
        )
