"""Thousands of requests that nobody meant: no crash, no 500, and the engine answers on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from checkpoints import CASES, write_checkpoint
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.server.app import create_app
from pagoda.server.options import ServerOptions
from server.fake_engine import FakeEngine
from server.live import live_server

NUM_MUTATIONS = 7000
NUM_BY_SCHEMA = 800
"""For each of the routes."""
QUIET = list(HealthCheck)
OPTIONS = ServerOptions(dev_mode=True, max_body_bytes=2**20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> AsyncEngine:
    """A real engine with a model of a few thousand numbers, which knows bytes."""
    place = write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])
    options = EngineOptions(str(place), max_model_len=48, kv_cache_memory_bytes=2**24)
    return AsyncEngine.load(options)


@pytest.fixture(scope="module")
def url(tiny: AsyncEngine) -> Iterator[str]:
    with live_server(tiny, OPTIONS) as url:
        yield url


schema = schemathesis.openapi.from_dict(create_app(FakeEngine(), OPTIONS).openapi())  # type: ignore[arg-type]


@schema.parametrize()
@settings(max_examples=NUM_BY_SCHEMA, deadline=None, suppress_health_check=QUIET, database=None)
def test_whatever_the_schema_allows_or_forbids(case: schemathesis.Case, url: str) -> None:
    case.call_and_validate(base_url=url, checks=[not_a_server_error])


GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": "hello", "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "n": 2,
        "min_p": 0.1, "seed": 1, "stop": ["x"], "stop_token_ids": [3], "logprobs": 2, "echo": True,
        "logit_bias": {"5": 1.5}, "presence_penalty": 0.5, "frequency_penalty": 0.5, "stream": True,
        "repetition_penalty": 1.1, "min_tokens": 1, "priority": 1, "cache_salt": "s", "user": "u",
        "stream_options": {"include_usage": True}, "prompt_logprobs": 1, "ignore_eos": True,
        "include_stop_str_in_output": True, "skip_special_tokens": False, "suffix": "",
        "structured_outputs": {"choice": ["a", "b"]}, "guided_regex": "[ab]{1,3}",
    },
    "/v1/chat/completions": {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}],
        "max_completion_tokens": 4, "temperature": 0.5, "n": 2, "logprobs": True, "top_logprobs": 2,
        "stream": True, "stream_options": {"include_usage": True}, "stop": "x", "seed": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto", "parallel_tool_calls": False,
    },
    "/tokenize": {"prompt": "hello", "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"tokens": [72, 73]},
}  # fmt: skip
BOUNDARIES = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, 2**64, 10**9, 10**400, -(2**63), 0.5, 1e308, -1e-320, float("nan"),
     float("inf"), "", "\ud800", "\x00", "x" * 5000, [], [[]], {}, {"a": {}}, None, True, False]
)  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | BOUNDARIES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, Any]:
    """A route and a body of which a few parts were replaced, dropped or put elsewhere."""
    route = draw(st.sampled_from(sorted(GOOD)))
    body = json.loads(json.dumps(GOOD[route]))
    for name in draw(st.lists(st.sampled_from(sorted(body)), max_size=len(body), unique=True)):
        del body[name]
    for name in draw(st.lists(st.sampled_from(sorted(GOOD[route])), min_size=1, max_size=3)):
        place, key = body, name
        if isinstance(body.get(name), list) and body[name] and draw(st.booleans()):
            place, key = body[name], 0
            if isinstance(place[0], dict) and draw(st.booleans()):
                place, key = place[0], draw(st.sampled_from(["role", "content", "name"]))
        place[key] = deepcopy(draw(JUNK))  # the same list may be drawn again
    return route, draw(st.sampled_from([body, [body], {"x": body}])) if draw(
        st.integers(0, 40)
    ) == 0 else body


def post(client: httpx.Client, route: str, body: Any) -> httpx.Response:
    """As a careless client would: NaN, infinity and lone surrogates are sent as they are."""
    headers = {"content-type": "application/json"}
    return client.post(route, content=json.dumps(body), headers=headers)


def check(response: httpx.Response) -> None:
    assert response.status_code in (200, 400, 404, 413), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert "Traceback" not in error["message"]
    else:
        assert "server_error" not in response.text


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@settings(max_examples=NUM_MUTATIONS, deadline=None, suppress_health_check=QUIET, database=None)
@given(request=mutated())
def test_mutated_requests(request: tuple[str, Any], client: httpx.Client) -> None:
    check(post(client, *request))


def test_the_engine_answers_afterwards(client: httpx.Client, tiny: AsyncEngine) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 4}
    first, again = (post(client, "/v1/completions", body).json() for _ in range(2))
    assert first["choices"] == again["choices"]
    assert first["usage"]["completion_tokens"] == 4
    assert tiny.stats().kv_cache_usage == 0
