"""What the device does at its best: copying memory, and multiplying matrices."""

from __future__ import annotations

from functools import partial

import torch

from gpu_parts.results import Job
from gpu_parts.setting import Limits, Setting
from gpu_parts.shapes import shape_of
from pagoda.models.decoder import DecoderSpec

_MIB = 2**20
_COPY_BYTES = (512 * _MIB, 1024 * _MIB, 2048 * _MIB, 4096 * _MIB)
"""Far more than any L2 holds, so that what is written has left it by the end."""
_TINY_COPY_BYTES = (_MIB // 4,)
_LARGE = ((8192, 8192, 8192), (16384, 8192, 8192), (8192, 16384, 8192))
_TINY_LARGE = ((64, 64, 64),)


def measure_limits(setting: Setting, job: Job) -> Limits:
    """Copies of several sizes and products of several shapes; the best of each is the limit."""
    bandwidth = max(_copies(setting, job))
    rates = []
    for shape in _TINY_LARGE if setting.tiny else _LARGE:
        with job.attempt(f"product of {shape}"):
            rates.append(_product(setting, job, "large", *shape))
    for model in setting.models:
        for rows in (16,) if setting.tiny else (256, 8192):
            for name, width, depth in _matrices(shape_of(model).spec):
                label = f"{model} {name}"
                with job.attempt(label):
                    rates.append(_product(setting, job, label, rows, width, depth))
    return Limits(bandwidth, max(rates))


def _copies(setting: Setting, job: Job) -> list[float]:
    rates = []
    for size in _TINY_COPY_BYTES if setting.tiny else _COPY_BYTES:
        if 3 * size > setting.free_bytes():
            job.left_out(f"copy of {size // _MIB} MiB", "it does not fit")
            continue
        source = torch.ones(size // 4, dtype=torch.int32, device=setting.device)
        target = torch.empty_like(source)
        timing = setting.clock.time(partial(target.copy_, source))
        rates.append(2 * size / timing.best)
        reading = setting.clock.time(source.max)
        job.add(
            f"copy of {size // _MIB} MiB: {rates[-1] / 1e9:,.0f} GB/s",
            kind="copy",
            bytes=size,
            best_bandwidth=rates[-1],
            median_bandwidth=2 * size / timing.median,
            best_read_bandwidth=size / reading.best,
        )
    return rates


def _product(setting: Setting, job: Job, name: str, rows: int, width: int, depth: int) -> float:
    """Operations a second of [rows, depth] · [width, depth]ᵀ, of random numbers."""
    like = {"dtype": setting.dtype, "device": setting.device}
    x = torch.randn(rows, depth, **like)
    weight = torch.randn(width, depth, **like)
    out = torch.empty(rows, width, **like)
    timing = setting.clock.time(lambda: torch.mm(x, weight.t(), out=out))
    operations = 2 * rows * width * depth
    job.add(
        f"product {name}, {rows} x {depth} x {width}: "
        f"{operations / timing.best / 1e12:,.1f} TFLOP/s",
        kind="product",
        name=name,
        shape=[rows, depth, width],
        best_rate=operations / timing.best,
        median_rate=operations / timing.median,
        weight_bandwidth=weight.nbytes / timing.best,
    )
    return operations / timing.best


def _matrices(spec: DecoderSpec) -> list[tuple[str, int, int]]:
    """Name, rows and columns of a layer's matrices."""
    attention, inner = spec.layers[0].attention, spec.layers[0].mlp.intermediate_size
    hidden, head_dim = spec.hidden_size, attention.head_dim
    return [
        ("qkv", (attention.num_heads + 2 * attention.num_kv_heads) * head_dim, hidden),
        ("o", hidden, attention.num_heads * head_dim),
        ("gate_up", 2 * inner, hidden),
        ("down", hidden, inner),
    ]
