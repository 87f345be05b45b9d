"""What stands before and behind attention to latents: like the plain truth, each row for itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from device_tensors import DEVICE, DTYPES, HAS_GPU, assert_near, random_tensor, wide
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagoda.codecs import LATENT_CODECS
from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.head_product import head_product
from pagoda.kernels.gpu.latent_form import LatentForm
from pagoda.kernels.gpu.latent_rows import rotate_and_store_latents

NUM_BLOCKS, NUM_POSITIONS, EPS = 3, 11, 1e-3
PRODUCT_DTYPES = DTYPES if HAS_GPU else DTYPES[:2]
"""Products of bfloat16 do not work in the interpreter."""


@dataclass(frozen=True)
class Shape:
    dtype: torch.dtype
    num_tokens: int
    num_heads: int
    rank: int
    nope_dim: int
    half: int
    block_size: int
    form: str | None = None

    @property
    def width(self) -> int:
        return self.rank + 2 * self.half


shapes = st.builds(
    Shape,
    dtype=st.sampled_from(DTYPES),
    num_tokens=st.integers(0, 5),
    num_heads=st.sampled_from((1, 3, 16, 40)),
    rank=st.sampled_from((16, 48, 144, 512)),
    nope_dim=st.sampled_from((0, 10, 64)),
    half=st.sampled_from((1, 4, 5, 32)),
    block_size=st.integers(1, 20),
    form=st.sampled_from((None, *LATENT_CODECS)),
)


@dataclass(frozen=True)
class Rows:
    """Random rows of a step, where they go, and what lies there before."""

    shape: Shape
    rows: torch.Tensor
    down: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor
    norm: torch.Tensor

    @classmethod
    def of(cls, shape: Shape, seed: int) -> Rows:
        rng = np.random.default_rng(seed)
        tokens, query_dim = shape.num_tokens, shape.nope_dim + 2 * shape.half
        angles = rng.uniform(0, 6, size=(NUM_POSITIONS, shape.half))
        slots = rng.permutation(NUM_BLOCKS * max(shape.block_size, tokens))[:tokens]
        slots = np.where(slots < NUM_BLOCKS * shape.block_size, slots, -1)
        return cls(
            shape,
            random_tensor(rng, (tokens, shape.num_heads, query_dim), shape.dtype, 2.0),
            random_tensor(rng, (tokens, shape.width), shape.dtype, 2.0),
            torch.from_numpy(rng.integers(NUM_POSITIONS, size=tokens)).to(DEVICE, torch.int32),
            torch.from_numpy(slots).to(DEVICE),
            torch.from_numpy(np.cos(angles)).to(DEVICE, torch.float32),
            torch.from_numpy(np.sin(angles)).to(DEVICE, torch.float32),
            random_tensor(rng, (shape.rank,), shape.dtype),
        )

    def store(self, query: torch.Tensor, blocks: torch.Tensor, own: slice = slice(None)) -> None:
        """Launch it for some of the rows."""
        rotate_and_store_latents(
            query[own], self.rows[own], self.down[own], blocks, self.positions[own],
            self.slots[own], self.cosines, self.sines, self.norm, EPS, self.form,
        )  # fmt: skip

    @property
    def form(self) -> LatentForm | None:
        shape = self.shape
        if shape.form is None:
            return None
        code = LATENT_CODECS[shape.form].code(shape.rank, 2 * shape.half)
        return LatentForm.of(code, shape.block_size, code.token_bytes * shape.block_size + 32)

    def blocks(self, filler: int) -> torch.Tensor:
        """One more at either end, to see what is written beyond them."""
        shape, form = self.shape, self.form
        numbers = shape.block_size * shape.width * shape.dtype.itemsize
        size = numbers if form is None else form.block_bytes
        memory = torch.full((NUM_BLOCKS + 2, size), filler, dtype=torch.uint8, device=DEVICE)
        if form is not None:
            return memory
        return memory.view(shape.dtype).view(-1, shape.block_size, shape.width)

    def turned(self, token: int, x: Array) -> Array:
        """Numbers that are rotated by a token's position."""
        position = int(self.positions[token])
        return reference.rotate(x, wide(self.cosines[position]), wide(self.sines[position]))

    def vector(self, token: int) -> Array:
        """[width]: latent and key of a token."""
        down, rank = wide(self.down[token]), self.shape.rank
        latent = reference.rms_norm(down[:rank], wide(self.norm), EPS)
        return np.concatenate([latent, self.turned(token, down[None, rank:])[0]])

    def stored(self, blocks: torch.Tensor, slot: int) -> Array:
        """What the bytes of a slot say."""
        shape, form = self.shape, self.form
        block, place = divmod(slot, shape.block_size)
        if form is None:
            return wide(blocks[block, place])
        codec, own = LATENT_CODECS[shape.form or ""], blocks[block].cpu()
        codes = own[place * shape.rank : (place + 1) * shape.rank].numpy()
        at, length = form.scales + 4 * place * form.num_groups, 4 * form.num_groups
        scales = own[at : at + length].view(torch.float32).numpy()
        kind = torch.int8 if codec.group.numbers == "int8" else torch.float8_e4m3fn
        levels = torch.from_numpy(codes.copy()).view(kind).double().numpy()
        at = form.shared + 4 * shape.half * place
        key = own[at : at + 4 * shape.half].view(torch.bfloat16).double().numpy()
        return np.concatenate([levels * np.repeat(scales, 128)[: shape.rank], key])


@settings(max_examples=40)
@given(shapes, st.integers(0, 99))
@example(Shape(torch.bfloat16, 3, 128, 512, 128, 32, 16), 0)
@example(Shape(torch.float32, 4, 3, 512, 10, 32, 3, "fp8_per_group"), 0)
@example(Shape(torch.float32, 4, 3, 144, 10, 4, 3, "int8_per_group"), 0)
def test_queries_and_blocks_are_those_of_the_reference(shape: Shape, seed: int) -> None:
    given = Rows.of(shape, seed)
    memory, before = given.blocks(7), given.blocks(7)
    blocks = memory[1:-1]
    query = torch.full((shape.num_tokens, shape.num_heads, shape.width), 9.0, device=DEVICE)
    query = query.to(shape.dtype)
    given.store(query, blocks)
    for token, slot in enumerate(given.slots.tolist()):
        turned = given.turned(token, wide(given.rows[token])[:, shape.nope_dim :])
        assert_near(query[token, :, shape.rank :], turned, 8.0)
        if slot >= 0:
            expected, found = given.vector(token), given.stored(blocks, slot)
            if given.form is None:
                at = divmod(slot, shape.block_size)
                assert_near(blocks[at], expected, 8.0)
                before[1 + at[0], at[1]] = blocks[at]
            else:
                require_coded(shape, found, expected)
    assert (query[:, :, : shape.rank] == 9.0).all(), "what meets latents is written elsewhere"
    if given.form is None:
        assert torch.equal(memory.view(torch.uint8), before.view(torch.uint8))
    else:
        assert (memory[[0, -1]] == 7).all()
        assert (memory[:, -32:] == 7).all()


def require_coded(shape: Shape, found: Array, expected: Array) -> None:
    """As the codec would have it, but that a number on an edge may go to either side."""
    assert shape.form is not None
    codec = LATENT_CODECS[shape.form]
    recalled = codec.recall(expected.astype(np.float32)[None], shape.rank)[0]
    off = np.abs(found - recalled) > 1e-5 * np.abs(recalled) + 1e-6
    assert off.sum() <= 0.02 * shape.width
    largest = np.abs(expected).max()
    assert (np.abs(found - recalled) <= 2**-3 * np.abs(recalled) + largest / 64).all()


@pytest.mark.parametrize("form", [None, "fp8_per_group"])
def test_a_token_is_the_same_alone_and_among_others(form: str | None) -> None:
    given = Rows.of(Shape(torch.float32, 5, 3, 144, 10, 4, 4, form), 3)
    found = []
    for step in (5, 1):
        query = torch.zeros(5, 3, given.shape.width, device=DEVICE)
        blocks = given.blocks(0)
        for first in range(0, 5, step):
            given.store(query, blocks, slice(first, first + step))
        found.append((query, blocks))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@settings(max_examples=20)
@given(
    st.sampled_from(PRODUCT_DTYPES),
    st.sampled_from((1, 5, 70)),
    st.integers(1, 3),
    st.sampled_from((7, 24, 128)),
    st.sampled_from((16, 40, 130)),
    st.booleans(),
    st.integers(0, 99),
)
def test_products_of_heads(
    dtype: torch.dtype, rows: int, heads: int, depth: int, width: int, is_turned: bool, seed: int
) -> None:
    """From a part of longer rows to a part of longer rows."""
    rng = np.random.default_rng(seed)
    x = random_tensor(rng, (rows, heads, depth + 3), dtype)[:, :, :depth]
    shape = (heads, width, depth) if is_turned else (heads, depth, width)
    weight = random_tensor(rng, shape, dtype)
    weight = weight.mT if is_turned else weight
    out = torch.full((rows, heads, width + 2), 5.0, device=DEVICE).to(dtype)
    head_product(out[:, :, :width], x, weight)
    assert_near(out[:, :, :width], np.einsum("thd,hdn->thn", wide(x), wide(weight)), depth**0.5)
    assert (out[:, :, width:] == 5.0).all()
    alone = torch.empty((1, heads, width), dtype=dtype, device=DEVICE)
    head_product(alone, x[-1:], weight)
    assert torch.equal(alone[0], out[-1, :, :width])
