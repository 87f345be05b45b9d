"""Which tensors of a checkpoint a decoder's weights are put together from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.names import WeightNames


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the checkpoint, which becomes rows of a merged one."""

    name: str
    shape: tuple[int, ...]
    rotary_head_dim: int | None = None
    """Set for q and k: their rows are in the order of the rotation."""


Parts = tuple[Part, ...]
"""Those of one weight, one below the other."""
LayerParts = dict[str, Parts]
"""Field of `LayerWeights` → the parts it is merged from, in order; empty where there is none."""

_MATRICES = ("qkv", "o", "gate_up", "down")
"""Fields of `LayerWeights`."""


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """What each weight of a decoder is merged from."""

    embedding: Parts
    layers: tuple[LayerParts, ...]
    final_norm: Parts
    lm_head: Parts
    """Empty where it is the embedding."""

    @classmethod
    def of(cls, spec: DecoderSpec, names: WeightNames) -> DecoderParts:
        """The parts of a decoder in a checkpoint that calls them so."""
        matrix = (spec.vocab_size, spec.hidden_size)
        return cls(
            embedding=(Part(names.embedding, matrix),),
            layers=tuple(
                _layer_parts(layer, names, names.layer.format(index), spec.hidden_size)
                for index, layer in enumerate(spec.layers)
            ),
            final_norm=(Part(names.final_norm, (spec.hidden_size,)),),
            lm_head=() if spec.tie_word_embeddings else (Part(names.lm_head, matrix),),
        )

    @property
    def all(self) -> Parts:
        """Every tensor that is needed."""
        of_layers = (parts for layer in self.layers for parts in layer.values())
        outside = (self.embedding, self.final_norm, self.lm_head)
        return tuple(part for parts in (*outside, *of_layers) for part in parts)

    @property
    def matrices(self) -> tuple[Parts, ...]:
        """Those of each matrix that lies by itself in panels, as gate and up do."""
        outside = (self.embedding, self.lm_head) if self.lm_head else (self.embedding,)
        return (*outside, *(parts for parts in self.of_layers() if len(parts[0].shape) == 2))

    def of_layers(self) -> Iterator[Parts]:
        """Those of each weight of a layer that lies by itself in panels, as gate and up do."""
        for layer in self.layers:
            for field, parts in layer.items():
                if field == "gate_up":
                    yield from ((part,) for part in parts)
                elif parts:
                    yield parts


def _layer_parts(
    layer: DecoderLayer, names: WeightNames, prefix: str, hidden_size: int
) -> LayerParts:
    """What each weight of a layer is merged from."""
    attention, mlp = layer.attention, layer.mlp
    head_dim = attention.head_dim
    q_rows, kv_rows = attention.num_heads * head_dim, attention.num_kv_heads * head_dim

    def qkv(kind: str, *columns: int) -> Parts:
        return (
            Part(f"{prefix}{names.q}.{kind}", (q_rows, *columns), head_dim),
            Part(f"{prefix}{names.k}.{kind}", (kv_rows, *columns), head_dim),
            Part(f"{prefix}{names.v}.{kind}", (kv_rows, *columns)),
        )

    def plain(kind: str, shape: tuple[int, ...], *modules: str) -> Parts:
        return tuple(Part(f"{prefix}{module}.{kind}", shape) for module in modules)

    def only(wanted: bool, parts: Parts) -> Parts:
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
