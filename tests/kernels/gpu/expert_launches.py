"""What the compile check compiles of the kernels of experts; see `launch`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from launch import Launch, integers, numbers

from pagoda.kernels.gpu.combine import combine
from pagoda.kernels.gpu.expert_rows import ExpertRows, sort_rows
from pagoda.kernels.gpu.expert_tiles import first_of_many, most_tiles
from pagoda.kernels.gpu.grouped_product import gated_product, grouped_product
from pagoda.kernels.gpu.route import Routing, route

CASES = (
    # routing, hidden size, inner size, activation, dtype
    (Routing(8, 2, True, True, 1.0), 4096, 14336, "silu", torch.bfloat16),
    (Routing(128, 4, True, True, 1.0), 2880, 2880, "clamped_swiglu", torch.bfloat16),
    (Routing(256, 8, False, True, 2.5, 8, 4, 2), 7168, 2048, "silu", torch.float16),
    (Routing(60, 4, True, False, 1.0), 2048, 1408, "gelu_tanh", torch.float32),
    (Routing(5, 2, True, True, 1.0), 1000, 712, "silu", torch.bfloat16),
)


def expert_launches() -> Iterator[Launch]:
    """All kernels on the way of few rows and of many through experts of some sizes."""
    for routing, hidden, inner, activation, dtype in CASES:
        experts, used = routing.num_experts, routing.num_used
        name = f"{experts} experts {hidden} {inner} {dtype}"
        new = partial(numbers, dtype=dtype)
        gate, down = new(experts, inner, hidden), new(experts, hidden, inner)
        for how_many, num_rows in (("few", 8), ("many", first_of_many(experts))):
            own, pairs = f"{name}, {how_many} rows", num_rows * used
            tiles = integers(most_tiles(pairs, experts), 3)
            rows = ExpertRows(integers(pairs), integers(experts), tiles, used)
            chosen = integers(num_rows, used)
            weights = numbers(num_rows, used, dtype=torch.float32)
            logits = numbers(num_rows, experts + 1, dtype=torch.float32)
            gated, parts = new(pairs, inner), new(pairs, hidden)
            out, bias, gate_bias = new(num_rows, hidden), new(experts), new(experts, inner)
            for one in (None, bias):
                yield Launch(
                    f"route {own}", partial(route, chosen, weights, logits, one, one, routing)
                )
            yield Launch(f"sort_rows {own}", partial(sort_rows, rows, chosen))
            for one, two in ((None, None), (gate_bias, new(experts, hidden))):
                yield Launch(
                    f"gated_product {own}",
                    partial(gated_product, gated, out, rows, gate, gate, one, one, activation),
                )
                yield Launch(
                    f"grouped_product {own}",
                    partial(grouped_product, parts, gated, rows, down, two),
                )
            yield Launch(f"combine {own}", partial(combine, out, parts, weights, has_shared=False))
            yield Launch(
                f"combine {own}, shared",
                partial(
                    combine,
                    out,
                    parts,
                    weights,
                    has_shared=True,
                    logits=logits,
                    gate_column=experts,
                ),
            )
