"""Families of traces that are made up."""

from __future__ import annotations

from itertools import islice

import pytest

from pagoda.cache import CacheManager
from pagoda.errors import InvalidOptionError
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.find_trace import find_trace
from pagoda.replay.synthetic import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_the_same_for_the_same_seed(family: str) -> None:
    trace = find_trace(f"synthetic:{family}?requests=300&seed=4")
    first, again = list(trace), list(trace)
    assert first == again
    assert len(first) == trace.num_requests == 300
    assert first != list(find_trace(f"synthetic:{family}?requests=300&seed=5"))
    times = [request.arrival_s for request in first]
    assert times == sorted(times)
    for request in first:
        assert request.num_prompt_tokens > 0 < request.num_output_tokens
        assert len(request.unit_ids) == request.num_tokens // 16


@pytest.mark.parametrize(
    ("family", "low", "high"),
    [("chat", 0.6, 0.95), ("agents", 0.8, 0.99), ("rag", 0.05, 0.6), ("system", 0.85, 0.95)],
)
def test_what_a_family_shares(family: str, low: float, high: float) -> None:
    trace = find_trace(f"synthetic:{family}?requests=150&seed=1")
    assert low < replay_cache(trace, CacheManager(10**6, 16)).hit_rate < high


def test_documents_are_told_apart() -> None:
    trace = find_trace("synthetic:rag?requests=2000&documents=4&chosen=1&system=0&document=160")
    beginnings = [request.unit_ids[0] for request in trace]
    assert len(set(beginnings)) == 4
    counts = sorted((beginnings.count(each) for each in set(beginnings)), reverse=True)
    assert counts[0] > counts[1] > counts[3]


def test_conversations_may_begin_as_seldom_as_is_let_in() -> None:
    assert len(list(find_trace("synthetic:chat?requests=200&rate=1e-6"))) == 200


def test_requests_are_made_as_they_are_asked_for() -> None:
    trace = find_trace("synthetic:chat?requests=1000000000")
    assert len(list(islice(trace, 10))) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic:", "trace='synthetic:': synthetic: and one of chat, agents, rag, system"),
        ("synthetic:talk?requests=1", "one of chat, agents"),
        ("synthetic:chat?requests", "behind [?] come numbers"),
        ("synthetic:chat?requests=x", "requests='x': must be a whole number"),
        ("synthetic:chat?requests=0", "requests=0: must be above 0"),
        ("synthetic:chat?rate=nan", "rate='nan': must be a number"),
        ("synthetic:chat?rate=1e-308", "rate=1e-308: must be at least 1e-06 a second"),
        ("synthetic:chat?turns=-1", "turns=-1.0: must be from 0 to 1,000,000,000"),
        ("synthetic:chat?users=5", "users='5': is no number of a family: requests, seed"),
        ("synthetic:chat?long_share=2", "long_share=2.0: must be at most 1"),
        ("synthetic:chat?chosen=2", "chosen=2: at most 0 documents"),
        ("synthetic:chat?message=1e9", "message=1000000000.0: must be from 0 to 1,000,000"),
        ("synthetic:chat?system=1000001", "system=1000001: must be from 0 to 1,000,000"),
        ("synthetic:rag?chosen=2000&document=800", "chosen=2000: at most 1,250 of so long docum"),
        ("synthetic:rag?documents=2000000&document=0&chosen=2000000", "chosen=2000000: at most 1,"),
        ("", "trace='': must be a file"),
    ],
)
def test_names_that_cannot_be_are_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        find_trace(name)


def test_a_family_has_no_format() -> None:
    with pytest.raises(InvalidOptionError, match="format='mooncake': is for files alone"):
        find_trace("synthetic:chat", "mooncake")
