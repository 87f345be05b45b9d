"""Attention of others on the same numbers: PyTorch's SDPA and FlexAttention, FlashInfer.

Each gets keys and values in the layout it wants, laid out before the clock starts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from gpu_parts.paged_inputs import PagedInputs

_SDPA_BACKENDS = {
    "as PyTorch chooses": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_FLEX_PAGE = 128
_FLASHINFER_BYTES = 256 * 2**20
"""Its workspace; its documentation recommends 128 MiB."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way in which a peer can do it."""

    peer: str
    way: str
    run: Callable[[], torch.Tensor]
    rows: Callable[[torch.Tensor], torch.Tensor]
    """From what `run` returns to [tokens, Hq, D]."""


Lay = Callable[[PagedInputs], Iterator[Attempt]]
"""Lays the inputs out for a peer; raises where it cannot run."""


def decode_peers(*, tiny: bool) -> dict[str, Lay]:
    """Peers for one query a sequence; all contexts are of one length."""
    peers: dict[str, Lay] = {"SDPA": _sdpa_decode, "FlexAttention": partial(_flex_decode, tiny)}
    if importlib.util.find_spec("flashinfer") is not None:
        for way, tensor_cores in (("CUDA cores", False), ("tensor cores", True)):
            peers[f"FlashInfer on {way}"] = partial(_flashinfer_decode, way, tensor_cores)
    return peers


def prefill_peers(*, tiny: bool) -> dict[str, Lay]:
    """Peers for whole prompts of one length."""
    return {"SDPA": _sdpa_prefill, "FlexAttention": partial(_flex_prefill, tiny)}


def _batched(inputs: PagedInputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query [S, Hq, L, D], keys and values [S, Hkv, context, D]."""
    count = len(inputs.spans)
    heads = inputs.heads
    query = inputs.query.view(count, -1, heads.num_heads, heads.head_dim).transpose(1, 2)
    keys, values = (
        torch.stack([inputs.dense(index)[kind] for index in range(count)]) for kind in (0, 1)
    )
    return query.contiguous(), keys, values


def _flat(inputs: PagedInputs) -> Callable[[torch.Tensor], torch.Tensor]:
    """From [S, Hq, L, D] to [S L, Hq, D]."""
    return lambda out: out.transpose(1, 2).reshape(inputs.query.shape)


def _sdpa(
    run: Callable[[], torch.Tensor], backend: SDPBackend | None
) -> Callable[[], torch.Tensor]:
    if backend is None:
        return run

    def chosen() -> torch.Tensor:
        with sdpa_kernel(backend):
            return run()

    return chosen


def _sdpa_decode(inputs: PagedInputs) -> Iterator[Attempt]:
    """Heads of a group as they are, and as rows of one query: the same, and often faster."""
    query, keys, values = _batched(inputs)
    heads, count = inputs.heads, len(inputs.spans)
    folded = query.view(count, heads.num_kv_heads, heads.group_size, heads.head_dim)
    ways = {
        "grouped heads": partial(
            scaled_dot_product_attention, query, keys, values, scale=heads.scale, enable_gqa=True
        ),
        "heads as rows": partial(
            scaled_dot_product_attention, folded, keys, values, scale=heads.scale
        ),
    }
    for way, run in ways.items():
        for name, backend in _SDPA_BACKENDS.items():
            rows = lambda out: out.reshape(inputs.query.shape)  # noqa: E731
            yield Attempt("SDPA", f"{way}, {name}", _sdpa(run, backend), rows)


def _sdpa_prefill(inputs: PagedInputs) -> Iterator[Attempt]:
    query, keys, values = _batched(inputs)
    run = partial(
        scaled_dot_product_attention, query, keys, values,
        is_causal=True, scale=inputs.heads.scale, enable_gqa=True,
    )  # fmt: skip
    for name, backend in _SDPA_BACKENDS.items():
        yield Attempt("SDPA", name, _sdpa(run, backend), _flat(inputs))


def _compiled(inputs: PagedInputs) -> Callable[..., torch.Tensor]:
    """FlexAttention is a kernel only once it is compiled; on a CPU its plain form will do."""
    if inputs.query.device.type == "cpu":
        return flex_attention
    return torch.compile(flex_attention, dynamic=False)


def _flex_decode(tiny: bool, inputs: PagedInputs) -> Iterator[Attempt]:
    """Over pages in random order; contexts are whole pages, so no page needs a mask."""
    heads, device = inputs.heads, inputs.query.device
    page = 16 if tiny else _FLEX_PAGE
    count, context = len(inputs.spans), inputs.spans[0].context
    own = context // page
    order = np.random.default_rng(0).permutation(count * own).astype(np.int32)
    table = torch.from_numpy(order).to(device).view(count, own)
    keys, values = (_paged(inputs, table, page, kind) for kind in (0, 1))
    query = inputs.query.view(count, heads.num_heads, 1, heads.head_dim)
    run = partial(
        _compiled(inputs), query, keys, values, block_mask=_page_mask(table, page),
        scale=heads.scale, enable_gqa=True,
    )  # fmt: skip
    yield Attempt("FlexAttention", f"pages of {page}", run, lambda out: out[:, :, 0])


def _paged(inputs: PagedInputs, table: torch.Tensor, page: int, kind: int) -> torch.Tensor:
    """Keys or values in pages of another size: [1, Hkv, pages · page, D]."""
    heads = inputs.heads
    paged = inputs.query.new_empty(heads.num_kv_heads, table.numel(), page, heads.head_dim)
    for index, pages in enumerate(table.long()):
        shape = (heads.num_kv_heads, len(pages), page, heads.head_dim)
        paged[:, pages] = inputs.dense(index)[kind].view(shape)
    return paged.view(1, heads.num_kv_heads, -1, heads.head_dim)


def _page_mask(table: torch.Tensor, page: int) -> BlockMask:
    """Every sequence sees its own pages, and those whole."""
    count, own = table.shape
    num_pages = table.numel()
    owner = torch.empty(num_pages, dtype=torch.int32, device=table.device)
    owner[table.flatten().long()] = torch.arange(
        count, dtype=torch.int32, device=table.device
    ).repeat_interleave(own)

    def own_page(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor):
        return owner[kv // page] == b

    indices = torch.zeros((count, 1, 1, num_pages), dtype=torch.int32, device=table.device)
    none = torch.zeros((count, 1, 1), dtype=torch.int32, device=table.device)
    full = indices.clone()
    full[:, 0, 0, :own] = table
    return BlockMask.from_kv_blocks(
        none, indices, torch.full_like(none, own), full,
        BLOCK_SIZE=(128, page), mask_mod=own_page, seq_lengths=(1, num_pages * page),
    )  # fmt: skip


def _flex_prefill(tiny: bool, inputs: PagedInputs) -> Iterator[Attempt]:
    query, keys, values = _batched(inputs)
    length = query.shape[2]

    def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor):
        return q >= kv

    mask = create_block_mask(
        causal, None, None, length, length, device=query.device, BLOCK_SIZE=16 if tiny else 128
    )
    run = partial(
        _compiled(inputs), query, keys, values, block_mask=mask, scale=inputs.heads.scale,
        enable_gqa=True,
    )  # fmt: skip
    yield Attempt("FlexAttention", "causal blocks", run, _flat(inputs))


def _flashinfer_decode(way: str, tensor_cores: bool, inputs: PagedInputs) -> Iterator[Attempt]:
    """Reads the very blocks: its layout HND is [blocks, 2, Hkv, block_size, D]."""
    import flashinfer

    heads, device = inputs.heads, inputs.query.device
    counts = [-(-span.context // heads.block_size) for span in inputs.spans]
    indptr = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32, device=device)
    indices = torch.cat([inputs.tables[index, :count] for index, count in enumerate(counts)])
    last = [(span.context - 1) % heads.block_size + 1 for span in inputs.spans]
    workspace = torch.zeros(_FLASHINFER_BYTES, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "HND", use_tensor_cores=tensor_cores
    )
    wrapper.plan(
        indptr, indices, torch.tensor(last, dtype=torch.int32, device=device),
        heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.block_size,
        pos_encoding_mode="NONE", q_data_type=inputs.query.dtype, kv_data_type=inputs.blocks.dtype,
    )  # fmt: skip
    run = partial(wrapper.run, inputs.query, inputs.blocks)
    yield Attempt("FlashInfer", way, run, lambda out: out)
