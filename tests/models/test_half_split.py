"""The order of rows for a rotation of halves, by transformers' rotations of neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels import reference
from pagoda.models.half_split import half_split_order
from pagoda.models.part import Part, RotatedHeads


def test_neighbours_of_the_part_that_rotates_go_to_its_halves() -> None:
    assert half_split_order(8, 6).tolist() == [0, 2, 4, 1, 3, 5, 6, 7]
    assert half_split_order(4, 4).tolist() == [0, 2, 1, 3]
    assert half_split_order(4, 0).tolist() == [0, 1, 2, 3]


@given(st.integers(1, 3), st.integers(0, 8), st.integers(0, 5), st.booleans())
def test_each_head_is_put_into_the_order(
    num_heads: int, num_pairs: int, others: int, of_vectors: bool
) -> None:
    head_dim = 2 * num_pairs + others + 1
    shape = (num_heads * head_dim, 3) if of_vectors else (num_heads * head_dim,)
    rows = np.random.default_rng(head_dim).normal(size=shape)
    order = half_split_order(head_dim, 2 * num_pairs)
    assert sorted(order) == list(range(head_dim))
    part = Part("q", rows.shape, RotatedHeads(head_dim, 2 * num_pairs))
    found = rows[part.rows(0, len(rows))]
    for row, place in enumerate(np.arange(num_heads)[:, None] * head_dim + order):
        own = slice(row * head_dim, (row + 1) * head_dim)
        assert np.array_equal(found[own], rows[place])


@pytest.mark.parametrize(("family", "share"), [("glm4", 0.5), ("glm4", 0.25), ("cohere2", 1.0)])
def test_products_are_those_of_neighbours(family: str, share: float) -> None:
    """Of queries and keys at any positions, projected by rows in their order."""
    import importlib

    rotation = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    head_dim, length = 16, 5
    rotary_dim = int(head_dim * share)
    rng = np.random.default_rng(rotary_dim)
    q_rows, k_rows = rng.normal(size=(2, 2 * head_dim, 8))
    x = rng.normal(size=(length, 8))
    angles = rng.uniform(0, 6, size=(length, rotary_dim // 2))

    doubled = np.concatenate([angles, angles], 1)
    if family == "cohere2":
        doubled = np.repeat(angles, 2, axis=1)
    theirs = [
        torch.from_numpy((x @ rows.T).reshape(1, length, 2, head_dim)).transpose(1, 2)
        for rows in (q_rows, k_rows)
    ]
    cosine, sine = (torch.from_numpy(f(doubled))[None] for f in (np.cos, np.sin))
    q, k = rotation.apply_rotary_pos_emb(*theirs, cosine, sine)
    expected = (q @ k.transpose(2, 3))[0].numpy()

    part = Part("q", (2 * head_dim, 8), RotatedHeads(head_dim, rotary_dim))
    own = part.rows(0, 2 * head_dim)
    ours = [(x @ rows[own].T).reshape(length, 2, head_dim) for rows in (q_rows, k_rows)]
    q, k = (
        np.stack(
            [
                reference.rotate(heads[t], np.cos(angles[t]), np.sin(angles[t]))
                for t in range(length)
            ]
        )
        for heads in ours
    )
    np.testing.assert_allclose(np.einsum("qhd,khd->hqk", q, k), expected, rtol=1e-5, atol=1e-5)
