"""Relative errors of every kernel against float64, on random shapes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from gpu_parts.paged_inputs import Heads, PagedInputs, Span, relative_error
from gpu_parts.results import Job
from gpu_parts.setting import DTYPE_NAMES, Limits, Setting
from pagoda.kernels.gpu.activation import apply_gate
from pagoda.kernels.gpu.head_norms import HeadNorms
from pagoda.kernels.gpu.norm import RowNorm, add_and_norm, norm_rows
from pagoda.kernels.gpu.rotary import rotate_and_store

_EPS = 1e-6
_MOST_CHECKED = 256
"""Queries of each sequence, the last ones: scores of more take much memory in float64."""


class Draw:
    """Random shapes, the same in every run."""

    def __init__(self, setting: Setting, dtype: torch.dtype, seed: int) -> None:
        self._source = random.Random(seed)
        self._tiny = setting.tiny
        self.generator = setting.generator(seed)
        self.like = torch.empty(0, dtype=dtype, device=setting.device)

    def heads(self) -> Heads:
        """Groups of 1 to 16 heads, of sizes that are powers of two and others."""
        pick = self._source.choice
        if self._tiny:
            return Heads(4, pick((1, 2, 4)), pick((16, 24)), pick((4, 16)), pick((None, 8)))
        kv_heads, group = pick((1, 2, 4, 8)), pick((1, 2, 3, 4, 5, 7, 8, 16))
        dim, block_size = pick((64, 80, 96, 128, 256)), pick((16, 32, 64))
        return Heads(kv_heads * group, kv_heads, dim, block_size, pick((None, None, 1024)))

    def spans(self, most: int, queries: Callable[[int], int]) -> list[Span]:
        """Sequences of all lengths; `queries` says how many tokens of a context are new."""
        most, count = (24, 2) if self._tiny else (most, 6)
        contexts = [self._source.randint(1, most) for _ in range(count)]
        return [Span(context, queries(context)) for context in contexts]

    def chunk(self, context: int) -> int:
        """The last tokens of a context, or all."""
        return self._source.choice((context, self._source.randint(1, context)))

    def sizes(self) -> tuple[int, int]:
        """Rows and columns."""
        if self._tiny:
            return self._source.randint(1, 4), self._source.choice((16, 24))
        return self._source.randint(1, 2048), self._source.choice((576, 1024, 4096, 5120, 14336))

    def rope(self, heads: Heads) -> tuple[int, bool]:
        """Values that turn, halved: all, half, or none of a head; and whether q and k are normed"""
        halves = (heads.head_dim // 2, heads.head_dim // 2, heads.head_dim // 4, 0)
        return self._source.choice(halves), self._source.random() < 0.5

    def normal(self, *shape: int) -> torch.Tensor:
        """Normal numbers of the dtype under test."""
        return self.like.new_empty(shape).normal_(generator=self.generator)

    def normal32(self, *shape: int) -> torch.Tensor:
        """Likewise, in float32."""
        return self.normal(*shape).float()


Check = Callable[[Draw], tuple[str, float]]
"""Draws a shape, runs a kernel on it; what it was, and the relative error."""


def measure_accuracy(setting: Setting, job: Job, limits: Limits) -> None:
    """The largest error of each kernel over several shapes."""
    num_shapes = 1 if setting.tiny else 4 if setting.quick else 8
    for kernel, check in CHECKS.items():
        with job.attempt(f"accuracy of {kernel}"):
            checked = [check(Draw(setting, setting.dtype, seed)) for seed in range(num_shapes)]
            case, error = max(checked, key=lambda each: each[1])
            job.add(
                f"{kernel}: relative error {error:.1e} at most, {case}",
                kernel=kernel,
                dtype=DTYPE_NAMES[setting.dtype],
                num_shapes=num_shapes,
                worst_case=case,
                largest_relative_error=error,
                errors=[error for _, error in checked],
                within_bound=error <= 1e-2,
            )


def _decode(draw: Draw) -> tuple[str, float]:
    heads = draw.heads()
    inputs = PagedInputs(heads, draw.spans(4096, lambda context: 1), draw.like, draw.generator)
    inputs.decode()()
    return _named(inputs), inputs.error(inputs.out, sequences=len(inputs.spans), last=1)


def _prefill(draw: Draw) -> tuple[str, float]:
    heads = draw.heads()
    inputs = PagedInputs(heads, draw.spans(2048, draw.chunk), draw.like, draw.generator)
    inputs.prefill()()
    error = inputs.error(inputs.out, sequences=len(inputs.spans), last=_MOST_CHECKED)
    return _named(inputs), error


def _named(inputs: PagedInputs) -> str:
    heads = inputs.heads
    window = "" if heads.window is None else f", window {heads.window}"
    spans = " ".join(f"{span.num_queries}/{span.context}" for span in inputs.spans)
    return (
        f"{heads.num_heads} heads on {heads.num_kv_heads} of {heads.head_dim}, "
        f"blocks of {heads.block_size}{window}, new/context {spans}"
    )


def _norm(draw: Draw) -> tuple[str, float]:
    rows, width = draw.sizes()
    stream, weight = draw.normal32(rows, width), draw.normal(width)
    out = draw.like.new_empty(rows, width)
    truth = _normed(stream.double(), weight)
    norm_rows(out, stream, weight, RowNorm(_EPS))
    return f"{rows} x {width}", relative_error(out, truth)


def _add_norm(draw: Draw) -> tuple[str, float]:
    rows, width = draw.sizes()
    stream, delta = draw.normal32(rows, width), draw.normal(rows, width)
    weight, out = draw.normal(width), draw.like.new_empty(rows, width)
    summed = stream.double() + delta.double()
    add_and_norm(out, stream, delta, weight, RowNorm(_EPS))
    errors = relative_error(out, _normed(summed, weight)), relative_error(stream, summed)
    return f"{rows} x {width}", max(errors)


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + _EPS).rsqrt() * weight.double()


def _activation(draw: Draw) -> tuple[str, float]:
    rows, width = draw.sizes()
    gate_up, out = draw.normal(rows, 2 * width), draw.like.new_empty(rows, width)
    apply_gate(out, gate_up, "silu")
    gate, up = gate_up.double().chunk(2, dim=-1)
    return f"{rows} x {width}", relative_error(out, torch.nn.functional.silu(gate) * up)


def _rotary(draw: Draw) -> tuple[str, float]:
    """Queries, and what the slots hold."""
    heads, (rows, _) = draw.heads(), draw.sizes()
    half, normed = draw.rope(heads)
    counts = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
    qkv = draw.normal(rows, sum(counts) * heads.head_dim)
    query = draw.like.new_empty(rows, heads.num_heads, heads.head_dim)
    num_blocks = -(-rows // heads.block_size) + 1
    shape = (num_blocks, 2, heads.num_kv_heads, heads.block_size, heads.head_dim)
    blocks, device = draw.like.new_zeros(shape), qkv.device
    angles = torch.rand(2 * rows, half, device=device, generator=draw.generator) * 6.3
    positions = torch.randperm(2 * rows, device=device, generator=draw.generator)[:rows]
    slots = torch.randperm(num_blocks * heads.block_size, device=device, generator=draw.generator)[
        :rows
    ].contiguous()
    weights = [draw.normal(heads.head_dim) if normed else None for _ in range(2)]
    cosines, sines = angles.cos(), angles.sin()
    norms = HeadNorms(*weights, _EPS)
    rotate_and_store(query, qkv, blocks, positions.int(), slots, cosines, sines, norms)
    turn = cosines[positions].double()[:, None], sines[positions].double()[:, None]
    parts = qkv.double().view(rows, -1, heads.head_dim).split(counts, dim=1)
    q, k = (
        _turned(x if weight is None else _normed(x, weight), *turn)
        for x, weight in zip(parts[:2], weights, strict=True)
    )
    stored = blocks.permute(1, 0, 3, 2, 4).reshape(2, -1, *k.shape[1:])[:, slots]
    pairs = ((query, q), (stored[0], k), (stored[1], parts[2]))
    case = f"{rows} rows, {heads.num_heads} heads on {heads.num_kv_heads} of {heads.head_dim}"
    return f"{case}, {2 * half} turn", max(relative_error(*pair) for pair in pairs)


def _turned(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """x: [rows, heads, D]; cosines and sines: [rows, 1, half]."""
    half = cosines.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat((*turned, rest), dim=-1)


CHECKS: dict[str, Check] = {
    "decode attention": _decode,
    "prefill attention": _prefill,
    "norm": _norm,
    "add and norm": _add_norm,
    "activation": _activation,
    "rotary and cache write": _rotary,
}
