"""What a spec of experts may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagoda.errors import ModelError
from pagoda.models.decoder import Activation, ExpertsSpec, MLPSpec


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("num_used", {"num_used": 0}),
        ("num_used", {"num_used": 9}),
        ("num_used", {"num_used": 5, "num_groups": 4, "num_used_groups": 2}),
        ("num_groups", {"num_groups": 3}),
        ("num_groups", {"num_groups": 0}),
        ("num_groups", {"num_experts": 0}),
        ("num_used_groups", {"num_used_groups": 2}),
        ("num_used_groups", {"num_used_groups": 0}),
        ("group_top", {"group_top": 3}),
        ("group_top", {"group_top": 2, "num_groups": 8, "num_used_groups": 2}),
        ("scoring", {"scoring": "tanh"}),
        ("shared_gate", {"shared_gate": True}),
        ("shared.activation", {"shared": MLPSpec(4, Activation.GELU_TANH)}),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(field: str, change: dict[str, Any]):
    with pytest.raises(ModelError) as caught:
        replace(ExpertsSpec(8, 2, 16), **change)
    assert caught.value.field == field
