"""A layer's experts, compiled, beside the plain reference."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from expert_layers import LISTS, Layer, in_panels, some_weights
from numba import njit

from pagoda.errors import UnsupportedModelError
from pagoda.execution.cpu.addresses import Addresses
from pagoda.execution.cpu.expert_table import expert_fields
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.execution.reference_experts import run_experts
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.experts import MOST_EXPERTS
from pagoda.kernels.cpu.number import integer_at
from pagoda.models.decoder import Activation, ExpertsSpec, MLPSpec
from pagoda.models.stored_rows import StoredRows
from pagoda.models.weight_memory import HostMemory
from pagoda.sizing.kept_weights import matrix_bytes
from stored_blocks import random_rows

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
"""Relative to the largest value: bfloat16 rounds what is gated."""

SHARED = MLPSpec(48)
CASES = {
    "two": (ExpertsSpec(2, 1, 16), 32),
    "odd sizes": (ExpertsSpec(5, 3, 38, normalised=False), 70),
    "all of them": (ExpertsSpec(4, 4, 96), 64),
    "many": (ExpertsSpec(64, 8, 32), 96),
    "groups": (
        ExpertsSpec(
            16, 4, 40, scoring="sigmoid", scale=2.5, correction_bias=True, num_groups=4,
            num_used_groups=2, group_top=2, shared=SHARED,
        ),
        64,
    ),
    "a shared gate": (
        ExpertsSpec(7, 2, 20, normalised=False, shared=SHARED, shared_gate=True), 34,
    ),
    "wide": (ExpertsSpec(3, 2, 16, shared=MLPSpec(8), shared_gate=True), 1100),
    "biases": (
        ExpertsSpec(8, 2, 44, bias=True, router_bias=True, shared=MLPSpec(6, bias=True)), 64,
    ),
    "clamped": (
        ExpertsSpec(
            32, 4, 64, bias=True, router_bias=True, activation=Activation.CLAMPED_SWIGLU
        ), 64,
    ),
}  # fmt: skip
ROWS = (1, 2, 7, 40)


def assert_near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    largest = max(1.0, expected.abs().max().item())
    assert (found - expected).abs().max().item() <= TOLERANCE[dtype] * largest


def some_rows(num_rows: int, hidden: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(num_rows)
    return torch.randn(num_rows, hidden).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_experts_are_those_of_the_reference(name: str, dtype: torch.dtype):
    spec, hidden = CASES[name]
    torch.manual_seed(0)
    weights = some_weights(spec, hidden, dtype)
    layer = Layer(spec, in_panels(weights), dtype)
    for num_rows in ROWS:
        x = some_rows(num_rows, hidden, dtype)
        expected = run_experts(x.double(), spec, weights)
        assert_near(layer.run(x), expected, dtype)
        stream = torch.randn(num_rows, hidden)
        before = stream.clone()
        layer.run(x, stream)
        assert_near(stream - before, expected, dtype)


@pytest.mark.threads
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_not_a_bit_depends_on_other_rows_or_threads(name: str, dtype: torch.dtype):
    spec, hidden = CASES[name]
    layer = Layer(spec, in_panels(some_weights(spec, hidden, dtype)), dtype, num_threads=2)
    alone = Layer(spec, layer.weights, dtype)
    x = some_rows(40, hidden, dtype)
    together = layer.run(x)
    for row in range(len(x)):
        assert torch.equal(alone.run(x[row : row + 1]), together[row : row + 1])
    same = x[3:4].expand(200, -1).contiguous()  # all of them go to the same experts
    assert torch.equal(layer.run(same), together[3:4].expand(200, -1))


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("num_rows", [1, 40])
def test_who_is_alone_does_the_items_of_others_too(num_rows: int, first: int):
    """Its own come first: those of earlier experts are found when it has been at later ones."""
    spec, hidden = ExpertsSpec(6, 3, 96), 64
    weights = in_panels(some_weights(spec, hidden, torch.bfloat16))
    x = some_rows(num_rows, hidden, torch.bfloat16)
    team = Layer(spec, weights, torch.bfloat16, num_threads=3, first_thread=first)
    assert torch.equal(team.run(x), Layer(spec, weights, torch.bfloat16).run(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_expert_makes_of_a_row_what_a_plain_part_does(dtype: torch.dtype):
    """Bit for bit: the shared expert, which is one, has the weights of the only other."""
    spec, hidden = ExpertsSpec(1, 1, 80, shared=MLPSpec(80)), 600
    one = some_weights(spec, hidden, dtype)
    same = replace(one, shared_gate=one.gate[0], shared_up=one.up[0], shared_down=one.down[0])
    both = Layer(spec, in_panels(same), dtype)
    alone = Layer(replace(spec, shared=None), both.weights, dtype)
    for num_rows in (*ROWS, 200):
        x = some_rows(num_rows, hidden, dtype)
        assert torch.equal(both.run(x), 2 * alone.run(x))


def test_rows_lie_together_by_expert():
    spec, hidden = CASES["many"]
    dtype = torch.float32
    layer = Layer(spec, in_panels(some_weights(spec, hidden, dtype)), dtype)
    num_rows = 23
    x = some_rows(num_rows, hidden, dtype)
    layer.run(x)
    chosen = integers(layer.work.chosen, num_rows * spec.num_used).reshape(num_rows, -1)
    starts = integers(layer.work.starts, spec.num_experts + 1)
    sources = integers(layer.work.sources, num_rows * spec.num_used)
    places = integers(layer.work.places, num_rows * spec.num_used).reshape(num_rows, -1)
    for expert in range(spec.num_experts):
        own = sources[starts[expert] : starts[expert + 1]]
        assert own.tolist() == [row for row in range(num_rows) if expert in chosen[row]]
    for row in range(num_rows):
        assert (sources[places[row]] == row).all()
    gathered = layer.workspace.array("expert gathered", len(sources), hidden, np.dtype(np.float32))
    assert np.array_equal(gathered, x.numpy()[sources])


@njit
def read_integers(out: Array, address: int) -> None:
    for i in range(len(out)):
        out[i] = integer_at(address, i, 32)


def integers(address: int, count: int) -> Array:
    """Copied from where they lie."""
    out = np.empty(count, np.int64)
    read_integers(out, address)
    return out


def kept_matrix(kind: str, width: int, depth: int, seed: int) -> tuple[PanelMatrix, torch.Tensor]:
    """A random matrix that keeps its type, and the same, de-quantised."""
    blocks = random_rows(kind, width, depth, seed)
    stored = StoredRows(
        name="a weight",
        type=kind,
        shape=(width, depth),
        nbytes=blocks.nbytes,
        blocks=lambda first, count: blocks[first : first + count],
        read=lambda target: None,
        release=lambda: None,
    )
    memory = HostMemory(matrix_bytes([stored], 2), 1)
    plain = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    return PanelMatrix.stored([stored], torch.bfloat16, memory), torch.from_numpy(plain).bfloat16()


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("num_used", [1, 3])
def test_experts_may_keep_the_type_of_their_file(num_used: int, rounds: bool):
    hidden, inner, dtype = 256, 512, torch.bfloat16
    spec = ExpertsSpec(6, num_used, inner, shared=MLPSpec(256))
    torch.manual_seed(0)
    weights = some_weights(spec, hidden, dtype)
    panels, plain = in_panels(weights), weights
    for place, name in enumerate(LISTS):
        shape = (hidden, inner) if name == "down" else (inner, hidden)
        pairs = [kept_matrix("Q4_K", *shape, 10 * place + each) for each in range(6)]
        panels = replace(panels, **{name: tuple(kept for kept, _ in pairs)})
        plain = replace(plain, **{name: tuple(matrix for _, matrix in pairs)})
    kept = Layer(spec, panels, dtype, rounds=rounds)
    decoded = Layer(spec, in_panels(plain), dtype)
    together = None
    for num_rows in reversed((*ROWS, 90)):
        x = some_rows(90, hidden, dtype)[:num_rows]
        found, expected = kept.run(x), decoded.run(x)
        if rounds:
            assert (found - expected).abs().max() < 0.03 * expected.abs().max()
        else:
            assert torch.equal(found, expected)
        together = found if together is None else together
        assert torch.equal(found, together[:num_rows])


def test_more_experts_than_a_thread_can_route_to_are_refused():
    spec = ExpertsSpec(MOST_EXPERTS + 1, 2, 16)
    weights = in_panels(some_weights(ExpertsSpec(2, 1, 2), 2, torch.float32))
    with pytest.raises(UnsupportedModelError, match="num_experts"):
        expert_fields(spec, weights, torch.float32, 0, Addresses())
