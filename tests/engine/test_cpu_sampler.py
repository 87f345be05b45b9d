from __future__ import annotations

import numpy as np
import pytest
import torch
from samplers import PARAMS, logits_of, row_of, sample

from pagoda.engine.sampling.cpu_sampler import CPUSampler


@pytest.mark.parametrize("name", PARAMS)
def test_the_vocabulary_is_not_sorted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("sorted")

    for function in ("topk", "sort", "argsort"):
        monkeypatch.setattr(torch.Tensor, function, refuse)
    for function in ("sort", "argsort", "partition", "argpartition"):
        monkeypatch.setattr(np, function, refuse)
    assert (
        len(sample(CPUSampler(), logits_of(5, 1000), [row_of(PARAMS[name], output=[1])] * 5)) == 5
    )
