"""Matrices and levels are data of each head, and chunks have widths of their own: kernels take what
no codec has yet, and what is calibrated for a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from coded_pages import chunk_by_chunk

import calibrated_examples
from pagoda.codecs import CALIBRATED
from pagoda.execution.gpu.layer_codes import page_codes
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.code_form import PageCodes, VectorForm, VectorTables
from pagoda.kernels.gpu.coded_rotary import rotate_and_encode
from pagoda.kernels.gpu.decode_attention import decode_attention
from pagoda.kernels.gpu.head_norms import NO_NORMS
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import decode_parts
from pagoda.kernels.gpu.turn import turn_heads
from pagoda.kernels.vector_code import CHUNK, TABLE_SIZE, VectorCode, unpack
from triton_device import DEVICE

HEADS, GROUP, BLOCK_SIZE, NUM_TOKENS, NUM_BLOCKS = 2, 3, 8, 40, 6


@dataclass(frozen=True)
class Side:
    """Keys, or values: their code, and for each head levels, bounds and a matrix."""

    code: VectorCode
    fit: str
    levels: Array
    bounds: Array
    turn: Array

    @classmethod
    def random(cls, widths: tuple[int, ...], fit: str, seed: int) -> Side:
        rng = np.random.default_rng(seed)
        code = VectorCode("levels", widths, "float16")
        levels = np.zeros((HEADS, TABLE_SIZE), np.int8)
        bounds = np.zeros((HEADS, TABLE_SIZE), np.float32)
        for head in range(HEADS):
            for width in sorted(set(widths) - {0}):
                count = 2**width
                own = np.sort(rng.choice(np.arange(-127, 128), count, replace=False))
                levels[head, count : 2 * count] = own
                bounds[head, count : 2 * count - 1] = (own[1:] + own[:-1]) / 2
        bounds[:, 0] = rng.uniform(40, 80, HEADS)
        size = code.head_size
        turn = np.linalg.qr(rng.normal(size=(HEADS, size, size)))[0]
        turn *= rng.uniform(0.5, 2, (HEADS, 1, size))
        return cls(code, fit, levels, bounds, turn.astype(np.float32))

    def tables(self) -> VectorTables:
        levels, bounds, turn = (
            torch.from_numpy(each).to(DEVICE) for each in (self.levels, self.bounds, self.turn)
        )
        return VectorTables(self.code, self.fit, False, levels, bounds, None, turn)

    def encode(self, vectors: Array) -> tuple[Array, Array]:
        """Codes and scales of [tokens, HEADS, D], one by one."""
        codes = np.zeros(vectors.shape, np.uint8)
        scales = np.zeros(vectors.shape[:-1], np.float16)
        for token, head in np.ndindex(*scales.shape):
            x = vectors[token, head].astype(np.float64) @ self.turn[head]
            factor = self.bounds[head, 0] / np.sqrt(np.square(x).mean())
            for d in range(len(x)):
                codes[token, head, d] = self.nearest(head, d, x[d] * factor)
            found = self.found(codes[token, head], head)
            along, across = x @ found, found @ found
            fits = {
                "least": along / across,
                "norm": np.sqrt(x @ x / across),
                "unbiased": x @ x / along,
            }
            scales[token, head] = fits[self.fit]
        return codes, scales

    def nearest(self, head: int, d: int, value: float) -> int:
        width = self.code.widths[d // CHUNK]
        own = self.bounds[head, 2**width : 2 ** (width + 1) - 1]
        return int((own < value).sum())

    def found(self, codes: Array, head: int) -> Array:
        """What codes [D] of a head stand for, without their scale."""
        widths = np.repeat(self.code.widths, CHUNK)
        return np.where(widths > 0, self.levels[head, 2**widths + codes], 0).astype(np.float64)

    def recalled(self, codes: Array, scales: Array) -> Array:
        """[tokens, HEADS, D], as they were before they were turned."""
        out = np.zeros(codes.shape)
        for token, head in np.ndindex(*scales.shape):
            found = self.found(codes[token, head], head) * scales[token, head]
            out[token, head] = found @ np.linalg.inv(self.turn[head])
        return out


@pytest.mark.parametrize(
    ("key_widths", "value_widths", "key_fit", "value_fit"),
    [
        ((4, 3, 3, 0, 6), (2,) * 5, "least", "unbiased"),
        ((1, 5), (6, 0), "norm", "least"),
        ((2, 2, 2, 2), (3, 3, 1, 3), "unbiased", "norm"),
    ],
)
def test_heads_have_codes_of_their_own(
    key_widths: tuple[int, ...], value_widths: tuple[int, ...], key_fit: str, value_fit: str
) -> None:
    key, value = Side.random(key_widths, key_fit, 1), Side.random(value_widths, value_fit, 2)
    inverse = np.linalg.inv(key.turn).swapaxes(1, 2), np.linalg.inv(value.turn)
    query_turn, output_turn = (
        torch.from_numpy(np.ascontiguousarray(each)).to(DEVICE) for each in inverse
    )
    codes = PageCodes(HEADS, BLOCK_SIZE, key.tables(), value.tables(), query_turn, output_turn)
    heads = HEADS * GROUP
    x = np.random.default_rng(0).normal(size=(NUM_TOKENS, heads + 2 * HEADS, key.code.head_size))
    x = x.astype(np.float32)
    blocks, query = stored(codes, x)
    content, held = blocks.cpu().numpy(), []
    sides = (
        (key, codes.form.keys, x[:, heads : heads + HEADS]),
        (value, codes.form.values, x[:, heads + HEADS :]),
    )
    for side, form, vectors in sides:
        found = in_blocks(side.code, form, content, np.float16)
        expected, scales = side.encode(vectors)
        assert np.abs(found[0].astype(int) - expected).max() <= 1
        assert (found[0] != expected).mean() < 1e-3
        assert np.allclose(found[1], scales, rtol=4e-3)
        held.append(side.recalled(*found))
    check_last(codes, x, blocks, query, *held)


@pytest.mark.parametrize(
    ("name", "head_size"), [(name, (64, 128)[i % 2]) for i, name in enumerate(CALIBRATED)]
)
def test_codecs_that_are_calibrated_for_a_model(name: str, head_size: int) -> None:
    """Codes and scales are the codec's own, but for sums in another order."""
    codec = calibrated_examples.codec(name, HEADS, head_size)
    codes = page_codes(codec, HEADS, head_size, BLOCK_SIZE, DEVICE)
    heads = HEADS * GROUP
    x = np.random.default_rng(1).normal(size=(NUM_TOKENS, heads + 2 * HEADS, head_size))
    x[:, :heads] /= 50  # with scores of hundreds, rounding would choose between tokens
    x = x.astype(np.float32)
    for number in range(2):
        own = calibrated_examples.vectors(HEADS, head_size, 5 + number, NUM_TOKENS)
        x[:, heads + number * HEADS :][:, :HEADS] = own.swapaxes(0, 1)
    blocks, query = stored(codes, x)
    content, held = blocks.cpu().numpy(), []
    for side, form, first in (
        (codec.key, codes.form.keys, heads), (codec.value, codes.form.values, heads + HEADS),
    ):  # fmt: skip
        vectors = x[:, first : first + HEADS].swapaxes(0, 1)
        expected, scales = side.encode(np.matmul(vectors, side.vectors))
        found = in_blocks(side.code(head_size), form, content, np.uint8)
        found_codes, found_scales = (each.swapaxes(0, 1) for each in found)
        same = found_scales == scales
        assert same.mean() > 0.98
        assert np.abs(found_codes.astype(int) - expected)[same].max() <= 1
        assert (found_codes != expected)[same].mean() < 1e-3
        back = np.matmul(side.decode(found_codes, found_scales), side.queries.swapaxes(1, 2))
        held.append(back.swapaxes(0, 1))
    check_last(codes, x, blocks, query, *held)


def test_where_all_chunks_are_paths_no_number_is_searched_by_itself() -> None:
    codes = page_codes(calibrated_examples.codec("int4", HEADS, 64), HEADS, 64, BLOCK_SIZE, DEVICE)
    keys, values = codes.form.keys, codes.form.values
    assert {run.is_path for run in keys.runs} == {True, False}
    assert keys.most_single_bits == max(run.width for run in keys.runs if not run.is_path)
    assert all(run.is_path for run in values.runs)
    assert values.most_single_bits == 0


def stored(codes: PageCodes, x: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks with the keys and values of x, [tokens, heads, D], and its queries, turned."""
    dim = x.shape[-1]
    blocks = torch.zeros(NUM_BLOCKS, codes.form.block_bytes, dtype=torch.uint8, device=DEVICE)
    query = torch.empty(NUM_TOKENS, HEADS * GROUP, dim, device=DEVICE)
    none = torch.zeros(1, 0, device=DEVICE)
    rotate_and_encode(
        query, torch.from_numpy(x.reshape(NUM_TOKENS, -1)).to(DEVICE), blocks,
        torch.zeros(NUM_TOKENS, dtype=torch.int32, device=DEVICE),
        torch.arange(NUM_TOKENS, device=DEVICE), none, none, NO_NORMS, codes,
    )  # fmt: skip
    return blocks, query


def in_blocks(
    code: VectorCode, form: VectorForm, content: Array, scale: type[np.generic]
) -> tuple[Array, Array]:
    """Codes [tokens, HEADS, D] and scales [tokens, HEADS] in blocks."""
    packed = content[:, form.start : form.start + HEADS * form.head_bytes]
    packed = packed.reshape(-1, HEADS, BLOCK_SIZE, form.code_bytes)
    codes = unpack(code, chunk_by_chunk(code, packed)).swapaxes(1, 2)
    beside = content[:, form.scales : form.scales + HEADS * form.scale_head_bytes]
    scales = np.ascontiguousarray(beside).view(scale).reshape(-1, HEADS, BLOCK_SIZE)
    scales = scales.swapaxes(1, 2).reshape(-1, HEADS)
    return codes.reshape(-1, *codes.shape[2:])[:NUM_TOKENS], scales[:NUM_TOKENS]


def check_last(
    codes: PageCodes, x: Array, blocks: torch.Tensor, query: torch.Tensor, keys: Array,
    values: Array,
) -> None:  # fmt: skip
    """What the first token's queries see of all is what they see of keys and values as stored.

    keys, values: [tokens, HEADS, D].
    """
    num_heads, dim = HEADS * GROUP, x.shape[-1]
    out, rows = torch.empty_like(query), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    decode_attention(
        out, query, blocks, torch.arange(NUM_BLOCKS, dtype=torch.int32, device=DEVICE)[None],
        torch.tensor([NUM_TOKENS], dtype=torch.int32, device=DEVICE), rows, rows, dim**-0.5, None,
        PartialSums.of(decode_parts(1, num_heads), dim, DEVICE), codes,
    )  # fmt: skip
    assert codes.output_turn is not None
    turn_heads(out[:1], codes.output_turn)
    for head in range(num_heads):
        kv_head = head // GROUP
        scores = keys[:, kv_head].astype(np.float64) @ x[0, head] * dim**-0.5
        weights = np.exp(scores - scores.max())
        expected = weights @ values[:, kv_head] / weights.sum()
        error = np.abs(out[0, head].cpu().numpy() - expected)
        assert error.max() < 5e-5 * np.abs(expected).max()
