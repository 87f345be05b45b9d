"""A cache of codes on a device: what is written is the plain truth's, and attention reads that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from coded_pages import CodedShape, Kept, kept
from paged_sequences import CacheShape, PagedSequences, assert_near, paged_sequences

from pagoda.cache import AttentionWindow
from pagoda.codecs import CODECS, VectorCodec
from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.gpu import prefill_tiling
from pagoda.kernels.gpu.code_form import PageCodes
from pagoda.kernels.gpu.coded_rotary import rotate_and_encode
from pagoda.kernels.gpu.decode_attention import decode_attention
from pagoda.kernels.gpu.head_norms import NO_NORMS, HeadNorms
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import PREFILL_PARTS, decode_parts
from pagoda.kernels.gpu.prefill_attention import prefill_attention
from pagoda.kernels.gpu.prefill_tiling import AttentionKind, PrefillTiling, tile_prefill
from pagoda.kernels.gpu.turn import turn_heads
from pagoda.kernels.gpu.windows import SinkQueries
from triton_device import DEVICE

NO_NUMBER = 255
"""A byte that is no number as a float8, nor, with another, as a float16 or a float32."""
PLAIN_BASES = (
    "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head", "turboquant_k8v4"
)  # fmt: skip
"""Formats that turn nothing."""
SHAPES = ((32, 4, 2, 16), (64, 3, 1, 5), (80, 8, 1, 24), (128, 1, 2, 32))
"""Head size, group, KV heads, block size."""
EACH_FORMAT = [CodedShape(name, *SHAPES[number % 4]) for number, name in enumerate(CODECS)]
TURNED_BOTH = CodedShape("int4_per_token_head", 80, 2, 2, 8)
NOT_EVEN = CodedShape("turboquant_3bit_nc", 128, 16, 1, 16)
OWN = CodedShape("levels5-float16-unbiased-signs/int8-float32-hadamard", 32, 3, 1, 6)
FEW_BITS = CodedShape("e4m3-hadamard/levels1-float32-least", 64, 2, 2, 16)
ALL = [*EACH_FORMAT, TURNED_BOTH, NOT_EVEN, OWN, FEW_BITS]
WINDOWS = (None, AttentionWindow(40, 5))


def in_turn(first: Sequence[Any], others: Sequence[Any]) -> Any:
    """Every shape with one of the others, and the next shape with the next of them.

    A turn of two things that have nothing to do with one another: each is met in several others.
    """
    pairs = [(shape, others[number % len(others)]) for number, shape in enumerate(first)]
    return [pytest.param(*pair, id=f"{as_named(pair[0])}-{pair[1]}") for pair in pairs]


def no_rotation() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, 0, device=DEVICE), torch.zeros(1, 0, device=DEVICE)


def unwritten(codes: PageCodes, num_blocks: int) -> torch.Tensor:
    size = (num_blocks, codes.form.block_bytes)
    return torch.full(size, NO_NUMBER, dtype=torch.uint8, device=DEVICE)


def as_named(shape: CodedShape) -> str:
    return f"{shape.name}-{shape.head_dim}"


@pytest.mark.parametrize(("shape", "normed"), in_turn(ALL, ("", "heads", "rows")))
def test_codes_are_those_of_the_plain_truth(shape: CodedShape, normed: str) -> None:
    """Equal but for sums in another order, which a turn and a norm have: one level then, rarely."""
    rng = np.random.default_rng(shape.head_dim)
    heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    num_tokens, num_positions, half = 37, 11, dim // 2 - (normed != "") * (dim // 8)
    spread = rng.lognormal(0, 2, (num_tokens, 1, 1))
    x = (rng.normal(size=(num_tokens, heads + 2 * kv_heads, dim)) * spread).astype(np.float32)
    x[0, heads:] = 0
    x[1, -1] = 70.5
    x[2, :, 3] = 30_000
    angles = rng.uniform(0, 6, (num_positions, half))
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    offset, of_rows = (1.0, True) if normed == "rows" else (0.0, False)
    q_norm, k_norm = (
        rng.normal(size=dim * count if of_rows else dim).astype(np.float32)
        for count in (heads, kv_heads)
    )
    positions = rng.integers(num_positions, size=num_tokens).astype(np.int32)
    slots = rng.permutation(3 * max(shape.block_size, num_tokens))[:num_tokens]
    slots = np.where(slots < 3 * shape.block_size, slots, -1)
    codes = shape.codes()
    memory = unwritten(codes, 5)
    query = torch.full((num_tokens, heads, dim), torch.nan, device=DEVICE)
    on_device = [
        torch.from_numpy(each).to(DEVICE)
        for each in (x.reshape(num_tokens, -1), positions, slots, cosines, sines)
    ]
    weights = (torch.from_numpy(each).to(DEVICE) for each in (q_norm, k_norm))
    norms = HeadNorms(*weights, 1e-5, offset, of_rows) if normed else NO_NORMS
    qkv, *others = on_device
    places = rng.integers(num_positions, size=num_tokens).astype(np.int32)
    sinks = SinkQueries(torch.full_like(query, torch.nan), torch.from_numpy(places).to(DEVICE))
    rotate_and_encode(query, qkv, memory[1:-1], *others, norms, codes, sinks)

    turned = x.astype(np.float64)
    if normed:
        for own, weight in (
            (turned[:, :heads], q_norm), (turned[:, heads : heads + kv_heads], k_norm)
        ):  # fmt: skip
            whole = own.reshape(num_tokens, -1) if of_rows else own
            own[:] = reference.rms_norm(whole, offset + weight, 1e-5).reshape(own.shape)
    for_sinks = turned[:, :heads].copy()
    for token, (position, place) in enumerate(zip(positions, places, strict=True)):
        for head in range(heads + kv_heads):
            vector = turned[token, head]
            if head < heads:
                for_sinks[token, head] = reference.rotate(vector, cosines[place], sines[place])
            turned[token, head] = reference.rotate(vector, cosines[position], sines[position])
    matrix = shape.codec.key.matrix(dim)
    for found_queries, rotated in ((query, turned[:, :heads]), (sinks.query, for_sinks)):
        expected = rotated if matrix is None else rotated @ matrix
        error = np.abs(found_queries.cpu().numpy() - expected)
        assert (error <= 2e-6 * np.abs(expected).max(-1, keepdims=True)).all()
    assert (memory[[0, -1]] == NO_NUMBER).all()
    written = np.isin(np.arange(3 * shape.block_size), slots).reshape(3, -1)
    sides = (
        (shape.codec.key, turned[:, heads:-kv_heads]),
        (shape.codec.value, turned[:, -kv_heads:]),
    )
    for (side, vectors), found in zip(sides, kept(shape, memory[1:-1]), strict=True):
        check_codes(side, vectors.astype(np.float32)[slots >= 0], found, slots[slots >= 0])
        untouched = np.moveaxis(found.codes, 1, 2)[~written]
        assert (untouched == 2**side.bits - 1).all(), "nothing but the tokens' slots is written"


def check_codes(side: VectorCodec, vectors: Array, found: Kept, slots: Array) -> None:
    size = found.codes.shape[2]
    at = slots // size, slice(None), slots % size
    codes, scales, offsets = side.encode(vectors)
    own = found.codes[at]
    steps = ordered(side, own) - ordered(side, codes)
    assert np.abs(steps).max() <= 1
    assert (steps != 0).mean() < 2e-3
    one_step = 2e-3 if side.scale == "float16" else 1e-5
    assert np.allclose(found.scales[at], scales, rtol=one_step, atol=1e-7)
    assert np.allclose(found.offsets[at], offsets, rtol=one_step, atol=1e-7)


def ordered(side: VectorCodec, codes: Array) -> Array:
    """Whole numbers in the order of what codes stand for."""
    whole = codes.astype(np.int64)
    if side.numbers == "levels":
        return whole
    if side.numbers == "int8":
        return codes.view(np.int8).astype(np.int64)
    return np.where(whole & 128, -(whole & 127), whole)


@pytest.mark.parametrize("shape", [each for each in ALL if each.name in PLAIN_BASES], ids=as_named)
def test_where_nothing_is_turned_bytes_are_equal(shape: CodedShape) -> None:
    rng = np.random.default_rng(1)
    heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    x = rng.normal(size=(40, heads + 2 * kv_heads, dim)).astype(np.float32)
    x *= rng.lognormal(0, 3, (40, 1, 1)).astype(np.float32)
    codes = shape.codes()
    blocks, slots = unwritten(codes, 40), np.arange(40)
    rotate_and_encode(
        torch.empty(40, heads, dim, device=DEVICE), torch.from_numpy(x.reshape(40, -1)).to(DEVICE),
        blocks, torch.zeros(40, dtype=torch.int32, device=DEVICE),
        torch.from_numpy(slots * shape.block_size).to(DEVICE), *no_rotation(), NO_NORMS,
        codes,
    )  # fmt: skip
    sides = (shape.codec.key, x[:, heads:-kv_heads]), (shape.codec.value, x[:, -kv_heads:])
    for (side, vectors), found in zip(sides, kept(shape, blocks), strict=True):
        for own, expected in zip(
            (found.codes, found.scales, found.offsets), side.encode(vectors), strict=True
        ):
            assert np.array_equal(own[:, :, 0], expected)


def coded(shape: CodedShape, case: PagedSequences) -> tuple[PagedSequences, PagedSequences]:
    """The case with its blocks coded and its queries turned, and with what the blocks then hold."""
    codes = shape.codes()
    content = case.blocks.cpu().movedim(3, 1).flatten(0, 1)  # [slots, 2, heads, dim]
    slots = (~content[:, 0, 0, 0].isnan()).nonzero().flatten()
    query, kv_heads, dim = case.query, shape.num_kv_heads, shape.head_dim
    queries = torch.cat((query, case.sink_query)).cpu()
    rows = torch.cat((torch.zeros(len(slots), shape.num_heads, dim), queries))
    vectors = torch.zeros(len(rows), 2 * kv_heads, dim)
    vectors[: len(slots)] = content[slots].flatten(1, 2)
    blocks = unwritten(codes, len(case.blocks))
    turned = torch.empty_like(rows, device=DEVICE)
    rotate_and_encode(
        turned, torch.cat((rows, vectors), 1).flatten(1).to(DEVICE), blocks,
        torch.zeros(len(rows), dtype=torch.int32, device=DEVICE),
        torch.cat((slots, torch.full((len(queries),), -1))).to(DEVICE),
        *no_rotation(), NO_NORMS, codes,
    )  # fmt: skip
    held = np.stack(
        [recalled(*side) for side in zip(
            (shape.codec.key, shape.codec.value), kept(shape, blocks), strict=True
        )], 1
    )  # fmt: skip
    truth = replace(case, blocks=torch.from_numpy(held))
    own, sink_query = turned[len(slots) :].contiguous().chunk(2)
    return replace(case, blocks=blocks, query=own, sink_query=sink_query), truth


def recalled(side: VectorCodec, found: Kept) -> Array:
    with np.errstate(invalid="ignore"):
        vectors = side.decode(found.codes, found.scales, found.offsets)
        matrix = side.matrix(vectors.shape[-1])
        return vectors if matrix is None else vectors @ matrix.T


def cases(
    shape: CodedShape, contexts: list[int], counts: list[int], window: AttentionWindow | None
) -> tuple[PagedSequences, PagedSequences]:
    plain = CacheShape(
        shape.head_dim, shape.group_size, shape.num_kv_heads, shape.block_size, torch.float32
    )
    return coded(shape, paged_sequences(plain, contexts, counts, window))


def turned_back(shape: CodedShape, out: torch.Tensor) -> torch.Tensor:
    turn = shape.codes().output_turn
    if turn is not None:
        turn_heads(out, turn)
    return out


def partial_sums(shape: CodedShape, count: int) -> PartialSums:
    partial = PartialSums.of(count, shape.head_dim, DEVICE)
    for each in partial:
        each.fill_(float("nan"))
    return partial


@pytest.mark.parametrize(("shape", "window"), in_turn(ALL, WINDOWS))
def test_decode_attention_reads_what_is_stored(
    shape: CodedShape, window: AttentionWindow | None
) -> None:
    case, truth = cases(shape, [290, 61, 1], [1, 1, 1], window)
    rows = torch.arange(3, dtype=torch.int32, device=DEVICE)
    out = case.empty()
    decode_attention(
        out, case.query, case.blocks, case.block_tables, case.context_lens, rows, rows,
        case.shape.scale, case.windows, partial_sums(shape, decode_parts(3, shape.num_heads)),
        shape.codes(),
    )  # fmt: skip
    out = turned_back(shape, out)
    for row in range(3):
        assert_near(out[row : row + 1], truth.expected(row))


@pytest.mark.parametrize(("shape", "window"), in_turn(ALL, WINDOWS[::-1]))
def test_prefill_attention_reads_what_is_stored(
    shape: CodedShape, window: AttentionWindow | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk behind a context that is split, and a whole prompt."""
    for name, count in (("SPLIT_FROM", 128), ("SPLIT_TOKENS", 64)):
        monkeypatch.setattr(prefill_tiling, name, count)
    case, truth = cases(shape, [150, 21], [13, 21], window)
    kind = AttentionKind(shape.num_heads, shape.num_kv_heads)
    sizes = None if case.windows is None else case.windows.sizes.cpu().numpy()
    starts, contexts = case.query_starts.cpu().numpy(), case.context_lens.cpu().numpy()
    plan = tile_prefill(kind, starts, contexts, np.array([0, 1]), sizes)
    assert (len(plan.merges) > 0) == (window is None)
    tiles, merges = (torch.from_numpy(each).to(DEVICE) for each in (plan.tiles, plan.merges))
    out = case.empty()
    prefill_attention(
        out, case.query, case.blocks, case.block_tables,
        PrefillTiling(kind, tiles, merges, plan.rounds), case.shape.scale, case.windows,
        partial_sums(shape, PREFILL_PARTS), shape.codes(),
    )  # fmt: skip
    out = turned_back(shape, out)
    assert_near(out[:13], truth.expected(0))
    assert_near(out[13:], truth.expected(1))
