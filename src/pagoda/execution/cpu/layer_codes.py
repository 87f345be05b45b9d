"""What kernels need to know of a layer's codec: their form, tables and matrices."""

from __future__ import annotations

import numpy as np

from pagoda.codecs import Codec, SideCodec
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.level_tables import bound_trees, head_tables
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.pages import NO_CODES, CodeFields
from pagoda.kernels.cpu.turn import matrix_groups
from pagoda.kernels.cpu.vector import UNIT
from pagoda.kernels.cpu.whole_form import meets_whole
from pagoda.storage.cpu_storage import CPULayer


def page_form(layer: CPULayer, *, is_paired: bool) -> PageForm:
    """Codes are multiplied as bfloat16 where the model computes in it and a CPU multiplies pairs of
    it; else, and in blocks of odd size, as float32. But keys that are levels in a basis, which
    spreads what queries ask for or knows where it is, meet queries as whole numbers, where the
    model computes in bfloat16 and a CPU can.

    is_paired: the model's weights and activations are bfloat16.
    """
    codec, size, block_size = layer.codec, layer.head_size, layer.block_size
    if codec is None and layer.latent is None:
        paired = layer.array.dtype == np.uint16
        return PageForm(paired, size, block_size, value_dim=layer.value_size)
    paired = is_paired and UNIT.pairs and block_size % 2 == 0
    if codec is None:
        return PageForm(paired, size, block_size, value_dim=layer.value_size, latent=layer.latent)
    key = codec.key.code(size)
    wide = _front(codec, size) if is_paired and meets_whole(key, block_size) else None
    return PageForm(paired, size, block_size, key, codec.value.code(size), wide=wide)


def fits(codec: Codec | None) -> tuple[str, str]:
    """How the scales of keys and of values are chosen."""
    return ("", "") if codec is None else (codec.key.fit, codec.value.fit)


def coded_form(layer: CPULayer) -> tuple[object, ...]:
    """What kernels are compiled for: layers where it is equal have the same code."""
    codec, size = layer.codec, layer.head_size
    if codec is None:
        return () if layer.latent is None else (layer.latent,)
    return codec.key.code(size), codec.value.code(size), *fits(codec), _front(codec, size)


def _front(codec: Codec, head_size: int) -> int | None:
    """`Basis.front` of keys; None: they have no basis."""
    basis = codec.key.basis(head_size)
    return None if basis is None else basis.front


def code_fields(layer: CPULayer, form: PageForm, kept: list[Array]) -> CodeFields:
    """Addresses of a codec's tables and matrices, which are added to `kept`."""
    if layer.codec is None:
        return NO_CODES

    def of_each_head(values: Array | None, num_axes: int) -> int:
        """The address of what each head has, or all have; `num_axes`: of one head's."""
        if values is None:
            return 0
        shape = (layer.num_kv_heads, *values.shape[-num_axes:])
        kept.append(np.ascontiguousarray(np.broadcast_to(values, shape)))
        return int(kept[-1].ctypes.data)

    def matrices(basis: Array | None) -> int:
        if basis is None:
            return 0
        assert basis.shape[-2:] == (layer.head_size, layer.head_size)
        return of_each_head(matrix_groups(basis, form.paired), 2)

    def tables_of(codec: SideCodec) -> tuple[int, int, int]:
        levels, bounds = codec.tables or (None, None)
        tables = None if levels is None else head_tables(levels)
        trees = None if bounds is None else bound_trees(bounds)
        return of_each_head(tables, 1), of_each_head(trees, 1), of_each_head(codec.weights, 1)

    key, value = layer.codec.key, layer.codec.value
    keys, values = key.basis(layer.head_size), value.basis(layer.head_size)
    return CodeFields(
        *tables_of(key),
        *tables_of(value),
        key_mean=of_each_head(layer.codec.key_mean, 1),
        query_turn=matrices(keys and keys.queries),
        key_turn=matrices(keys and keys.vectors),
        value_turn=matrices(values and values.vectors),
        output_turn=matrices(values and values.queries.swapaxes(-1, -2)),
    )
