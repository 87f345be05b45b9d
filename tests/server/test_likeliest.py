"""Fewer candidates than were computed, where two fields ask for a token's."""

from __future__ import annotations

import pytest
import torch

from pagoda.engine.sampling.logprobs import token_logprobs
from pagoda.server.logprobs import likeliest


@pytest.mark.parametrize("num_values", [3, 1000], ids=["ties", "hardly any ties"])
@pytest.mark.parametrize("num_top", [0, 1, 4, 6])
def test_candidates_that_are_cut_are_those_that_fewer_would_have_been(
    num_top: int, num_values: int
) -> None:
    logits = torch.randint(num_values, (50, 12), generator=torch.manual_seed(3)).float()
    targets = [row % 12 for row in range(50)]
    many, few = (token_logprobs(logits, targets, num) for num in (6, num_top))
    cut = [likeliest(each, num_top) for each in many]
    assert [list(each.items()) for each in cut] == [list(each.items()) for each in few]
