"""Which experts a row goes to, and with what weights.

    scores = softmax or sigmoid of the router's logits
    chosen = the highest of scores + correction, in the best groups of experts where there are some
    weights = scores of the chosen, divided by their sum where they are normalised, · scale

One program has one row. Of equal scores that of the lower number is higher, and there are always as
many experts as wanted, whatever the logits are.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

_LEAST_SUM = tl.constexpr(1e-20)
"""Beside the sum of weights, which sigmoids may leave at 0."""
_OUT = tl.constexpr(-(2**63))
"""The key of what cannot be chosen, or has been."""


class Routing(NamedTuple):
    """How rows are routed; see `models.decoder.ExpertsSpec`."""

    num_experts: int
    num_used: int
    """Experts of each row."""
    uses_softmax: bool
    """Else sigmoids."""
    is_normalised: bool
    scale: float
    num_groups: int = 1
    """Of as many experts each, one after the other."""
    num_used_groups: int = 1
    group_top: int = 1
    """1 or 2: a group's score is the sum of so many of its highest."""


@triton.jit
def keys_of(values, number, inside, tile: tl.constexpr):
    """int64 that order as the values do, float32, and of equal ones as the lower number; NaN is as
    minus infinity. They are `_OUT` where not inside."""
    values = tl.where(values == values, values, float("-inf"))
    bits = values.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(inside, (ordered.to(tl.int64) << 32) | (tile - 1 - number), _OUT)


@triton.jit
def without_highest(keys, count: tl.constexpr):
    """The keys, the `count` highest of them out."""
    for _ in range(count):
        keys = tl.where(keys == tl.max(keys, axis=0), _OUT, keys)
    return keys


@triton.jit
def in_best_groups(
    keys, values, number, size: tl.constexpr, num_groups: tl.constexpr,
    groups_tile: tl.constexpr, num_used_groups: tl.constexpr, group_top: tl.constexpr,
):  # fmt: skip
    """The keys, those of all groups but the best out."""
    group_number = tl.arange(0, groups_tile)
    scores = tl.zeros((groups_tile,), tl.float32)
    for group in range(num_groups):
        own = tl.where(number // size == group, keys, _OUT)
        score = 0.0
        for _ in range(group_top):
            is_best = own == tl.max(own, axis=0)
            score += tl.sum(tl.where(is_best, values, 0.0), axis=0)
            own = tl.where(is_best, _OUT, own)
        scores = tl.where(group_number == group, score, scores)
    group_keys = keys_of(scores, group_number, group_number < num_groups, groups_tile)
    is_left = (without_highest(group_keys, num_used_groups) != _OUT).to(tl.int32)
    for group in range(num_groups):
        is_out = tl.sum(tl.where(group_number == group, is_left, 0), axis=0) != 0
        keys = tl.where((number // size == group) & is_out, _OUT, keys)
    return keys


@triton.jit
def route_kernel(
    chosen, weights, logits, bias, correction,
    stride: tl.constexpr, num_experts: tl.constexpr, tile: tl.constexpr, num_used: tl.constexpr,
    uses_softmax: tl.constexpr, is_normalised: tl.constexpr, scale: tl.constexpr,
    num_groups: tl.constexpr, groups_tile: tl.constexpr, num_used_groups: tl.constexpr,
    group_top: tl.constexpr,
):  # fmt: skip
    """See `route`; tile and groups_tile are powers of two from the experts and groups on."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, tile)
    inside = number < num_experts
    x = tl.load(logits + row * stride + number, mask=inside, other=float("-inf"))
    if bias is not None:
        x += tl.load(bias + number, mask=inside, other=0.0).to(tl.float32)
    if uses_softmax:
        powers = tl.exp(x - tl.max(x, axis=0))
        scores = powers / tl.sum(powers, axis=0)
    else:
        # exp overflows to infinity where x is far below zero: the score is then zero.
        scores = 1.0 / (1.0 + tl.exp(-x))
    values = scores
    if correction is not None:
        values += tl.load(correction + number, mask=inside, other=0.0).to(tl.float32)
    keys = keys_of(values, number, inside, tile)
    if num_used_groups < num_groups:
        keys = in_best_groups(
            keys, values, number, num_experts // num_groups, num_groups, groups_tile,
            num_used_groups, group_top,
        )  # fmt: skip
    is_chosen = keys != without_highest(keys, num_used)
    own = tl.where(is_chosen, scores, 0.0)
    if is_normalised:
        own = own / (tl.sum(own, axis=0) + _LEAST_SUM)
    place = row * num_used + tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
    tl.store(chosen + place, number, mask=is_chosen)
    tl.store(weights + place, own * scale, mask=is_chosen)


def route(
    chosen: Tensor, weights: Tensor, logits: Tensor, bias: Tensor | None,
    correction: Tensor | None, routing: Routing,
) -> None:  # fmt: skip
    """Write each row's experts in ascending order to chosen, and their weights.

    chosen: [T, num_used] int32; weights: [T, num_used] float32; logits: [T, num_experts or more]
    float32, of which the first are looked at; bias, which is added to them, and correction:
    [num_experts], any dtype, or None. All are contiguous.
    """
    num_rows, stride = logits.shape
    count = routing.num_experts
    assert chosen.shape == weights.shape == (num_rows, routing.num_used)
    assert stride >= count
    assert all(each is None or each.shape == (count,) for each in (bias, correction))
    assert chosen.is_contiguous()
    assert weights.is_contiguous()
    assert logits.is_contiguous()
    tile = max(2, triton.next_power_of_2(count))
    route_kernel[(num_rows,)](
        chosen, weights, logits, bias, correction,
        stride=stride, tile=tile, groups_tile=triton.next_power_of_2(routing.num_groups),
        **routing._asdict(), num_warps=1 if tile <= 256 else 4,
    )  # fmt: skip
