"""Which reader suits the numbers of a cache, and this CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagoda.kernels.cpu.code_pairs import PairDecoder
from pagoda.kernels.cpu.code_vectors import VectorDecoder
from pagoda.kernels.cpu.long_vectors import ROWS
from pagoda.kernels.cpu.page_readers import (
    CodedKeys,
    CodedValues,
    KeyDecoder,
    KeyPart,
    KeyReader,
    PlainKeys,
    PlainValues,
    ValueReader,
)
from pagoda.kernels.cpu.tile import Tile
from pagoda.kernels.cpu.vector import LANES, UNIT, index
from pagoda.kernels.cpu.whole_form import WholeForm
from pagoda.kernels.cpu.whole_keys import PlainLevels, level_parts
from pagoda.kernels.cpu.whole_tile import WholeTile
from pagoda.kernels.vector_code import VectorCode


def key_reader(
    text: str, head_dim: int, block_size: int, paired: bool, form: WholeForm | None = None
) -> KeyReader:
    """For codes, by their text, or for plain numbers: bfloat16, which come in pairs, or float32, or
    whole ones of a form."""
    if not text:
        if form is not None:
            return PlainLevels(form, block_size)
        return PlainKeys(head_dim // (1 + paired), block_size)
    code = VectorCode.of_text(text)
    if form is not None:
        return CodedKeys(code, block_size, level_parts(code, form))
    decoder: KeyDecoder = VectorDecoder(code, paired)
    if _takes_pairs(paired) and block_size % LANES == 0:
        decoder = PairDecoder(code)
    return CodedKeys(code, block_size, [KeyPart(run, decoder) for run in code.runs])


def key_tile(
    builder: Any, paired: bool, form: WholeForm | None, rows: Sequence[Any], lanes: list[int]
) -> Tile | WholeTile:
    """The tile that takes what `key_reader` reads; rows: pointers to queries, lanes: of each vector
    of keys."""
    if form is None:
        return Tile(builder, paired, len(rows), lanes)
    starts = [builder.gep(each, [index(form.num_groups)]) for each in rows]
    return WholeTile(builder, starts, len(lanes))


def value_reader(text: str, head_dim: int, block_size: int, paired: bool) -> ValueReader:
    """As `key_reader`."""
    if not text:
        return PlainValues(head_dim, block_size // (1 + paired))
    code = VectorCode.of_text(text)
    if _takes_pairs(paired) and block_size % ROWS == 0:
        return CodedValues(code, block_size, paired, PairDecoder(code))
    # Two tokens have the thirty-two codes of a chunk that fill a register of AVX2.
    at_once = 2 if code.has_paths and not paired and block_size % 2 == 0 else 1
    return CodedValues(code, block_size, paired, VectorDecoder(code, paired, at_once))


def _takes_pairs(paired: bool) -> bool:
    """Whether blocks that can be cut into what is decoded together are read so."""
    return paired and UNIT.long_tables
