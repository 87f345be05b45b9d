from __future__ import annotations

import numpy as np
import pytest
import torch
from device_tensors import DEVICE, DTYPES, HAS_GPU, assert_near, random_tensor, wide
from expert_rows_of import choose, sorted_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.activation import ACTIVATIONS
from pagoda.kernels.gpu.combine import combine
from pagoda.kernels.gpu.grouped_product import gated_product, grouped_product

DOT_DTYPES = DTYPES if HAS_GPU else DTYPES[:2]
"""The interpreter's products know no bfloat16."""

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # exp of the interpreter


def linear(x: Array, weight: torch.Tensor, bias: torch.Tensor | None, expert: int) -> Array:
    product = wide(weight[expert]) @ x
    return product if bias is None else product + wide(bias[expert])


@settings(max_examples=30)
@given(
    st.sampled_from((1, 2, 5, 70)), st.integers(1, 5), st.sampled_from((1, 16, 63, 70, 130)),
    st.sampled_from((8, 32, 64, 100)), st.sampled_from(DOT_DTYPES), st.booleans(),
    st.sampled_from(ACTIVATIONS), st.integers(0, 99),
)  # fmt: skip
def test_products_are_those_of_each_pairs_expert(
    num_rows: int, num_experts: int, width: int, depth: int, dtype: torch.dtype, has_bias: bool,
    activation: str, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    chosen = choose(rng, num_rows, num_experts, -(-num_experts // 2))
    rows = sorted_rows(chosen, num_experts)
    pairs, order = chosen.reshape(-1), rows.order.tolist()
    x = random_tensor(rng, (num_rows, depth), dtype)
    scale = depth**-0.5
    gate, up = (random_tensor(rng, (num_experts, width, depth), dtype, scale) for _ in range(2))
    biases = [
        random_tensor(rng, (num_experts, width), dtype) if has_bias else None for _ in range(2)
    ]
    gated = torch.full((len(pairs), width), torch.nan, dtype=dtype, device=DEVICE)
    gated_product(gated, x, rows, gate, up, *biases, activation)
    expected = [
        np.concatenate(
            [
                linear(wide(x[pair // chosen.shape[1]]), weight, bias, int(pairs[pair]))
                for weight, bias in zip((gate, up), biases, strict=True)
            ]
        )
        for pair in order
    ]
    assert_near(gated, reference.gated(np.array(expected), activation), 4.0)

    down = random_tensor(rng, (num_experts, depth, width), dtype, width**-0.5)
    bias = random_tensor(rng, (num_experts, depth), dtype) if has_bias else None
    parts = torch.full((len(pairs), depth), torch.nan, dtype=dtype, device=DEVICE)
    grouped_product(parts, gated, rows, down, bias)
    for place, pair in enumerate(order):
        own = linear(wide(gated[place]), down, bias, int(pairs[pair]))
        assert_near(parts[pair], own, 8.0)


def test_not_a_bit_depends_on_other_rows_where_there_are_as_many() -> None:
    """Whoever they are, and wherever among them a row is: in tiles of one height."""
    rng = np.random.default_rng(0)
    num_experts, depth, width = 4, 100, 70
    gate, up = (random_tensor(rng, (num_experts, width, depth), torch.float32) for _ in range(2))
    down = random_tensor(rng, (num_experts, depth, width), torch.float32)
    own = random_tensor(rng, (1, depth), torch.float32)
    found = []
    for count, place, seed in ((9, 0, 1), (9, 8, 2), (30, 17, 3)):
        chosen = choose(np.random.default_rng(seed), count, num_experts, 2)
        chosen[place] = (1, 3)
        x = random_tensor(rng, (count, depth), torch.float32)
        x[place] = own[0]
        rows = sorted_rows(chosen, num_experts)
        gated, parts = x.new_empty(2 * count, width), x.new_empty(2 * count, depth)
        gated_product(gated, x, rows, gate, up, None, None, "silu")
        grouped_product(parts, gated, rows, down, None)
        found.append(parts[2 * place : 2 * place + 2])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@given(
    st.integers(0, 4), st.sampled_from((1, 70, 1024, 1500)), st.integers(1, 5),
    st.sampled_from(DTYPES), st.sampled_from(("", "shared", "gated")), st.integers(0, 99),
)  # fmt: skip
def test_parts_are_weighed_and_summed(
    num_rows: int, width: int, num_used: int, dtype: torch.dtype, shared: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    out = random_tensor(rng, (num_rows, width), dtype)
    if not shared:
        out.fill_(torch.nan)
    parts = random_tensor(rng, (num_rows * num_used, width), dtype)
    weights = random_tensor(rng, (num_rows, num_used), torch.float32)
    logits = random_tensor(rng, (num_rows, 3), torch.float32)
    by_row = wide(parts).reshape(num_rows, num_used, width)
    expected = (wide(weights)[:, :, None] * by_row).sum(axis=1)
    if shared:
        gate = 1 / (1 + np.exp(-wide(logits)[:, 2:])) if shared == "gated" else 1.0
        expected += wide(out) * gate
    combine(
        out, parts, weights, has_shared=bool(shared), gate_column=2,
        logits=logits if shared == "gated" else None,
    )  # fmt: skip
    assert_near(out, expected, 8.0)
