from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from device_tensors import DEVICE, DTYPES, assert_near, random_tensor, wide
from hypothesis import example, given
from hypothesis import strategies as st

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.head_norms import HeadNorms
from pagoda.kernels.gpu.rotary import rotate_and_store
from pagoda.kernels.gpu.windows import SinkQueries

NUM_BLOCKS, NUM_POSITIONS, EPS = 3, 11, 1e-3


@dataclass(frozen=True)
class Shape:
    dtype: torch.dtype
    num_tokens: int
    num_kv_heads: int
    group: int
    head_dim: int
    half: int
    block_size: int
    q_norm: bool
    k_norm: bool
    sinks: bool = False
    norms_rows: bool = False
    norm_offset: float = 0.0

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    head_dim = draw(st.sampled_from((16, 18, 31, 64, 80, 96, 112, 128, 256)))
    halves = (0, 1, head_dim // 4, head_dim // 2)
    return Shape(
        dtype=draw(st.sampled_from(DTYPES)),
        num_tokens=draw(st.integers(0, 6)),
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 5)),
        head_dim=head_dim,
        half=draw(st.sampled_from(halves)),
        block_size=draw(st.integers(1, 20)),
        q_norm=draw(st.booleans()),
        k_norm=draw(st.booleans()),
        sinks=draw(st.booleans()),
        norms_rows=draw(st.booleans()),
        norm_offset=draw(st.sampled_from((0.0, 1.0))),
    )


def expected_heads(
    x: Array, norm: torch.Tensor | None, shape: Shape, cosine: torch.Tensor, sine: torch.Tensor
) -> Array:
    """Of one token's queries, or keys: x, [heads, D]."""
    if norm is not None:
        whole = x.reshape(-1) if shape.norms_rows else x
        x = reference.rms_norm(whole, wide(norm) + shape.norm_offset, EPS).reshape(x.shape)
    return reference.rotate(x, wide(cosine), wide(sine))


@given(shapes(), st.integers(0, 99))
@example(Shape(torch.bfloat16, 3, 2, 16, 128, 64, 16, True, True, True), 0)
@example(Shape(torch.float16, 2, 3, 3, 80, 10, 1, False, False), 0)
@example(Shape(torch.bfloat16, 2, 2, 5, 128, 64, 16, True, True, True, True, 1.0), 0)
def test_queries_and_blocks_are_those_of_the_reference(shape: Shape, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, heads, kv_heads, dim = (
        shape.num_tokens, shape.num_heads, shape.num_kv_heads, shape.head_dim
    )  # fmt: skip
    qkv = random_tensor(rng, (tokens, (heads + 2 * kv_heads) * dim), shape.dtype, 2.0)
    angles = rng.uniform(0, 6, size=(NUM_POSITIONS, shape.half))
    cosines = torch.from_numpy(np.cos(angles)).to(DEVICE, torch.float32)
    sines = torch.from_numpy(np.sin(angles)).to(DEVICE, torch.float32)
    q_width, k_width = (heads * dim, kv_heads * dim) if shape.norms_rows else (dim, dim)
    q_norm = random_tensor(rng, (q_width,), shape.dtype) if shape.q_norm else None
    k_norm = random_tensor(rng, (k_width,), shape.dtype) if shape.k_norm else None
    norms = HeadNorms(q_norm, k_norm, EPS, shape.norm_offset, shape.norms_rows)
    positions = rng.integers(NUM_POSITIONS, size=tokens)
    slots = rng.permutation(NUM_BLOCKS * max(shape.block_size, tokens))[:tokens]
    slots = np.where(slots < NUM_BLOCKS * shape.block_size, slots, -1)
    # One block more at either end, to see what is written beyond them.
    memory_shape = (NUM_BLOCKS + 2, 2, kv_heads, shape.block_size, dim)
    memory = random_tensor(rng, memory_shape, shape.dtype)
    blocks, before = memory[1:-1], memory.clone()
    query = torch.full((tokens, heads, dim), torch.nan, dtype=shape.dtype, device=DEVICE)
    places = rng.integers(NUM_POSITIONS, size=tokens)
    sinks = SinkQueries(query.clone(), torch.from_numpy(places).to(DEVICE, torch.int32))
    rotate_and_store(
        query, qkv, blocks, torch.from_numpy(positions).to(DEVICE, torch.int32),
        torch.from_numpy(slots).to(DEVICE), cosines, sines, norms,
        sinks if shape.sinks else None,
    )  # fmt: skip
    heads_of = wide(qkv).reshape(tokens, heads + 2 * kv_heads, dim)
    for token, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        turn = cosines[position], sines[position]
        expected = expected_heads(heads_of[token, :heads], q_norm, shape, *turn)
        assert_near(query[token], expected, 8.0)
        if shape.sinks:
            turn_of_sinks = cosines[places[token]], sines[places[token]]
            expected = expected_heads(heads_of[token, :heads], q_norm, shape, *turn_of_sinks)
            assert_near(sinks.query[token], expected, 8.0)
        if slot >= 0:
            block, offset = divmod(int(slot), shape.block_size)
            own = heads_of[token, heads : heads + kv_heads]
            keys = expected_heads(own, k_norm, shape, *turn)
            assert_near(blocks[block, 0, :, offset], keys, 8.0)
            values = wide(blocks[block, 1, :, offset])
            assert np.array_equal(values, heads_of[token, heads + kv_heads :])
            before[block + 1, :, :, offset] = blocks[block, :, :, offset]
    assert torch.equal(memory, before), "nothing but the tokens' slots is written"


def test_a_token_is_the_same_alone_and_among_others() -> None:
    rng = np.random.default_rng(2)
    qkv = random_tensor(rng, (5, 6 * 24), torch.float32)
    cosines, sines = (random_tensor(rng, (5, 12), torch.float32) for _ in range(2))
    norm = random_tensor(rng, (24,), torch.float32)
    positions = torch.arange(5, dtype=torch.int32, device=DEVICE)
    slots = torch.arange(5, device=DEVICE)
    found = []
    for step in (5, 1):
        query = torch.empty(5, 2, 24, device=DEVICE)
        blocks = torch.zeros(2, 2, 2, 4, 24, device=DEVICE)
        for first in range(0, 5, step):
            own = slice(first, first + step)
            rotate_and_store(
                query[own], qkv[own], blocks, positions[own], slots[own],
                cosines, sines, HeadNorms(norm, norm, EPS),
            )  # fmt: skip
        found.append((query, blocks))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
