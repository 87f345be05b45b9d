"""Kernels that read and write each number once: norm, rotary with cache write, activation, copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_parts.results import Job
from gpu_parts.setting import Limits, Setting
from gpu_parts.shapes import Shape, shape_of
from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.kernels.gpu.activation import apply_gate
from pagoda.kernels.gpu.head_norms import HeadNorms
from pagoda.kernels.gpu.norm import RowNorm, add_and_norm
from pagoda.kernels.gpu.rotary import rotate_and_store
from pagoda.storage.gpu_storage import GPUStorage

_BLOCK_SIZE = 16
_ROWS = (256, 8192)
"""A decode step of many sequences, and a full step of prompts."""
_TINY_ROWS = (4,)
_STREAM_BYTES = 4
"""The residual stream is float32."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A kernel's launch, and the bytes that it cannot do without."""

    kernel: str
    moved_bytes: int
    run: Callable[[], None]


def measure_streaming(setting: Setting, job: Job, limits: Limits) -> None:
    """Each kernel's share of the copy bandwidth, in the shape of the first model."""
    shape = shape_of(setting.models[0])
    for rows in _TINY_ROWS if setting.tiny else _ROWS:
        for make in (_norm, _rotary, _activation):
            with job.attempt(f"{make.__name__.strip('_')}, {rows:,} rows"):
                _measure(setting, job, limits, make(setting, shape, rows), f"{rows:,} rows")
    for num_copies in (2,) if setting.tiny else (64, 1024):
        with job.attempt(f"block copy, {num_copies:,} blocks"):
            copies = _block_copy(setting, shape, num_copies)
            _measure(setting, job, limits, copies, f"{num_copies:,} blocks of all layers")


def _measure(setting: Setting, job: Job, limits: Limits, each: Pass, case: str) -> None:
    each.run()
    timing = setting.clock.time(each.run)
    share = each.moved_bytes / timing.median / limits.copy_bandwidth
    job.add(
        f"{each.kernel}, {case}: {timing.median * 1e6:,.1f} us, {share:.0%} of the limit",
        kernel=each.kernel,
        case=case,
        engine="pagoda",
        way="",
        bytes=each.moved_bytes,
        bound="copy",
        best_seconds=timing.best,
        median_seconds=timing.median,
        share=share,
    )


def _norm(setting: Setting, shape: Shape, rows: int) -> Pass:
    hidden = shape.spec.hidden_size
    stream = torch.randn(rows, hidden, device=setting.device)
    delta = torch.randn(rows, hidden, device=setting.device).to(setting.dtype)
    out, weight = torch.empty_like(delta), torch.ones_like(delta[0])
    moved = 2 * stream.nbytes + delta.nbytes + out.nbytes
    norm = RowNorm(shape.spec.norm.eps)
    return Pass("add and norm", moved, lambda: add_and_norm(out, stream, delta, weight, norm))


def _rotary(setting: Setting, shape: Shape, rows: int) -> Pass:
    attention = shape.spec.layers[0].attention
    heads, kv_heads, dim = attention.num_heads, attention.num_kv_heads, attention.head_dim
    device = setting.device
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * dim, device=device).to(setting.dtype)
    query = qkv.new_empty(rows, heads, dim)
    num_blocks = -(-rows // _BLOCK_SIZE)
    blocks = qkv.new_zeros(num_blocks, 2, kv_heads, _BLOCK_SIZE, dim)
    positions = torch.arange(rows, dtype=torch.int32, device=device)
    slots = torch.randperm(num_blocks * _BLOCK_SIZE, device=device)[:rows].contiguous()
    angles = torch.rand(rows, dim // 2, device=device)
    cosines, sines = angles.cos(), angles.sin()
    norm = torch.ones_like(qkv[0, :dim]) if attention.qk_norm else None
    norms = HeadNorms(norm, norm, shape.spec.norm.eps)
    moved = 2 * qkv.nbytes + cosines.nbytes + sines.nbytes
    return Pass(
        "rotary and cache write",
        moved,
        lambda: rotate_and_store(query, qkv, blocks, positions, slots, cosines, sines, norms),
    )


def _activation(setting: Setting, shape: Shape, rows: int) -> Pass:
    width = shape.spec.layers[0].mlp.intermediate_size
    gate_up = torch.randn(rows, 2 * width, device=setting.device).to(setting.dtype)
    out = gate_up.new_empty(rows, width)
    return Pass("activation", gate_up.nbytes + out.nbytes, lambda: apply_gate(out, gate_up, "silu"))


def _block_copy(setting: Setting, shape: Shape, num_copies: int) -> Pass:
    """The storage's own call, with the transfer of block ids in it. Counted is one reading and one
    writing of each block; the kernel does both twice, since sources are put aside first."""
    attention = shape.spec.layers[0].attention
    layer = AttentionLayerSpec(attention.num_kv_heads, attention.head_dim, setting.dtype_name)
    spec = CacheSpec((layer,) * len(shape.spec.layers), _BLOCK_SIZE)
    storage = GPUStorage(spec, 2 * num_copies, setting.device)
    sources, targets = range(num_copies), range(num_copies, 2 * num_copies)
    return Pass(
        "block copy",
        2 * num_copies * spec.block_bytes,
        lambda: storage.copy_blocks(list(sources), list(targets)),
    )
