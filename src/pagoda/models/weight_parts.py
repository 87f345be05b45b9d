"""Which tensors of a checkpoint a decoder's weights are put together from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pagoda.models.decoder import (
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    ExpertsSpec,
    LatentAttentionSpec,
    Learned,
    MLPSpec,
    QKNorm,
)
from pagoda.models.expert_parts import ExpertsParts
from pagoda.models.names import WeightNames
from pagoda.models.part import HeadRows, Part, Parts, RotatedHeads


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What each weight of a layer is merged from, in order."""

    own: Mapping[str, Parts]
    """By field of `LayerWeights`; empty where there is none."""
    experts: ExpertsParts | None = None
    times: int = 1
    """How many of the decoder's layers it stands for."""

    @property
    def every_row_reads(self) -> tuple[Parts, ...]:
        """Those of each weight that every row meets, and that lies by itself in panels, as gate and
        up do."""
        found: list[Parts] = []
        for field, parts in self.own.items():
            if field == "gate_up":
                found += ((part,) for part in parts)
            elif parts:
                found.append(parts)
        return (*found, *(self.experts.every_row_reads if self.experts else ()))

    @property
    def of_chosen(self) -> tuple[Parts, ...]:
        """Those of weights that a row meets only where it is sent to their expert."""
        return self.experts.of_chosen if self.experts else ()

    @property
    def chosen_times(self) -> int:
        """How many weights of the layer each of those stands for."""
        return self.experts.times if self.experts else 1

    def __iter__(self) -> Iterator[Parts]:
        """Those of each weight that lies by itself in panels."""
        yield from self.every_row_reads
        yield from self.of_chosen


_NOT_OF_ATTENTION: Mapping[str, Parts] = dict.fromkeys(
    (
        "qkv_bias", "q_down", "q_down_bias", "kv_down", "kv_down_bias", "key_up", "value_up",
        "sink_logits",
    ),
    (),
)  # fmt: skip
"""What one kind of attention has and another has not."""


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """What each weight of a decoder is merged from."""

    embedding: Parts
    layers: tuple[LayerParts, ...]
    final_norm: Parts
    """Weights, then biases where there are some."""
    lm_head: Parts
    """Empty where it is the embedding."""
    logit_bias: Parts = ()
    left_out: tuple[str, ...] = ()
    """Beginnings of tensors of layers that predict further tokens."""

    @classmethod
    @lru_cache(maxsize=2)
    def of(cls, spec: DecoderSpec, names: WeightNames, *, one_expert: bool = False) -> DecoderParts:
        """The parts of a decoder in a checkpoint that calls them so.

        With `one_expert` the first of a layer's experts stands for all of them.
        """
        layers = (
            _LayerNames.of(spec, names, index, one_expert=one_expert).parts()
            for index in range(len(spec.layers))
        )
        return cls._around(spec, names, tuple(layers))

    @classmethod
    def of_kinds(cls, spec: DecoderSpec, names: WeightNames) -> DecoderParts:
        """The same where nothing tells layers apart that are alike, nor experts: the first of each
        kind stands for all of it."""
        layers = (
            _LayerNames.of(spec, names, kind.numbers[0], one_expert=True).parts(len(kind.numbers))
            for kind in spec.kinds
        )
        return cls._around(spec, names, tuple(layers))

    @classmethod
    def _around(
        cls, spec: DecoderSpec, names: WeightNames, layers: tuple[LayerParts, ...]
    ) -> DecoderParts:
        matrix = (spec.vocab_size, spec.hidden_size)
        return cls(
            embedding=(Part(names.embedding, matrix),),
            layers=layers,
            final_norm=_row_norm(names.final_norm, spec.hidden_size, names, spec.norm.learned),
            lm_head=() if spec.tie_word_embeddings else (Part(names.lm_head, matrix),),
            logit_bias=_logit_bias(spec, names),
            left_out=tuple(
                names.layer.format(len(spec.layers) + index)
                for index in range(spec.num_predicting_layers)
            ),
        )

    @property
    def all(self) -> Parts:
        """Every tensor that is needed, or rows of one."""
        of_layers = (parts for layer in self.layers for parts in layer)
        outside = (self.embedding, self.final_norm, self.lm_head, self.logit_bias)
        return tuple(part for parts in (*outside, *of_layers) for part in parts)

    @property
    def matrices(self) -> tuple[Parts, ...]:
        """Those of each matrix that lies by itself in panels, as gate and up do."""
        outside = (self.embedding, self.lm_head) if self.lm_head else (self.embedding,)
        of_layers = (parts for layer in self.layers for parts in layer)
        return (*outside, *(parts for parts in of_layers if len(parts[0].shape) == 2))

    @property
    def routers(self) -> tuple[Parts, ...]:
        """Those of what tells which experts a row is sent to."""
        return tuple(layer.experts.router for layer in self.layers if layer.experts)

    @property
    def chosen_share(self) -> float:
        """The share of a layer's experts that a row is sent to; 1 where there are none."""
        experts = [layer.experts for layer in self.layers if layer.experts is not None]
        return experts[0].num_used / experts[0].num_experts if experts else 1.0


FEED_FORWARD = ("gate_up", "gate_up_bias", "up", "up_bias", "down", "down_bias")
"""Fields of `LayerWeights` that are empty where there are experts."""


@dataclass(frozen=True, slots=True)
class _LayerNames:
    """A layer, and what its tensors are called."""

    layer: DecoderLayer
    names: WeightNames
    prefix: str
    hidden_size: int
    learned: Learned
    """Of norms of rows."""
    one_expert: bool

    @classmethod
    def of(
        cls, spec: DecoderSpec, names: WeightNames, number: int, *, one_expert: bool
    ) -> _LayerNames:
        """Those of one of a decoder's layers."""
        prefix, learned = names.layer.format(number), spec.norm.learned
        return cls(spec.layers[number], names, prefix, spec.hidden_size, learned, one_expert)

    def parts(self, times: int = 1) -> LayerParts:
        """What each weight of the layer is merged from; `times`: see `LayerParts`."""
        layer, names = self.layer, self.names
        norms = layer.norms
        if isinstance(layer.attention, LatentAttentionSpec):
            attention = self._latent(layer.attention)
        else:
            attention = self._grouped(layer.attention)
        own = {
            **_NOT_OF_ATTENTION,
            **attention,
            "attention_norm": self._row_norm(norms.attention, names.attention_norm),
            "attention_output_norm": self._row_norm(
                norms.attention_output, names.attention_output_norm
            ),
            "mlp_norm": self._row_norm(norms.mlp, names.mlp_norm),
            **self._feed_forward(),
            "mlp_output_norm": self._row_norm(norms.mlp_output, names.mlp_output_norm),
        }
        return LayerParts(own, self._experts(), times)

    def _feed_forward(self) -> dict[str, Parts]:
        mlp, names, hidden = self.layer.mlp, self.names, self.hidden_size
        if isinstance(mlp, ExpertsSpec):
            return dict.fromkeys(FEED_FORWARD, ())
        inner = mlp.intermediate_size
        if mlp.is_gated:
            own = {
                "gate_up": self._gate_up("weight", inner, hidden),
                "gate_up_bias": self._gate_up("bias", inner) if mlp.bias else (),
            }
        else:
            own = {
                "up": self._plain("weight", (inner, hidden), names.up),
                "up_bias": self._bias(mlp.bias, inner, names.up),
            }
        return {
            **dict.fromkeys(FEED_FORWARD, ()),
            **own,
            "down": self._plain("weight", (hidden, inner), names.down),
            "down_bias": self._bias(mlp.bias, hidden, names.down),
        }

    def _experts(self) -> ExpertsParts | None:
        mlp, names = self.layer.mlp, self.names
        if isinstance(mlp, MLPSpec):
            return None
        assert names.experts is not None
        listed = 1 if self.one_expert else mlp.num_experts
        return ExpertsParts.of(mlp, names.experts, self.prefix, self.hidden_size, listed)

    def _grouped(self, attention: AttentionSpec) -> dict[str, Parts]:
        names, hidden = self.names, self.hidden_size
        # weights of a head's norm would have to be put into the order of its rows
        assert not (names.rotates_neighbours and attention.qk_norm is QKNorm.HEAD)
        q_norm, k_norm = _norm_widths(attention)
        return {
            "qkv": self._qkv(attention, "weight", hidden),
            "qkv_bias": self._qkv(attention, "bias") if attention.qkv_bias else (),
            "q_norm": self._norm(q_norm > 0, names.q_norm, q_norm),
            "k_norm": self._norm(k_norm > 0, names.k_norm, k_norm),
            "o": self._plain("weight", (hidden, attention.num_heads * attention.head_dim), names.o),
            "o_bias": self._bias(attention.output_bias, hidden, names.o),
            "sink_logits": self._sink_logits(attention),
        }

    def _latent(self, attention: LatentAttentionSpec) -> dict[str, Parts]:
        names, hidden, rank = self.names, self.hidden_size, attention.q_rank
        bias = attention.down_bias
        heads = attention.num_heads
        return {
            "q_down": self._plain("weight", (rank, hidden), names.q_down) if rank else (),
            "q_down_bias": self._bias(bias, rank, names.q_down) if rank else (),
            "q_norm": self._norm(rank is not None, names.q_down_norm, rank or 0),
            "qkv": self._latent_queries(attention),
            "kv_down": self._kv_down(attention, "weight", hidden),
            "kv_down_bias": self._kv_down(attention, "bias") if bias else (),
            "k_norm": self._norm(True, names.kv_down_norm, attention.rank),
            **self._ups(attention),
            "o": self._plain("weight", (hidden, heads * attention.value_dim), names.o),
            "o_bias": self._bias(attention.output_bias, hidden, names.o),
        }

    def _latent_queries(self, attention: LatentAttentionSpec) -> Parts:
        names, dim = self.names, attention.query_dim
        shape = (attention.num_heads * dim, attention.q_rank or self.hidden_size)
        rotated = RotatedHeads(dim, attention.rope_dim, attention.nope_dim)
        name = names.q if attention.q_rank is None else names.q_up
        return (
            Part(
                f"{self.prefix}{name}.weight", shape, rotated if names.rotates_neighbours else None
            ),
        )

    def _kv_down(self, attention: LatentAttentionSpec, kind: str, *columns: int) -> Parts:
        """All rows as one head, of which the last ones rotate."""
        rotated = RotatedHeads(attention.cached_dim, attention.rope_dim, attention.rank)
        order = rotated if self.names.rotates_neighbours else None
        name = f"{self.prefix}{self.names.kv_down}.{kind}"
        return (Part(name, (attention.cached_dim, *columns), order),)

    def _ups(self, attention: LatentAttentionSpec) -> dict[str, Parts]:
        names, heads, rank = self.names, attention.num_heads, attention.rank
        nope, value = attention.nope_dim, attention.value_dim
        if not names.key_up:
            return {
                "key_up": self._kv_up(attention, 0, nope),
                "value_up": self._kv_up(attention, nope, value),
            }
        key_up, turned = f"{self.prefix}{names.key_up}.weight", (heads, rank, nope)
        return {
            "key_up": (Part(key_up, (heads, nope, rank), whole=turned, is_turned=True),),
            "value_up": self._plain("weight", (heads, value, rank), names.value_up),
        }

    def _kv_up(self, attention: LatentAttentionSpec, first: int, count: int) -> Parts:
        """Of each head's rows `count`, from number `first` on."""
        heads, rank = attention.num_heads, attention.rank
        stored = attention.nope_dim + attention.value_dim
        name = f"{self.prefix}{self.names.kv_up}.weight"
        taken = HeadRows(stored, first, count)
        return (Part(name, (heads, count, rank), whole=(heads * stored, rank), taken=taken),)

    def _plain(self, kind: str, shape: tuple[int, ...], name: str) -> Parts:
        return (Part(f"{self.prefix}{name}.{kind}", shape),)

    def _bias(self, wanted: bool, width: int, name: str) -> Parts:
        return self._plain("bias", (width,), name) if wanted else ()

    def _sink_logits(self, attention: AttentionSpec) -> Parts:
        if not attention.sink_logits:
            return ()
        return (Part(f"{self.prefix}{self.names.sink_logits}", (attention.num_heads,)),)

    def _row_norm(self, wanted: bool, name: str) -> Parts:
        if not wanted:
            return ()
        whole_name = f"{self.prefix}{name}.weight"
        return _row_norm(whole_name, self.hidden_size, self.names, self.learned)

    def _norm(self, wanted: bool, name: str, width: int) -> Parts:
        if not wanted:
            return ()
        return (Part(f"{self.prefix}{name}.weight", (width,), added=self.names.norm_offset),)

    def _qkv(self, attention: AttentionSpec, kind: str, *columns: int) -> Parts:
        names, head_dim = self.names, attention.head_dim
        if names.qkv_takes_turns:
            return self._qkv_in_turns(attention, kind, *columns)
        rotated = None
        if names.rotates_neighbours:
            pairs = head_dim // 2 if attention.rope is None else len(attention.rope.inv_freq)
            rotated = RotatedHeads(head_dim, 2 * pairs)
        query, kept = attention.num_heads * head_dim, attention.num_kv_heads * head_dim
        heights, orders = (query, kept, kept), (rotated, rotated, None)
        own = (names.q, names.k, names.v)
        return self._rows(kind, columns, names.qkv, own, heights, orders)

    def _qkv_in_turns(self, attention: AttentionSpec, kind: str, *columns: int) -> Parts:
        """Of each KV head the rows of its queries, of its key and of its value."""
        heads, size = attention.num_kv_heads, attention.head_dim
        queries = attention.num_heads // heads * size
        stored, name = queries + 2 * size, f"{self.prefix}{self.names.qkv}.{kind}"
        return tuple(
            Part(
                name,
                (heads * count, *columns),
                whole=(heads * stored, *columns),
                taken=HeadRows(stored, first, count),
            )
            for first, count in ((0, queries), (queries, size), (queries + size, size))
        )

    def _gate_up(self, kind: str, inner: int, *columns: int) -> Parts:
        names = self.names
        heights, own = (inner, inner), (names.gate, names.up)
        return self._rows(kind, columns, names.gate_up, own, heights, (None, None))

    def _rows(
        self,
        kind: str,
        columns: tuple[int, ...],
        merged: str,
        names: tuple[str, ...],
        heights: tuple[int, ...],
        orders: tuple[RotatedHeads | None, ...],
    ) -> Parts:
        """Tensors one below the other: each its own, or rows of one that is `merged`."""
        whole = (sum(heights), *columns)
        parts, first = [], 0
        for name, height, order in zip(names, heights, orders, strict=True):
            shape = (height, *columns)
            if merged:
                part = Part(f"{self.prefix}{merged}.{kind}", shape, order, first, whole)
            else:
                part = Part(f"{self.prefix}{name}.{kind}", shape, order)
            parts.append(part)
            first += height
        return tuple(parts)


def _row_norm(name: str, width: int, names: WeightNames, learned: Learned) -> Parts:
    """Weights, or ones in their place, then biases; `name` is that of the weights."""
    if learned is Learned.NOTHING:
        return (Part(name, (width,), is_one=True),)
    weights = Part(name, (width,), added=names.norm_offset)
    if learned is Learned.WEIGHT:
        return (weights,)
    return weights, Part(f"{name.removesuffix('weight')}bias", (width,))


def _norm_widths(attention: AttentionSpec) -> tuple[int, int]:
    """Weights of the norms of queries and of keys; 0: there is none."""
    if attention.qk_norm is None:
        return 0, 0
    if attention.qk_norm is QKNorm.HEAD:
        return attention.head_dim, attention.head_dim
    return attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim


def _logit_bias(spec: DecoderSpec, names: WeightNames) -> Parts:
    name = names.lm_head.removesuffix("weight")
    return (Part(f"{name}bias", (spec.vocab_size,)),) if spec.logit_bias else ()
