"""Blocks of a CPU's cache in the form `kvtc`: codes of transforms in place of their numbers.

    kind     1 byte
    whole    the block's bytes
    coded    codes of its keys, rotation taken off, and values

A sequence's first block stays whole: first tokens, which attention goes to when it has nowhere to
go, are like no others. So does one with numbers that are not finite or that codes would not make
smaller, and what holds no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from pagoda.codecs.block_transform import BlockTransform
from pagoda.codecs.rotary import Rotary
from pagoda.codecs.step_codes import StepCodesError
from pagoda.codecs.transform_file import FoundTransforms
from pagoda.execution.rope import RotaryTables
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec, DecoderLayer, DecoderSpec, RopeSpec
from pagoda.storage.block_numbers import BlockNumbers, LayerNumbers
from pagoda.tiers.names import BlockName
from pagoda.tiers.packing import PackingError

_LAYOUT = "1"
"""Another one for every change to where what is packed lies in a payload."""


class _Kind(IntEnum):
    WHOLE = 0
    CODED = 1


@dataclass(frozen=True, eq=False, slots=True)
class TransformPacking:
    """See `Packing`."""

    name: str
    digest: str
    """Of the layout, and of all that was calibrated."""
    longest: int
    """Tokens of a sequence at most."""
    numbers: BlockNumbers
    transforms: Sequence[BlockTransform]
    """Of each group."""
    rotary: Sequence[Rotary]
    """Of each layer."""

    @classmethod
    def of(
        cls,
        name: str,
        found: FoundTransforms,
        numbers: BlockNumbers,
        rotary: Sequence[Rotary],
        longest: int,
    ) -> TransformPacking:
        """For blocks of a model's cache, in which sequences have up to `longest` tokens. `found`:
        by the same groups of layers. `rotary`: see `rotary_of`."""
        transforms = []
        for layers in numbers.groups:
            layer_ids = {layer.layer_id for layer in layers}
            runs = [run for run in found.runs if layer_ids.issuperset(run.layer_ids)]
            assert {each for run in runs for each in run.layer_ids} == layer_ids
            transforms.append(BlockTransform.of(runs, found.steps[name]))
        return cls(name, f"{_LAYOUT}-{found.digest}", longest, numbers, transforms, rotary)

    @property
    def max_payload_bytes(self) -> int:
        """See `Packing`."""
        return 1 + self.numbers.block_bytes

    def pack(self, name: BlockName, block: memoryview) -> bytes:
        """See `Packing`."""
        coded = None
        if name.number and self._has_place(name.number):
            coded = self._coded(name.group, name.number, block)
        if coded is None or len(coded) >= len(block):
            return bytes([_Kind.WHOLE]) + block
        return bytes([_Kind.CODED]) + coded

    def unpack(self, name: BlockName, payload: memoryview) -> bytearray | memoryview:
        """See `Packing`."""
        kind, body = payload[:1], payload[1:]
        if kind == bytes([_Kind.WHOLE]) and len(body) == self.numbers.block_bytes:
            return body
        if kind != bytes([_Kind.CODED]) or not name.number or not self._has_place(name.number):
            raise PackingError
        try:
            return self._decoded(name.group, name.number, body)
        except StepCodesError:
            raise PackingError from None

    def _has_place(self, number: int) -> bool:
        """It is not behind the longest sequence, as blocks of a longer one may be."""
        return (number + 1) * self.numbers.block_size <= self.longest

    def _coded(self, group: int, number: int, block: memoryview) -> bytes | None:
        first, sides = number * self.numbers.block_size, []
        for layers in self._runs(group):
            pairs = [self.numbers.read(layer, block) for layer in layers]
            keys = [
                self.rotary[layer.layer_id].take_off(keys, first)
                for layer, (keys, _) in zip(layers, pairs, strict=True)
            ]
            sides.append((_in_rows(keys), _in_rows([values for _, values in pairs])))
        return self.transforms[group].pack(sides)

    def _decoded(self, group: int, number: int, body: memoryview) -> bytearray:
        block, size = bytearray(self.numbers.block_bytes), self.numbers.block_size
        sides = self.transforms[group].unpack(body, size)
        for layers, (keys, values) in zip(self._runs(group), sides, strict=True):
            start = 0
            for layer in layers:
                shape = (size, layer.num_kv_heads, layer.head_size)
                own = slice(start, start + layer.num_kv_heads * layer.head_size)
                turned = self.rotary[layer.layer_id].put_on(
                    keys[:, own].reshape(shape), number * size
                )
                self.numbers.write(layer, block, turned, values[:, own].reshape(shape))
                start = own.stop
        return block

    def _runs(self, group: int) -> list[list[LayerNumbers]]:
        """The layers of each run."""
        of_layers = {layer.layer_id: layer for layer in self.numbers.groups[group]}
        return [[of_layers[each] for each in run.layer_ids] for run in self.transforms[group].runs]


def rotary_of(spec: DecoderSpec, longest: int) -> list[Rotary]:
    """Of each layer of a model, for positions up to `longest`; layers that are alike have one."""
    ropes = [_rope(layer) for layer in spec.layers]
    tables = {rope: RotaryTables.of(rope, longest) for rope in set(ropes)}
    rotary = {rope: Rotary(each.cosines, each.sines) for rope, each in tables.items()}
    return [rotary[rope] for rope in ropes]


def _in_rows(vectors: Sequence[Array]) -> Array:
    """[tokens, numbers] of vectors, each [tokens, heads, head_size]"""
    return np.concatenate([each.reshape(len(each), -1) for each in vectors], axis=1)


def _rope(layer: DecoderLayer) -> RopeSpec | None:
    assert isinstance(layer.attention, AttentionSpec)  # latents are refused
    return layer.attention.rope
