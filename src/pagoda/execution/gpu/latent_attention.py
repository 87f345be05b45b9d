"""Attention of a layer that keeps latents (DeepSeek-V2): launches from its first product on.

    q_down, norm | queries | kv_down | norm, rotate and store | key_up | decode, merge
    | prefill, merge | value_up

Keys and values of heads are never made: queries are absorbed, prefilled ones too, so that a token
that was found in the cache meets the same latents as one that was just computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagoda.execution.gpu.inputs import StepInputs
from pagoda.execution.gpu.layer_attention import Rotation
from pagoda.execution.gpu.product import product
from pagoda.execution.gpu.workspace import LayerMemory
from pagoda.kernels.gpu.head_product import head_product
from pagoda.kernels.gpu.latent_decode import latent_decode
from pagoda.kernels.gpu.latent_form import LatentForm
from pagoda.kernels.gpu.latent_prefill import latent_prefill
from pagoda.kernels.gpu.latent_rows import rotate_and_store_latents
from pagoda.kernels.gpu.norm import RowNorm, norm_rows
from pagoda.kernels.gpu.prefill_tiling import AttentionKind
from pagoda.models.decoder import LatentAttentionSpec
from pagoda.models.weights import LayerWeights


class LatentMemory(NamedTuple):
    """As `LatentShape.arrays` has them."""

    q_down: torch.Tensor
    """[T, Q], which queries are made of; without numbers where that is the stream"""
    rows: torch.Tensor
    """[T, H, nope + R], queries as they are made"""
    down: torch.Tensor
    """[T, r + R], latents and shared keys as they are made"""
    query: torch.Tensor
    """[T, H, r + R], absorbed and rotated"""
    latents: torch.Tensor
    """[T, H, r], what queries see"""
    attended: torch.Tensor
    """[T, H, v], values made of it"""


class LatentAttention(NamedTuple):
    """See `LayerAttention`."""

    spec: LatentAttentionSpec
    group: int
    """Of the cache."""
    kind: AttentionKind
    weights: LayerWeights[torch.Tensor]
    blocks: torch.Tensor
    """[num_blocks, block_size, r + R], or [num_blocks, bytes] of codes"""
    form: LatentForm | None
    """Of codes; None: plain numbers"""
    rotation: Rotation

    def run(self, inputs: StepInputs, hidden: torch.Tensor, memory: LayerMemory) -> torch.Tensor:
        """See `LayerAttention`."""
        own, weights = LatentMemory(*memory.attention), self.weights
        assert weights.key_up is not None
        assert weights.value_up is not None
        self._make_rows(hidden, own)
        self._store(inputs, own)
        spec = self.spec
        plain, absorbed = own.rows[:, :, : spec.nope_dim], own.query[:, :, : spec.rank]
        head_product(absorbed, plain, weights.key_up)
        tables = inputs.groups[self.group].block_tables
        if len(inputs.decode_rows):
            latent_decode(
                own.latents, own.query, self.blocks, tables, inputs.context_lens,
                inputs.decode_rows, inputs.decode_sequences, spec.scale, memory.partial,
                self.form,
            )  # fmt: skip
        tiling = inputs.prefill.get(self.kind)
        if tiling is not None:
            latent_prefill(
                own.latents, own.query, self.blocks, tables, tiling, spec.scale, memory.partial,
                self.form,
            )  # fmt: skip
        head_product(own.attended, own.latents, weights.value_up.mT)
        return own.attended

    def _make_rows(self, hidden: torch.Tensor, memory: LatentMemory) -> None:
        """Queries, latents and keys, as they are before they are normed and rotated."""
        weights, source = self.weights, hidden
        assert weights.kv_down is not None
        if weights.q_down is not None:
            assert weights.q_norm is not None
            source = memory.q_down
            product(source, hidden, weights.q_down, weights.q_down_bias)
            norm_rows(source, source, weights.q_norm, RowNorm(self.spec.norm_eps))
        product(memory.rows.flatten(1), source, weights.qkv, weights.qkv_bias)
        product(memory.down, hidden, weights.kv_down, weights.kv_down_bias)

    def _store(self, inputs: StepInputs, memory: LatentMemory) -> None:
        """Latents and keys to the cache, and what of queries is rotated to its place."""
        norm = self.weights.k_norm
        assert norm is not None
        rotate_and_store_latents(
            memory.query, memory.rows, memory.down, self.blocks, inputs.positions,
            inputs.groups[self.group].slot_mapping, *self.rotation, norm, self.spec.norm_eps,
            self.form,
        )  # fmt: skip
