"""Attention of many rows of one sequence, in PyTorch, over K and V gathered from the pages."""

from __future__ import annotations

import torch
from torch.nn import functional

from pagoda.execution.plan import PrefillPlan
from pagoda.models.decoder import AttentionSpec
from pagoda.storage.kv_storage import LayerStorage


def attend_prefill(
    out: torch.Tensor,
    queries: torch.Tensor,
    layer: LayerStorage,
    plan: PrefillPlan,
    spec: AttentionSpec,
) -> None:
    """Write to out what the rows see: [rows, num_heads * head_dim], as queries, of their dtype.

    The K and V of the rows themselves are read back from the cache too, so that a token sees the
    same numbers whether its context was computed in this step or long ago.
    """
    heads, head_dim = spec.num_heads, spec.head_dim
    num_rows = queries.shape[0]
    q = queries.view(num_rows, heads, head_dim).transpose(0, 1)
    keys = layer.keys[plan.block_ids]  # [blocks, kv heads, head_dim, block_size]
    k = keys.permute(1, 0, 3, 2).reshape(spec.num_kv_heads, -1, head_dim)[:, : plan.context_len]
    values = layer.values[plan.block_ids]  # [blocks, kv heads, block_size, head_dim]
    v = values.transpose(0, 1).reshape(spec.num_kv_heads, -1, head_dim)[:, : plan.context_len]
    mask = plan.masks[spec.sliding_window]
    seen = functional.scaled_dot_product_attention(
        q[None],
        k[None].to(q.dtype),
        v[None].to(q.dtype),
        attn_mask=mask,
        is_causal=mask is None,
        scale=spec.scale,
        enable_gqa=heads != spec.num_kv_heads,
    )
    out.view(num_rows, heads, head_dim).copy_(seen[0].transpose(0, 1))
