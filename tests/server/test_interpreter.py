"""The interpreter of a server."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from pagoda.server.interpreter import set_up_interpreter


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval_s)


def test_what_is_loaded_is_collected_no_more_and_a_large_body_seldom() -> None:
    runs = []
    set_up_interpreter()
    assert gc.get_freeze_count() > 10_000
    gc.callbacks.append(lambda phase, info: runs.append(phase))
    made = [[] for _ in range(20_000)]
    gc.callbacks.pop()
    assert len(made) == 20_000
    assert runs.count("start") < 10
