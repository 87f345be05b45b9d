"""The kernels of latent attention against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import DTYPES, assert_close, call_routine, group_of, seen, stored
from latent_blocks import coded_blocks
from numba import prange
from test_panels import table_from

from pagoda.codecs import LATENT_CODECS
from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.attention_alone import CodedBlocks, paged_attention
from pagoda.kernels.cpu.attention_scratch import split_tokens
from pagoda.kernels.cpu.attention_tiling import AttentionTiling
from pagoda.kernels.cpu.head_product import HeadTarget, HeadWeights, multiply_heads
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.latent_rows import latent_routine
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, product_routines
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.pages import NO_CODES
from pagoda.kernels.cpu.panels import pack
from pagoda.kernels.cpu.sums import sum_routine
from pagoda.kernels.cpu.team import first_phase, phases, team_of
from pagoda.kernels.page_layout import coded_latent_layout, latent_layout

pytestmark = [pytest.mark.threads, pytest.mark.filterwarnings("error::numba.NumbaWarning")]

LOG2_E = 1.4426950408889634
SHAPES = [
    # heads, rank, rope, block size, dtype of products, form if there are codes
    (16, 512, 64, 16, "bfloat16"),
    (16, 512, 64, 16, "bfloat16", "fp8_per_group"),
    (5, 144, 6, 24, "float32", "int8_per_group"),
    (3, 64, 32, 32, "bfloat16"),
    (40, 40, 8, 8, "bfloat16"),
    (5, 33, 6, 5, "float32"),
    (128, 32, 16, 16, "float32"),
]


class Latents:
    """Random latents of two sequences, in blocks in random order among others full of NaN."""

    def __init__(
        self, heads: int, rank: int, rope: int, block_size: int, dtype: str, form: str | None = None
    ) -> None:
        self.heads, self.rank, self.width = heads, rank, rank + rope
        self.block_size, self.dtype, self.group = block_size, dtype, group_of(dtype)
        self.rng = np.random.default_rng(rank)
        self.context = 2 * split_tokens(block_size) + block_size // 2 + 3
        per_sequence = -(-self.context // block_size)
        num_blocks = 2 * per_sequence + 2
        self.tables = self.rng.permutation(num_blocks)[: 2 * per_sequence].reshape(2, -1)
        self.tables = self.tables.astype(np.int32)
        self.blocks = stored(np.full((num_blocks, self.width * block_size), np.nan), dtype)
        for table in self.tables:
            for token in range(self.context):
                block = self.blocks[table[token // block_size]]
                place = block.reshape(-1, block_size, self.group)[:, token % block_size]
                place[:] = stored(self.rng.normal(size=place.shape), dtype)
        self.codec = None if form is None else LATENT_CODECS[form]
        if self.codec is not None:
            vectors = self.vectors
            self.coded, written = (
                coded_blocks(self.codec, rank, vectors),
                np.isfinite(vectors[..., 0]),
            )
            vectors[written] = self.codec.recall(vectors[written], rank)
            self.vectors = vectors

    @property
    def vectors(self) -> Array:
        """[num_blocks, block_size, width] float32: what blocks hold, as products take it."""
        shape = (len(self.blocks), -1, self.block_size, self.group)
        by_token = seen(self.blocks).reshape(shape).swapaxes(1, 2)
        return by_token.reshape(len(self.blocks), self.block_size, self.width)

    @vectors.setter
    def vectors(self, vectors: Array) -> None:
        by_group = vectors.reshape(len(vectors), self.block_size, -1, self.group).swapaxes(1, 2)
        self.blocks = stored(by_group.reshape(len(vectors), -1), self.dtype)

    def queries(self, rows: int) -> Array:
        drawn = self.rng.normal(size=(rows, self.heads * self.width)) * 0.3
        return seen(stored(drawn, self.dtype)).copy()

    def run(
        self, queries: Array, positions: list[int], work: list[tuple[int, ...]], num_parts: int = 0
    ) -> Array:
        """Parts are those of row 0, three splits."""
        out = stored(np.full((len(positions), self.heads * self.rank), np.nan), self.dtype)
        merges = [(0, 0, 3)] if num_parts else []
        tiling = AttentionTiling(
            block_tables=self.tables,
            windows=np.array([(2**31 - 1, 0)] * 2, np.int32),
            sink_positions=None,
            slot_mapping=np.empty(0, np.int64),
            positions=np.array(positions, np.int32),
            tokens=np.arange(len(positions)),
            work=np.array([(*item, 0, 1, 0) for item in work], np.int64),
            num_parts=num_parts,
            starts=np.zeros(len(positions), np.int64),
            merges=np.array(merges, np.int64).reshape(-1, 3),
            parts=np.empty((3, self.heads * (self.rank + 2)), np.float32),
            most_rows=self.heads * max(item[2] for item in work),
            in_turn=num_parts < len(work),
        )
        form = PageForm(self.dtype == "bfloat16", self.width, self.block_size, value_dim=self.rank)
        layout, blocks = latent_layout(self.width, self.block_size, form.item_size), self.blocks
        if self.codec is not None:
            form = form._replace(latent=self.codec.code(self.rank, self.width - self.rank))
            layout, blocks = coded_latent_layout(form.latent, self.block_size), self.coded
        shape = HeadShape(1, self.heads, self.width, self.block_size, self.rank)
        paged_attention(
            out, queries, [blocks], tiling, shape, 0.25 * LOG2_E, 2,
            CodedBlocks(form, layout, NO_CODES),
        )  # fmt: skip
        return out

    def expected(self, query: Array, sequence: int, position: int) -> Array:
        return reference.latent_attention(
            query.reshape(self.heads, -1), seen(self.blocks), self.tables[sequence], position,
            0.25, self.rank, self.block_size, self.group,
        ).reshape(-1)  # fmt: skip


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def latents(request: pytest.FixtureRequest) -> Latents:
    return Latents(*request.param)


def test_rows_are_those_of_the_reference(latents: Latents):
    split = split_tokens(latents.block_size)
    positions = [latents.context - 1, split - 1, split, split + 1, 0]
    queries = latents.queries(5)
    out = latents.run(queries, positions, [(0, 0, 1, 0, 3), (1, 1, 3, 0, 2), (0, 4, 1, 0, 1)])
    for row, sequence in enumerate((0, 1, 1, 1, 0)):
        expected = latents.expected(queries[row], sequence, positions[row])
        assert_close(out[row], expected, latents.dtype)


def test_parts_are_merged_to_the_same_bits(latents: Latents):
    queries, last = latents.queries(1), latents.context - 1
    whole = latents.run(queries, [last], [(0, 0, 1, 0, 3)])
    parts = latents.run(queries, [last], [(0, 0, 1, s, s + 1) for s in range(3)], num_parts=3)
    assert np.array_equal(whole, parts)


@kernel
def _multiply(
    places: int, routines: ProductRoutines, memory: int, target: HeadTarget, x: int, rows: int,
    weights: HeadWeights, num_threads: int,
) -> None:  # fmt: skip
    for thread in prange(num_threads):
        multiply_heads(
            first_phase(places, num_threads), team_of(thread, num_threads, places), routines,
            memory + thread * MEMORY_BYTES, target, x, rows, weights, weights.table,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "rows", "height", "width"), [(3, 1, 32, 48), (5, 7, 40, 24), (2, 230, 100, 16)]
)
def test_each_head_is_multiplied_with_its_own_weight(
    dtype: str, heads: int, rows: int, height: int, width: int
):
    rng = np.random.default_rng(rows)
    x = stored(rng.normal(size=(rows, heads, width)), dtype)
    weight = stored(rng.normal(size=(heads, height, width)), dtype)
    panels = -(-height // PANEL)
    packed = np.zeros((heads, panels * PANEL, width), weight.dtype)
    packed[:, :height] = weight
    packed = packed.reshape(-1, width)
    pack(packed)
    numbers = np.minimum(np.arange(heads * panels + 1), heads * panels - 1)
    table = table_from(packed.ctypes.data + PANEL * packed.strides[0] * numbers)
    out = stored(np.full((rows, heads, height), np.nan), dtype)
    no_bias, counters = np.zeros(PANEL, np.float32), phases(1, 2)
    memory = np.empty(2 * MEMORY_BYTES + 64, np.uint8)
    paired = dtype == "bfloat16"
    _multiply(
        counters.ctypes.data, product_routines(paired), -(-memory.ctypes.data // 64) * 64,
        HeadTarget(sum_routine(False, paired).address, out.ctypes.data, *out.strides,
                   no_bias.ctypes.data),
        x.ctypes.data, rows,
        HeadWeights(table.ctypes.data, heads, height, width // group_of(dtype)), 2,
    )  # fmt: skip
    for head in range(heads):
        expected = reference.product(seen(x)[:, head], seen(weight)[head])
        assert_close(out[:, head], expected, dtype)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("heads", "nope", "rope", "rank"), [(3, 24, 8, 32), (2, 10, 64, 48)])
def test_a_row_is_normed_rotated_and_written(
    paired: bool, heads: int, nope: int, rope: int, rank: int
):
    rng, block_size, offset, eps = np.random.default_rng(rank), 8, 5, 1e-5
    dtype = "bfloat16" if paired else "float32"
    query = rng.normal(size=(heads, nope + rope)).astype(np.float32)
    down, norm = rng.normal(size=rank + rope).astype(np.float32), np.ones(rank, np.float32)
    norm += rng.normal(size=rank).astype(np.float32) * 0.2
    angles = rng.normal(size=rope // 2)
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    plain = stored(np.zeros((heads, nope)), dtype)
    queries = np.full((heads, rank + rope), np.nan, np.float32)
    block = stored(np.full((rank + rope) * block_size, np.nan), dtype)
    wanted_query, wanted_down = query.astype(np.float64), down.astype(np.float64)
    small = np.array([eps], np.float32)
    call_routine(
        latent_routine(paired, paired), query.ctypes.data, down.ctypes.data, plain.ctypes.data,
        queries.ctypes.data, block.ctypes.data, 0, offset, block_size, heads, nope, rope, rank,
        norm.ctypes.data, small.ctypes.data, cosines.ctypes.data, sines.ctypes.data,
    )  # fmt: skip
    assert_close(plain, wanted_query[:, :nope], dtype)
    assert np.isnan(queries[:, :rank]).all()
    turned = reference.rotate(wanted_query[:, nope:], cosines, sines)
    assert_close(queries[:, rank:], turned, "float32")
    written = seen(block).reshape(-1, block_size, group_of(dtype))
    assert np.isnan(np.delete(written, offset, axis=1)).all()
    expected = np.concatenate(
        (
            reference.rms_norm(wanted_down[:rank], norm, eps),
            reference.rotate(wanted_down[rank:], cosines, sines),
        )
    )
    assert_close(written[:, offset].reshape(-1), expected, dtype)
