from __future__ import annotations

import numpy as np
import pytest
import torch
from samplers import PARAMS, logits_of, row_of

from pagoda.engine.cpu_sampler import CPUSampler


@pytest.mark.parametrize("name", PARAMS)
def test_the_vocabulary_is_not_sorted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("sorted")

    for function in ("topk", "sort", "argsort"):
        monkeypatch.setattr(torch.Tensor, function, refuse)
    for function in ("sort", "argsort", "partition", "argpartition"):
        monkeypatch.setattr(np, function, refuse)
    assert len(CPUSampler().sample(logits_of(5, 1000), [row_of(PARAMS[name], output=[1])] * 5)) == 5
