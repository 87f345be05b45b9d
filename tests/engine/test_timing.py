"""The course of a run; how long it took is nobody's to assert."""

from __future__ import annotations

import pytest
import torch

from engine.conftest import MakeLLM
from pagoda.engine.devices import machine
from pagoda.engine.devices.machine import measure_limits
from pagoda.engine.timing import RequestTimes, RunTimes, time_run
from pagoda.errors import InvalidRequestError
from pagoda.roofline import WorkItem


def test_every_request_runs_to_its_length(make_llm: MakeLLM) -> None:
    llm = make_llm()
    prompt = tuple(range(100, 120))
    times = time_run(llm.engine, [WorkItem(prompt, 5), WorkItem((*prompt, 7), 1)])
    long, short = times.requests
    assert (long.num_output_tokens, short.num_output_tokens) == (5, 1)
    assert times.num_output_tokens == 6
    assert times.num_cached_tokens == 20  # the second waits for what the first computes
    assert 0 < long.first_token_s < long.last_token_s <= times.duration_s
    assert short.first_token_s == short.last_token_s
    assert short.seconds_per_token is None
    assert times.time_per_output_token_s == long.seconds_per_token
    assert not llm.engine.has_unfinished


def test_means_over_requests() -> None:
    requests = (RequestTimes(1.0, 3.0, 5), RequestTimes(2.0, 2.0, 1), RequestTimes(3.0, 4.0, 2))
    times = RunTimes(4.0, requests, 0)
    assert times.time_to_first_token_s == 2.0
    assert times.time_per_output_token_s == 0.75
    assert RunTimes(2.0, requests[1:2], 0).time_per_output_token_s is None


def test_a_refused_request_leaves_nothing_behind(make_llm: MakeLLM) -> None:
    llm = make_llm()
    with pytest.raises(InvalidRequestError, match="prompt=100000: token ids are whole numbers"):
        time_run(llm.engine, [WorkItem((1,), 1), WorkItem((100_000,), 1)])
    assert not llm.engine.has_unfinished


@pytest.mark.parametrize("rates", [(1.0, 4.0), (4.0, 1.0)])
def test_products_are_of_the_dtype_or_of_float32_whichever_is_faster(
    rates: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_dtype = dict(zip((torch.bfloat16, torch.float32), rates, strict=True))
    monkeypatch.setattr(machine, "_product_rate", by_dtype.__getitem__)
    assert measure_limits(torch.bfloat16).product_rate == 4.0


def test_limits_are_measured() -> None:
    limits = measure_limits(torch.float32)
    assert limits.read_bandwidth > 0
    assert limits.product_rate > 0


def test_products_of_bytes_count_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_product_rate", lambda dtype: 1.0)
    assert measure_limits(torch.bfloat16, of_bytes=True).product_rate > 1e8
    assert measure_limits(torch.bfloat16).product_rate == 1.0
