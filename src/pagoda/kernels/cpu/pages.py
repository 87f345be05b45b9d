"""How kernels reach the blocks of a layer."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from pagoda.kernels.page_layout import PageLayout


class CodeFields(NamedTuple):
    """What a layer's codes are made with and read by: addresses, each 0 where there is none.

    Tables and matrices are of each KV head; rows are multiplied with matrices from the left.
    """

    key_levels: int
    """As `level_tables` lays them out"""
    key_bounds: int
    """[num_kv_heads, TABLE_SIZE] float32; see `encode_routine`"""
    key_weights: int
    """[num_kv_heads, head_dim] float32, as `value_weights`: what errors count"""
    value_levels: int
    value_bounds: int
    value_weights: int
    key_mean: int
    """[num_kv_heads, head_dim] float32: taken out of keys before they are turned"""
    query_turn: int
    """[num_kv_heads] matrices as `turn.matrix_groups` lays them out, as the next three"""
    key_turn: int
    value_turn: int
    output_turn: int
    """It turns what attention gives back from the basis of values."""


class LayerPages(NamedTuple):
    """The blocks of a layer: where things lie, and what codes stand for."""

    layout: PageLayout
    item_size: int
    """Bytes of a number that products take, of queries and weights as of K and V."""
    codes: CodeFields


@njit(error_model="numpy")
def matrix_bytes(pages: LayerPages, head_dim: int) -> int:
    """Of a head's matrix."""
    return head_dim * head_dim * pages.item_size


NO_CODES = CodeFields(*[0] * len(CodeFields._fields))
"""Those of plain numbers."""
