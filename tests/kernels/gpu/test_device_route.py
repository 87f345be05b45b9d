from __future__ import annotations

import numpy as np
import pytest
import torch
from device_tensors import DEVICE, random_tensor, wide
from hypothesis import given
from hypothesis import strategies as st

from pagoda.execution.reference_experts import route as reference_route
from pagoda.kernels.gpu.route import Routing, route
from pagoda.models.decoder import ExpertsSpec

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # exp of the interpreter


def routing(spec: ExpertsSpec) -> Routing:
    return Routing(
        spec.num_experts, spec.num_used, spec.scoring == "softmax", spec.normalised, spec.scale,
        spec.num_groups, spec.num_used_groups, spec.group_top,
    )  # fmt: skip


def routed(
    logits: torch.Tensor, spec: ExpertsSpec, bias: torch.Tensor | None = None,
    correction: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    shape = (len(logits), spec.num_used)
    chosen = torch.full(shape, -1, dtype=torch.int32, device=DEVICE)
    weights = torch.full(shape, torch.nan, device=DEVICE)
    route(chosen, weights, logits, bias, correction, routing(spec))
    return chosen, weights


@st.composite
def specs(draw: st.DrawFn) -> ExpertsSpec:
    num_groups, size = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    num_used_groups = draw(st.integers(1, num_groups))
    return ExpertsSpec(
        num_groups * size,
        draw(st.integers(1, num_used_groups * size)),
        16,
        scoring=draw(st.sampled_from(("softmax", "sigmoid"))),
        normalised=draw(st.booleans()),
        scale=draw(st.sampled_from((1.0, 2.5))),
        num_groups=num_groups,
        num_used_groups=num_used_groups,
        group_top=draw(st.integers(1, min(2, size))),
    )


@given(specs(), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(0, 1))
def test_rows_go_where_the_reference_sends_them(
    spec: ExpertsSpec, num_rows: int, has_bias: bool, has_correction: bool, num_more: int
) -> None:
    rng = np.random.default_rng(spec.num_experts)
    count = spec.num_experts
    logits = random_tensor(rng, (num_rows, count + num_more), torch.float32, 2.0)
    bias = random_tensor(rng, (count,), torch.float16) if has_bias else None
    correction = random_tensor(rng, (count,), torch.float32) if has_correction else None
    chosen, weights = routed(logits, spec, bias, correction)
    own = torch.from_numpy(wide(logits[:, :count]))
    if bias is not None:
        own += torch.from_numpy(wide(bias))
    wanted, expected = reference_route(own, spec, None if correction is None else correction.cpu())
    assert torch.equal(chosen.cpu().long(), wanted)
    assert torch.allclose(weights.cpu().double(), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf, -torch.inf])
def test_of_equal_scores_the_lower_numbers_are_taken_whatever_they_are(
    scoring: str, value: float
) -> None:
    spec = ExpertsSpec(
        12, 5, 16, scoring=scoring, num_groups=3, num_used_groups=2, group_top=2
    )  # fmt: skip
    with np.errstate(invalid="ignore"):
        chosen, _ = routed(torch.full((2, 12), value, device=DEVICE), spec)
    assert chosen.tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("num_groups", [1, 4])
def test_a_rows_experts_depend_on_it_alone(num_groups: int) -> None:
    spec = ExpertsSpec(32, 6, 16, num_groups=num_groups, num_used_groups=-(-num_groups // 2))
    logits = random_tensor(np.random.default_rng(0), (9, 32), torch.float32)
    together = routed(logits, spec)
    for row in range(9):
        alone = routed(logits[row : row + 1].clone(), spec)
        for one, all_rows in zip(alone, together, strict=True):
            assert torch.equal(one[0], all_rows[row])
