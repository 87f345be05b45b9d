"""How an answer must look: what clients ask for reaches the engine, and the model follows it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from pagoda.engine.async_engine import AsyncEngine
from pagoda.structured import KINDS, SWITCHES, StructuredOutputs
from server.fake_engine import FakeEngine
from server.sse import chat_text, events_of

pytestmark = pytest.mark.anyio
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "x"}, CHAT: {"messages": HELLO}}
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 2},
    },
    "required": ["name", "population", "tags"],
    "additionalProperties": False,
}
FREE = {"type": "object"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
ASK = {"messages": [{"role": "user", "content": "Tell me about Paris."}], "max_tokens": 200}

WANTED: dict[str, tuple[dict[str, Any], StructuredOutputs | None]] = {
    "text": ({"response_format": {"type": "text"}}, None),
    "an object": (
        {"response_format": {"type": "json_object"}},
        StructuredOutputs(json_object=True),
    ),
    "a schema": ({"response_format": SCHEMA}, StructuredOutputs(json=CITY)),
    "a schema without strict": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": FREE}}},
        StructuredOutputs(json=FREE),
    ),
    "a strict schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": FREE, "strict": True},
            }
        },
        StructuredOutputs(json={**FREE, "additionalProperties": False}),
    ),
    "an object with a schema": (
        {"response_format": {"type": "json_object", "schema": CITY}},
        StructuredOutputs(json=CITY),
    ),
    "a schema beside its type": (
        {"response_format": {"type": "json_schema", "json_schema": None, "schema": CITY}},
        StructuredOutputs(json=CITY),
    ),
    "an object, all else null": (
        {"response_format": {"type": "json_object", "json_schema": None, "schema": None}},
        StructuredOutputs(json_object=True),
    ),
    "vLLM's switches": (
        {
            "structured_outputs": {
                "json": CITY,
                "disable_any_whitespace": True,
                "disable_additional_properties": False,
                "disable_fallback": False,
                "whitespace_pattern": None,
            }
        },
        StructuredOutputs(
            json=CITY, disable_any_whitespace=True, disable_additional_properties=False
        ),
    ),
    "a switch that asks for nothing here": (
        {"structured_outputs": {"json": CITY, "disable_fallback": True}},
        StructuredOutputs(json=CITY),
    ),
    "vLLM's schema": ({"structured_outputs": {"json": CITY}}, StructuredOutputs(json=CITY)),
    "vLLM's other kinds": (
        {"structured_outputs": {"regex": "a", "json": None, "json_object": False}},
        StructuredOutputs(regex="a"),
    ),
    "guided_json": ({"guided_json": json.dumps(CITY)}, StructuredOutputs(json=CITY)),
    "guided_regex": ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
    "guided_choice": ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=["a", "b"])),
    "guided_grammar": (
        {"guided_grammar": 'start: "a"'},
        StructuredOutputs(grammar='start: "a"'),
    ),
}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"response_format": "json"}, "response_format"),
    "no type": ({"response_format": {}}, "response_format"),
    "unknown type": ({"response_format": {"type": "yaml"}}, "response_format"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "an empty json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format",
    ),
    "a schema of a wrong type": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
        "response_format",
    ),
    "two kinds": ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    "no kind": ({"structured_outputs": {}}, "structured_outputs"),
    "a switch of a wrong type": (
        {"structured_outputs": {"json": CITY, "disable_any_whitespace": "no"}},
        "structured_outputs",
    ),
    "an unknown kind": ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
    "a misspelt kind": ({"structured_outputs": {"regexp": "x"}}, "structured_outputs"),
    "no object": ({"structured_outputs": "regex"}, "structured_outputs"),
    "a regex of a wrong type": ({"guided_regex": 5}, "guided_regex"),
    "choices of a wrong type": ({"guided_choice": "a"}, "guided_choice"),
    "no choices": ({"guided_choice": []}, "guided_choice"),
    "text that is no JSON": ({"guided_json": "{"}, "guided_json"),
    "a huge schema": ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json"),
    "half a surrogate pair": ({"guided_regex": "\ud800"}, "guided_regex"),
    "two fields": ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
}

BAD_GRAMMARS: dict[str, tuple[dict[str, Any], str]] = {
    "invalid schema": ({"guided_json": {"type": "objekt"}}, "guided_json"),
    "endless schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "x",
                    "schema": {
                        "type": "object",
                        "properties": {"x": {"$ref": "#"}},
                        "required": ["x"],
                    },
                },
            }
        },
        "response_format",
    ),
    "bad regex": ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    "a million repeats": ({"guided_regex": "(a{1000}){1000}"}, "guided_regex"),
    "bad grammar": ({"guided_grammar": "start: other"}, "guided_grammar"),
}


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("x", (*KINDS, *SWITCHES, "disable_fallback")),
        ("structural_tag", ("grammar",)),
        ("whitespace_pattern", SWITCHES[1:]),
    ],
)
async def test_a_key_that_is_refused_is_told_with_those_that_are_taken(
    key: str, named: tuple[str, ...], client: httpx.AsyncClient
) -> None:
    given = {"json": CITY, key: "x"}
    response = await client.post(CHAT, json={"messages": HELLO, "structured_outputs": given})
    assert_refused(response, "structured_outputs")
    told = response.json()["error"]["message"]
    assert told.startswith(f"structured_outputs='{key}': ")
    assert [each for each in named if each not in told] == []


def assert_refused(response: httpx.Response, param: str) -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 400


async def post(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return await client.post(url, content=json.dumps(body), headers=headers)


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("name", WANTED)
async def test_what_is_asked_for_reaches_the_engine(
    name: str, url: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields, wanted = WANTED[name]
    assert (await post(client, url, {**BODIES[url], **fields})).status_code == 200
    assert engine.asked[0]["sampling"].structured_outputs == wanted


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_refused_before_the_engine(
    name: str, url: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields, param = BAD[name]
    assert_refused(await post(client, url, {**BODIES[url], **fields}), param)
    assert engine.asked == []


@pytest.mark.parametrize("url", BODIES)
async def test_a_constraint_that_breaks_late_is_its_requests_fault(
    url: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    wanted = StructuredOutputs(regex="a+", field="guided_regex")
    engine.fail = wanted.refuse("cannot be followed any further")
    body = {**BODIES[url], "guided_regex": "a+", "max_tokens": 4}
    assert_refused(await post(client, url, body), "guided_regex")
    stream = await post(client, url, {**body, "stream": True})
    assert stream.status_code == 200
    error = events_of(stream.text)[-1]["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "guided_regex")
    assert stream.text.endswith("data: [DONE]\n\n")


# ---- over layers of the default model ----------------------------------------------------------


async def choices_of(server: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await server.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def assert_city(choice: dict[str, Any]) -> None:
    assert choice["finish_reason"] == "stop"
    city = json.loads(choice["message"]["content"])
    assert list(city) == ["name", "population", "tags"]
    assert isinstance(city["name"], str)
    assert len(city["name"]) <= 12
    assert type(city["population"]) is int
    assert 0 <= city["population"] <= 99_999_999
    assert len(city["tags"]) <= 2
    assert {*city["tags"]} <= {"old", "new"}


@pytest.mark.model
async def test_a_greedy_answer_follows_its_schema(shallow_server: httpx.AsyncClient) -> None:
    [choice] = await choices_of(
        shallow_server, {**ASK, "temperature": 0, "response_format": SCHEMA}
    )
    assert_city(choice)


@pytest.mark.model
async def test_hot_answers_follow_their_schema(shallow_server: httpx.AsyncClient) -> None:
    bodies = [
        {**ASK, "temperature": 1.5, "seed": seed, "response_format": SCHEMA} for seed in range(8)
    ]
    found = await asyncio.gather(*(choices_of(shallow_server, body) for body in bodies))
    for [choice] in found:
        assert_city(choice)


@pytest.mark.model
async def test_hot_answers_end_where_a_schema_leaves_objects_open(
    shallow_server: httpx.AsyncClient,
) -> None:
    open_city = {name: value for name, value in CITY.items() if name != "additionalProperties"}
    shape = {"type": "json_schema", "json_schema": {"name": "city", "schema": open_city}}
    bodies = [
        {**ASK, "temperature": 2.0, "seed": seed, "response_format": shape} for seed in range(4)
    ]
    for [choice] in await asyncio.gather(*(choices_of(shallow_server, body) for body in bodies)):
        assert_city(choice)


@pytest.mark.model
async def test_every_choice_follows_the_schema(shallow_server: httpx.AsyncClient) -> None:
    body = {**ASK, "n": 3, "temperature": 1.5, "seed": 2, "response_format": SCHEMA}
    choices = await choices_of(shallow_server, body)
    assert len({choice["message"]["content"] for choice in choices}) > 1
    for choice in choices:
        assert_city(choice)


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0, 1.5])
async def test_any_object_choices_and_regexes_hold(
    temperature: float, shallow_server: httpx.AsyncClient
) -> None:
    body = {**ASK, "temperature": temperature, "seed": 4, "max_tokens": 40}
    [chosen] = await choices_of(shallow_server, {**body, "guided_choice": ["rainy", "rain"]})
    assert chosen["message"]["content"] in ("rainy", "rain")
    [written] = await choices_of(shallow_server, {**body, "guided_regex": "[0-9]{4}-[0-9]{2}"})
    assert re.fullmatch("[0-9]{4}-[0-9]{2}", written["message"]["content"])
    assert written["finish_reason"] == chosen["finish_reason"] == "stop"
    [free] = await choices_of(shallow_server, {**body, "response_format": {"type": "json_object"}})
    assert free["message"]["content"].startswith("{")
    if free["finish_reason"] == "stop":
        assert isinstance(json.loads(free["message"]["content"]), dict)


@pytest.mark.model
async def test_streaming_equals_whole(shallow_server: httpx.AsyncClient) -> None:
    body = {**ASK, "temperature": 1, "seed": 9, "n": 2, "response_format": SCHEMA}
    whole = await choices_of(shallow_server, body)
    events = events_of((await shallow_server.post(CHAT, json={**body, "stream": True})).text)
    for choice in whole:
        assert chat_text(events, choice["index"]) == choice["message"]["content"]


@pytest.mark.model
async def test_unconstrained_neighbours_are_not_changed(shallow_server: httpx.AsyncClient) -> None:
    free = {**ASK, "temperature": 1, "seed": 6, "max_tokens": 24}
    alone = await choices_of(shallow_server, free)
    bound = {**ASK, "temperature": 1, "seed": 7, "response_format": SCHEMA}
    found = await asyncio.gather(
        *(choices_of(shallow_server, body) for body in (bound, free, bound))
    )
    assert found[1] == alone
    assert_city(found[0][0])


@pytest.mark.model
@pytest.mark.parametrize("name", BAD_GRAMMARS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_constraint_that_cannot_be_compiled_is_a_400(
    name: str, stream: bool, shallow_server: httpx.AsyncClient, shallow_engine: AsyncEngine
) -> None:
    fields, param = BAD_GRAMMARS[name]
    before = shallow_engine.engine.scheduler.stats().num_finished
    assert_refused(await post(shallow_server, CHAT, {**ASK, **fields, "stream": stream}), param)
    assert shallow_engine.engine.scheduler.stats().num_finished == before
