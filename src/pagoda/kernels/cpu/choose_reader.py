"""Which reader suits the numbers of a cache, and this CPU."""

from __future__ import annotations

from pagoda.kernels.cpu.code_pairs import PairDecoder
from pagoda.kernels.cpu.code_vectors import VectorDecoder
from pagoda.kernels.cpu.long_vectors import ROWS
from pagoda.kernels.cpu.page_readers import (
    CodedKeys,
    CodedValues,
    Decoder,
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
    return CodedKeys(code, block_size, paired, _decoder(code, paired, block_size % LANES == 0))


def value_reader(text: str, head_dim: int, block_size: int, paired: bool) -> ValueReader:
    """As `key_reader`."""
    if not text:
        return PlainValues(head_dim, block_size // (1 + paired))
    code = VectorCode.of_text(text)
    return CodedValues(code, block_size, paired, _decoder(code, paired, block_size % ROWS == 0))


def _decoder(code: VectorCode, paired: bool, is_whole: bool) -> Decoder:
    """is_whole: a block can be cut into what is decoded together."""
    if paired and is_whole and UNIT.long_tables:
        return PairDecoder(code)
    return VectorDecoder(code, paired)
