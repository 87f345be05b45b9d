"""The weights of a decoder, merged as they are used, and how they are put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from pagoda.errors import InvalidOptionError, ModelError
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.names import WeightNames
from pagoda.models.weight_memory import GPUMemory, HostMemory, WeightMemory

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

OnProgress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are row-major [out, in] and contiguous.

    h is the hidden size, D the head size, Hq and Hkv the heads, I the intermediate size.
    """

    input_norm: torch.Tensor
    """[h]"""
    qkv: torch.Tensor
    """[(Hq + 2 Hkv) * D, h]: all query heads, then the key heads, then the value heads."""
    qkv_bias: torch.Tensor | None
    """[(Hq + 2 Hkv) * D]"""
    q_norm: torch.Tensor | None
    """[D]"""
    k_norm: torch.Tensor | None
    """[D]"""
    o: torch.Tensor
    """[h, Hq * D]"""
    o_bias: torch.Tensor | None
    """[h]"""
    post_norm: torch.Tensor
    """[h]"""
    gate_up: torch.Tensor
    """[2 I, h]: the rows of gate, then those of up."""
    gate_up_bias: torch.Tensor | None
    """[2 I]"""
    down: torch.Tensor
    """[h, I]"""
    down_bias: torch.Tensor | None
    """[h]"""


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder, of one dtype."""

    embedding: torch.Tensor
    """[vocab, h]"""
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    """[h]"""
    lm_head: torch.Tensor
    """[vocab, h]; the very tensor of `embedding` where the two are tied."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every weight."""
        return self.embedding.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights; a tied one counts once."""
        tensors = {id(tensor): tensor for tensor in self._tensors()}
        return sum(tensor.nbytes for tensor in tensors.values())

    def _tensors(self) -> list[torch.Tensor]:
        found = [self.embedding, self.final_norm, self.lm_head]
        for layer in self.layers:
            weights = (getattr(layer, field.name) for field in fields(layer))
            found += [weight for weight in weights if weight is not None]
        return found


class TensorSource(Protocol):
    """A checkpoint, whatever its format."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor in it, row-major."""
        ...

    def read(self, name: str, target: torch.Tensor) -> None:
        """Copy a tensor into `target`, which has its shape, converting to its dtype."""
        ...

    def read_rotary(self, name: str, target: torch.Tensor, head_dim: int) -> None:
        """Copy rows of q or k, put into the order of the half-split rotation."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the checkpoint, which becomes rows of a merged one."""

    name: str
    shape: tuple[int, ...]
    rotary_head_dim: int | None = None
    """Set for q and k: their rows are in the order of the rotation."""


LayerParts = dict[str, tuple[Part, ...]]
"""Field of `LayerWeights` → the parts it is merged from, in order; empty where there is none."""


def load_decoder(
    spec: DecoderSpec,
    source: TensorSource,
    names: WeightNames,
    dtype: str,
    on_progress: OnProgress | None = None,
    device: torch.device | None = None,
) -> DecoderWeights:
    """Read all weights as `dtype`, each straight into its merged tensor.

    With a `device` each is moved there once it is whole, and main memory never holds them all.

    Before anything is allocated, every tensor the spec needs is looked up and its shape compared;
    one that is missing, misshaped or unknown to the spec is a `ModelError` that names it.
    """
    if dtype not in DTYPES:
        raise InvalidOptionError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    layers = [
        _layer_parts(layer, names, names.layer.format(index), spec.hidden_size)
        for index, layer in enumerate(spec.layers)
    ]
    matrix = (spec.vocab_size, spec.hidden_size)
    embedding = (Part(names.embedding, matrix),)
    final_norm = (Part(names.final_norm, (spec.hidden_size,)),)
    lm_head = () if spec.tie_word_embeddings else (Part(names.lm_head, matrix),)
    needed = [*embedding, *final_norm, *lm_head]
    needed += [part for layer in layers for parts in layer.values() for part in parts]
    _check(source, needed, names)
    num_values = sum(math.prod(part.shape) for part in needed)
    total_bytes = num_values * DTYPES[dtype].itemsize
    memory = HostMemory(total_bytes, len(needed)) if device is None else GPUMemory(device)
    assembler = _Assembler(source, DTYPES[dtype], memory, total_bytes, on_progress)
    tokens = assembler.merge(embedding)
    return DecoderWeights(
        embedding=tokens,
        layers=tuple(assembler.layer(layer) for layer in layers),
        final_norm=assembler.merge(final_norm),
        lm_head=assembler.merge(lm_head) if lm_head else tokens,
    )


def _layer_parts(
    layer: DecoderLayer, names: WeightNames, prefix: str, hidden_size: int
) -> LayerParts:
    """What each weight of a layer is merged from."""
    attention, mlp = layer.attention, layer.mlp
    head_dim = attention.head_dim
    q_rows, kv_rows = attention.num_heads * head_dim, attention.num_kv_heads * head_dim

    def qkv(kind: str, *columns: int) -> tuple[Part, ...]:
        return (
            Part(f"{prefix}{names.q}.{kind}", (q_rows, *columns), head_dim),
            Part(f"{prefix}{names.k}.{kind}", (kv_rows, *columns), head_dim),
            Part(f"{prefix}{names.v}.{kind}", (kv_rows, *columns)),
        )

    def plain(kind: str, shape: tuple[int, ...], *modules: str) -> tuple[Part, ...]:
        return tuple(Part(f"{prefix}{module}.{kind}", shape) for module in modules)

    def only(wanted: bool, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return parts if wanted else ()

    inner = mlp.intermediate_size
    return {
        "input_norm": plain("weight", (hidden_size,), names.input_norm),
        "qkv": qkv("weight", hidden_size),
        "qkv_bias": only(attention.qkv_bias, qkv("bias")),
        "q_norm": only(attention.qk_norm, plain("weight", (head_dim,), names.q_norm)),
        "k_norm": only(attention.qk_norm, plain("weight", (head_dim,), names.k_norm)),
        "o": plain("weight", (hidden_size, q_rows), names.o),
        "o_bias": only(attention.output_bias, plain("bias", (hidden_size,), names.o)),
        "post_norm": plain("weight", (hidden_size,), names.post_norm),
        "gate_up": plain("weight", (inner, hidden_size), names.gate, names.up),
        "gate_up_bias": only(mlp.bias, plain("bias", (inner,), names.gate, names.up)),
        "down": plain("weight", (hidden_size, inner), names.down),
        "down_bias": only(mlp.bias, plain("bias", (hidden_size,), names.down)),
    }


def _check(source: TensorSource, parts: Sequence[Part], names: WeightNames) -> None:
    """Every part is there in its shape, and nothing else that the model would need."""
    shapes = source.shapes
    for part in parts:
        if part.name not in shapes:
            raise ModelError(part.name, None, f"the files lack this tensor, {part.shape}")
        if shapes[part.name] != part.shape:
            raise ModelError(part.name, shapes[part.name], f"its shape must be {part.shape}")
    for name in sorted(shapes.keys() - {part.name for part in parts} - {names.lm_head}):
        if not name.endswith(names.ignored):
            raise ModelError(
                name, shapes[name], "the model that the config describes has no such tensor"
            )


class _Assembler:
    """Merges parts and tells how far it has come."""

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        memory: WeightMemory,
        total_bytes: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._room = memory
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._on_progress = on_progress

    def merge(self, parts: tuple[Part, ...]) -> torch.Tensor:
        """Allocate the merged tensor and read every part into its rows."""
        num_rows = sum(part.shape[0] for part in parts)
        merged = self._room.tensor((num_rows, *parts[0].shape[1:]), self._dtype)
        end = 0
        for part in parts:
            start, end = end, end + part.shape[0]
            target = merged[start:end]
            if part.rotary_head_dim is None:
                self._source.read(part.name, target)
            else:
                self._source.read_rotary(part.name, target, part.rotary_head_dim)
            self._done_bytes += target.nbytes
            if self._on_progress is not None:
                self._on_progress(self._done_bytes, self._total_bytes)
        return self._room.settle(merged)

    def merge_if_any(self, parts: tuple[Part, ...]) -> torch.Tensor | None:
        """None where the layer has no such weight."""
        return self.merge(parts) if parts else None

    def layer(self, parts: LayerParts) -> LayerWeights:
        """All weights of one layer."""
        return LayerWeights(
            input_norm=self.merge(parts["input_norm"]),
            qkv=self.merge(parts["qkv"]),
            qkv_bias=self.merge_if_any(parts["qkv_bias"]),
            q_norm=self.merge_if_any(parts["q_norm"]),
            k_norm=self.merge_if_any(parts["k_norm"]),
            o=self.merge(parts["o"]),
            o_bias=self.merge_if_any(parts["o_bias"]),
            post_norm=self.merge(parts["post_norm"]),
            gate_up=self.merge(parts["gate_up"]),
            gate_up_bias=self.merge_if_any(parts["gate_up_bias"]),
            down=self.merge(parts["down"]),
            down_bias=self.merge_if_any(parts["down_bias"]),
        )
