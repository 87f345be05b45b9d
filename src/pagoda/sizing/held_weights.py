"""What a decoder's weights take where an engine holds them, and in which types.

Worked out from the header of a file, by the same judge that the engine packs them by
(`kept_weights`), so that engine and planner say the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from pagoda.cache.formats import PLAIN_BITS
from pagoda.errors import InvalidOptionError
from pagoda.kernels.block_types import BYTE_TYPES
from pagoda.sizing.capacity import format_gib
from pagoda.sizing.experts_read import share_read
from pagoda.sizing.kept_weights import KEPT_TYPES, are_kept, matrix_bytes

ACTIVATION_DTYPES = ("auto", "int8")
"""What products with weights that stay as stored take; auto: the dtype of all else."""
PLAIN_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Types of a file that are not quantised."""
_NO_TYPES: frozenset[str] = frozenset()
_NOTHING_KEPT = (
    "is what weights that stay quantised, in whole numbers, are multiplied with, on a CPU and in "
    "bfloat16, and here none do; they are held as "
)


class Tensor(Protocol):
    """A tensor of a checkpoint."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def held_as(self) -> str | None:
        """Its dtype in memory where that is its own; None: as that of all others."""
        ...


class Layer(Protocol):
    """A layer, or one that stands for several that are alike."""

    @property
    def times(self) -> int:
        """How many it stands for."""
        ...

    @property
    def every_row_reads(self) -> Sequence[Sequence[Tensor]]:
        """Those of each weight that every row meets."""
        ...

    @property
    def of_chosen(self) -> Sequence[Sequence[Tensor]]:
        """Those of each weight of an expert that not every row is sent to."""
        ...

    @property
    def chosen_times(self) -> int:
        """How many weights of the layer each of those stands for."""
        ...


class Decoder(Protocol):
    """Of which tensors, one below the other, each weight of a decoder is made."""

    @property
    def embedding(self) -> Sequence[Tensor]: ...

    @property
    def final_norm(self) -> Sequence[Tensor]: ...

    @property
    def lm_head(self) -> Sequence[Tensor]:
        """Empty where it is the embedding."""
        ...

    @property
    def logit_bias(self) -> Sequence[Tensor]:
        """Empty where there is none."""
        ...

    @property
    def layers(self) -> Sequence[Layer]: ...

    @property
    def routers(self) -> Sequence[Sequence[Tensor]]:
        """What tells which experts a row is sent to."""
        ...

    @property
    def chosen_share(self) -> float:
        """The share of a layer's experts that a row is sent to."""
        ...


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """A decoder's weights in memory."""

    total_bytes: int
    read_bytes: int
    """What a large step reads: all but an embedding that is not the output head too, of which it
    takes a row for each token."""
    dtype: str
    """Of all that does not keep its type."""
    kept: tuple[str, ...] = ()
    """Types that stay as stored."""
    converted: tuple[str, ...] = ()
    """Types of the file that became `dtype`."""
    quantised: tuple[str, ...] = ()
    """GGUF's types that plain matrices became."""
    scheme: str | None = None
    """What a checkpoint of safetensors is quantised by: GPTQ, AWQ, …"""
    multiplied: tuple[str, ...] = ()
    """Of `kept` and `quantised`, those that products read."""
    chosen_bytes: int = 0
    """Of `read_bytes`, those of experts that not every row is sent to."""
    chosen_share: float = 1.0
    """The share of them that a row is sent to."""

    def step_bytes(self, num_tokens: int) -> int:
        """What a step reads, as is expected of an even router; see `share_read`."""
        chosen = round(self.chosen_bytes * share_read(self.chosen_share, num_tokens))
        return self.read_bytes - self.chosen_bytes + chosen

    @property
    def stored_as(self) -> str | None:
        """The types that matrices have, in words; None: there are plain numbers alone."""
        types = _listed(sorted({*self.kept, *self.quantised}))
        return f"{self._by}{types}" if types else None

    @property
    def is_dequantised(self) -> bool:
        """The file has quantised types, and no matrix has any."""
        return self.stored_as is None and not PLAIN_TYPES.issuperset(self.converted)

    def __str__(self) -> str:
        """As in `0.09 GiB, quantised to Q6_K, Q4_1 and Q8_0 as stored, F32 as bfloat16`."""
        types = [f"quantised to {_listed(self.quantised)}"] if self.quantised else []
        types += [f"{_listed(self.kept)} as stored"] if self.kept else []
        types += [f"{_listed(self.converted)} as {self.dtype}"] if self.converted else []
        size = f"{format_gib(self.total_bytes)} GiB"
        return f"{size}, {self._by}{', '.join(types or [self.dtype])}"

    @property
    def _by(self) -> str:
        return f"{self.scheme}: " if self.scheme else ""

    def require_multiplied_in(self, activation_dtype: str) -> None:
        """Refuse activations of bytes where no weight is multiplied with them.

        Raises `InvalidOptionError`.
        """
        if activation_dtype != "auto" and BYTE_TYPES.isdisjoint(self.multiplied):
            raise InvalidOptionError("activation_dtype", activation_dtype, f"{_NOTHING_KEPT}{self}")

    def as_json(self) -> dict[str, Any]:
        """Plain values, the line among them."""
        return {"summary": str(self), **asdict(self)}


def hold(
    decoder: Decoder,
    dtype: str,
    types: Mapping[str, str] = MappingProxyType({}),
    *,
    keeps_stored: bool = False,
    quantised: Mapping[str, str] = MappingProxyType({}),
    scheme: str | None = None,
) -> HeldWeights:
    """A decoder's weights as an engine holds them.

    `types` are names by tensor, those of GGUF or of Pagoda's own; a tensor that is not there is of
    `dtype`. Where the engine `keeps_stored`, matrices stay as they are if they may (`are_kept`),
    and tensors that are to be `quantised` become the types there. `scheme`: see `HeldWeights`.
    """
    holder = _Holder(types, dtype, keeps_stored, quantised)
    head = decoder.lm_head or decoder.embedding
    read_bytes = holder.num_bytes((head, decoder.final_norm, decoder.logit_bias))
    chosen_bytes = 0
    for layer in decoder.layers:
        read_bytes += layer.times * holder.num_bytes(layer.every_row_reads)
        chosen = layer.chosen_times * holder.num_bytes(layer.of_chosen)
        chosen_bytes += layer.times * chosen
    read_bytes += chosen_bytes
    multiplied = _sorted(each.kept | each.quantised for each in holder.kinds)
    looked_up = holder.num_bytes((decoder.embedding,)) if decoder.lm_head else 0
    return HeldWeights(
        total_bytes=read_bytes + looked_up,
        read_bytes=read_bytes,
        dtype=dtype,
        kept=_sorted(each.kept for each in holder.kinds),
        converted=_sorted(each.converted - {dtype} for each in holder.kinds),
        quantised=_sorted(each.quantised for each in holder.kinds),
        scheme=scheme,
        multiplied=multiplied,
        chosen_bytes=chosen_bytes,
        chosen_share=decoder.chosen_share,
    )


class _Rows(NamedTuple):
    """See `MatrixPart`."""

    type: str
    shape: tuple[int, int]


class _Weight(NamedTuple):
    """One weight: its bytes, and the types that it keeps, takes on and loses."""

    size_bytes: int
    kept: frozenset[str]
    quantised: frozenset[str]
    converted: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Holder:
    types: Mapping[str, str]
    dtype: str
    keeps_stored: bool
    quantised: Mapping[str, str]
    known: dict[object, _Weight] = field(default_factory=dict)
    """By what they are alike in."""

    @property
    def kinds(self) -> Collection[_Weight]:
        """All that were asked for, alike ones once."""
        return self.known.values()

    def num_bytes(self, weights: Iterable[Sequence[Tensor]]) -> int:
        """Bytes of weights, each of so many tensors; of none where there is no such weight."""
        return sum(self.weight(tensors).size_bytes for tensors in weights if tensors)

    def weight(self, tensors: Sequence[Tensor]) -> _Weight:
        """Thousands of experts are alike: they are worked out once."""
        likeness = tuple(
            (each.shape, self.types.get(each.name), self.quantised.get(each.name), each.held_as)
            for each in tensors
        )
        found = self.known.get(likeness)
        if found is None:
            found = self.known[likeness] = self._weight(tensors)
        return found

    def _weight(self, tensors: Sequence[Tensor]) -> _Weight:
        parts = self._rows(tensors) if self.keeps_stored else []
        if not are_kept(parts):
            sizes = [
                math.prod(tensor.shape) * PLAIN_BITS[tensor.held_as or self.dtype] // 8
                for tensor in tensors
            ]
            found = frozenset(map(self._type, tensors))
            return _Weight(sum(sizes), _NO_TYPES, _NO_TYPES, found)
        value_bytes = PLAIN_BITS[self.dtype] // 8
        made = frozenset(
            self.quantised[each.name] for each in tensors if each.name in self.quantised
        )
        left = frozenset(self._type(each) for each in tensors if each.name not in self.quantised)
        return _Weight(matrix_bytes(parts, value_bytes), left & KEPT_TYPES, made, left - KEPT_TYPES)

    def _rows(self, tensors: Sequence[Tensor]) -> list[_Rows]:
        """Vectors left out, which never keep their type."""
        return [
            _Rows(self._held_type(tensor), (tensor.shape[0], tensor.shape[1]))
            for tensor in tensors
            if len(tensor.shape) == 2
        ]

    def _type(self, tensor: Tensor) -> str:
        return self.types.get(tensor.name, self.dtype)

    def _held_type(self, tensor: Tensor) -> str:
        return self.quantised.get(tensor.name, self._type(tensor))


def _sorted(names: Iterable[frozenset[str]]) -> tuple[str, ...]:
    return tuple(sorted(frozenset().union(*names)))


def _listed(names: Sequence[str]) -> str:
    """A, B and C."""
    *others, last = names or ("",)
    return f"{', '.join(others)} and {last}" if others else last
