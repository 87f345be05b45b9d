"""Where the keys lie that are read after a split: memory is asked for them meanwhile."""

from __future__ import annotations

from numba import njit

from pagoda.kernels.cpu.attention_scratch import Scratch, split_tokens
from pagoda.kernels.cpu.attention_tiling import TilingAddresses, WorkItem, work_item
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.number import integer_at, put_integer
from pagoda.kernels.cpu.page_product import value_blocks_ahead
from pagoda.kernels.cpu.pages import LayerPages


@njit(error_model="numpy")
def put_next_keys(
    scratch: Scratch, blocks: int, pages: LayerPages, work: WorkItem, next_item: int, split: int,
    tiling: TilingAddresses, shape: HeadShape,
) -> None:  # fmt: skip
    """Write to `scratch.next_keys` where K of a split of an item lies, of its first blocks; behind
    the item's last split, of the next item's first."""
    if split == work.end_split:
        if next_item < tiling.num_items:
            work = work_item(tiling, next_item)
            split = work.first_split
        else:
            split -= 1  # there is nothing to ask for: this is in cache
    layout, first = pages.layout, split * split_tokens(shape.block_size) // shape.block_size
    keys = blocks + work.first_head * layout.key_head_bytes
    table = tiling.block_tables + work.sequence * tiling.table_bytes
    put_keys_of(
        scratch.next_keys, keys, layout.block_bytes, table, first, tiling.table_width,
        shape.block_size,
    )  # fmt: skip


@njit(error_model="numpy")
def put_keys_of(
    target: int, keys: int, block_bytes: int, table: int, first: int, width: int, block_size: int
) -> None:
    """Write where K lies of block table[first] and those after it, as many as are asked for ahead.

    target: address of as many int64; keys: of the first head's, were it in block 0; table: of
    `width` int32, beyond which the last one counts.
    """
    for number in range(value_blocks_ahead(block_size)):
        block = integer_at(table, min(first + number, width - 1), 32)
        put_integer(target, number, keys + block * block_bytes, 64)
