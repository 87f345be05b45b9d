"""Thousands of requests that nobody meant: no crash, no 500, and the engine answers on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from http.client import HTTPConnection
from random import Random, SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from checkpoints import CASES, write_checkpoint
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.server.app import create_app
from pagoda.server.options import ServerOptions
from server.fake_engine import FakeEngine
from server.live import live_server

NUM_BY_SCHEMA = settings().max_examples // 10
"""For each of the routes, beside what schemathesis derives from the schema."""
QUIET = list(HealthCheck)
OPTIONS = ServerOptions(dev_mode=True, max_body_bytes=2**20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> AsyncEngine:
    """A real engine with a model of a few thousand numbers, which knows bytes."""
    place = write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])
    options = EngineOptions(str(place), max_model_len=48, kv_cache_memory_bytes=2**24)
    engine = AsyncEngine.load(options)
    engine.warm_up()  # as `pagoda serve` does: compiled in a request they take 10 s of it
    return engine


@pytest.fixture(scope="module")
def url(tiny: AsyncEngine) -> Iterator[str]:
    with live_server(tiny, OPTIONS) as url:
        yield url


def test_whatever_the_schema_allows_or_forbids(url: str, connection: HTTPConnection) -> None:
    """By schemathesis, which derives its requests here and not in every process that collects.

    Those that cover a schema are sent as they are: under Hypothesis, and by a client that follows
    redirects, they took half as long again as their answers.
    """
    import requests
    import schemathesis
    from schemathesis.pytest.lazy import get_all_tests

    def answers(case: schemathesis.Case) -> None:
        asked = requests.Request(**case.as_transport_kwargs(base_url=url)).prepare()
        connection.request(asked.method or "", asked.path_url, asked.body, asked.headers)
        with connection.getresponse() as answer:
            answer.read()
        assert answer.status < 500, case.as_curl_command()

    app = create_app(FakeEngine(), OPTIONS)  # type: ignore[arg-type]
    schema = schemathesis.openapi.from_dict(app.openapi())
    for path in ("/v1/responses/input_tokens", "/v1/messages/count_tokens"):
        schema = schema.exclude(path=path)  # another takes the same body
    examples = settings(
        max_examples=NUM_BY_SCHEMA, phases=[Phase.explicit, Phase.generate],
        deadline=None, suppress_health_check=QUIET, database=None,
    )  # fmt: skip
    tests = get_all_tests(schema=schema, test_func=answers, settings=examples, given_kwargs={})
    routes = [test for _, test in (found.ok() for found in tests)]
    assert len(routes) > len(GOOD)
    num_covering = 0
    for test in routes:
        covering = vars(test).pop("hypothesis_explicit_examples", ())
        num_covering += len(covering)
        for example in covering:
            answers(example.kwargs["case"])
        test()  # what is drawn
    assert num_covering > 1000


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
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x", "id": "a"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
        ],
        "instructions": "s", "max_output_tokens": 4, "temperature": 0.5, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"], "stream": True, "store": True, "user": "u",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}, "metadata": {},
        "tools": [{"type": "function", "name": "f", "parameters": {}, "description": "d"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "f"},
        ]},
        "truncation": "disabled",
        "reasoning": {"effort": "low"}, "previous_response_id": None, "cache_salt": "s", "seed": 1,
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["x"],
        "stream": True, "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"},
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
    },
    "/v1/messages/count_tokens": {
        "messages": [{"role": "user", "content": "hello"}], "system": "s",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "/tokenize": {"prompt": "hello", "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"tokens": [72, 73]},
}  # fmt: skip
BOUNDARIES = (
    0, -1, 1, 2**31, 2**63, 2**64, 10**9, 10**400, -(2**63), 0.5, 1e308, -1e-320, float("nan"),
    float("inf"), "", "\ud800", "\x00", "x" * 5000, [], [[]], {}, {"a": {}}, None, True, False,
)  # fmt: skip
FIELDS = [(route, name) for route in sorted(GOOD) for name in sorted(GOOD[route])]
NUM_MUTATIONS = max(len(FIELDS) * len(BOUNDARIES), 10 * settings().max_examples)
"""So that every field is each boundary once, whatever else is drawn."""


def junk(random: Random, depth: int = 2) -> Any:
    """Any value that JSON has, often one where something ends."""
    kind = random.randrange(10)
    if kind < 5:
        return deepcopy(random.choice(BOUNDARIES))
    if kind < 7 and depth > 0:
        values = [junk(random, depth - 1) for _ in range(random.randrange(4))]
        return values if kind == 5 else {text(random): value for value in values}
    return random.choice([text(random), random.randint(-(2**33), 2**33), random.uniform(-9, 9)])


def text(random: Random) -> str:
    """A few characters from anywhere, lone surrogates too."""
    ends = (0x7F, 0xFFFF, 0x10FFFF)
    return "".join(chr(random.randint(0, random.choice(ends))) for _ in range(random.randrange(9)))


def mutated(seed: int) -> tuple[str, Any]:
    """A route and a body of which a few parts were replaced, dropped or put elsewhere.

    One field is a boundary: both are the next ones with the next seed.
    """
    random, (turn, number) = Random(seed), divmod(seed, len(FIELDS))
    route, field = FIELDS[number]
    body = deepcopy(GOOD[route])
    for name in random.sample(sorted(body), random.randint(0, len(body))):
        del body[name]
    for name in random.choices(sorted(GOOD[route]), k=random.randint(0, 2)):
        place, key = body, name
        if isinstance(body.get(name), list) and body[name] and random.random() < 0.5:
            place, key = body[name], 0
            if isinstance(place[0], dict) and random.random() < 0.5:
                place, key = place[0], random.choice(["role", "content", "name", "type"])
        place[key] = junk(random)
    body[field] = deepcopy(BOUNDARIES[turn % len(BOUNDARIES)])
    return route, random.choice([[body], {"x": body}]) if random.randrange(40) == 0 else body


def post(connection: HTTPConnection, route: str, body: Any) -> tuple[int, str]:
    """As a careless client would: NaN, infinity and lone surrogates are sent as they are.

    The status of the answer, and its text. (httpx takes longer to ask than the server to answer.)
    """
    headers = {"content-type": "application/json"}
    connection.request("POST", route, json.dumps(body), headers)
    with connection.getresponse() as answer:
        return answer.status, answer.read().decode()


def check(status: int, text: str) -> None:
    assert status in (200, 400, 404, 413), text
    if status != 200:
        error = json.loads(text)["error"]
        assert error["type"] in ("invalid_request_error", "not_found_error", "request_too_large")
        assert "Traceback" not in error["message"]
    else:
        assert "server_error" not in text
        assert "api_error" not in text


@pytest.fixture
def connection(url: str) -> Iterator[HTTPConnection]:
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
        yield connection


def test_mutated_requests(connection: HTTPConnection) -> None:
    """Drawn without Hypothesis, whose drawing took five times as long as the answers.

    A failure names its request's seed: with that as SEED in the environment, it is the first.
    """
    first = int(os.environ.get("SEED", SystemRandom().randrange(2**32)))
    for seed in range(first, first + NUM_MUTATIONS):
        route, body = mutated(seed)
        try:
            check(*post(connection, route, body))
        except Exception as error:
            raise AssertionError(f"SEED={seed}: {route} {body!r:.2000}") from error


def test_the_engine_answers_afterwards(connection: HTTPConnection, tiny: AsyncEngine) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 4}
    first, again = (json.loads(post(connection, "/v1/completions", body)[1]) for _ in range(2))
    assert first["choices"] == again["choices"]
    assert first["usage"]["completion_tokens"] == 4
    assert tiny.stats().kv_cache_usage == 0
