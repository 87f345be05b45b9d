"""Which reader suits the numbers of a cache, and this CPU."""

from __future__ import annotations

from pagoda.kernels.cpu.code_pairs import PairDecoder
from pagoda.kernels.cpu.code_vectors import VectorDecoder
from pagoda.kernels.cpu.long_vectors import ROWS
from pagoda.kernels.cpu.page_readers import (
    CodedKeys,
    CodedValues,
    KeyReader,
    PlainKeys,
    PlainValues,
    ValueReader,
)
from pagoda.kernels.cpu.vector import LANES, UNIT
from pagoda.kernels.vector_code import VectorCode


def key_reader(text: str, head_dim: int, block_size: int, paired: bool) -> KeyReader:
    """For codes, by their text, or for plain numbers: bfloat16, which come in pairs, or float32."""
    if not text:
        return PlainKeys(head_dim // (1 + paired), block_size)
    code = VectorCode.of_text(text)
    if _takes_pairs(paired) and block_size % LANES == 0:
        return CodedKeys(code, block_size, paired, PairDecoder(code))
    return CodedKeys(code, block_size, paired, VectorDecoder(code, paired))


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
