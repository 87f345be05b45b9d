"""Tools: what clients offer, what the model is told, and how its calls are answered."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from pagoda.server.reading import CallPiece, ToolCall, calls_in
from pagoda.server.tool_choice import MAX_TOOLS
from server.calling_answers import (
    CALLS,
    CUT_CALLS,
    OSLO,
    READ,
    ROME,
    WEATHER_ROME,
    glm,
    hermes,
    qwen_coder,
)
from server.fake_engine import FakeEngine
from server.sse import chat_text, events_of

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
PLACE = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 8}},
}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"name": name, "description": f"To {name}.", "parameters": parameters or PLACE}
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = {"mode": mode, "tools": [named(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": tools}


SHUT, OPEN = {"additionalProperties": False}, {"additionalProperties": True}
TOOLS = [tool("weather"), tool("clock", {"type": "object", "properties": {}})]

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"tools": {}}, "tools"),
    "no function": ({"tools": [{"type": "function"}]}, "tools"),
    "another type": ({"tools": [{"type": "retrieval"}]}, "tools"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools"),
    "an odd name": ({"tools": [tool("rm -rf")]}, "tools"),
    "a long name": ({"tools": [tool("a" * 129)]}, "tools"),
    "twice the same": ({"tools": [tool("a"), tool("a")]}, "tools"),
    "too many": ({"tools": [tool(f"t{index}") for index in range(MAX_TOOLS + 1)]}, "tools"),
    "parameters as text": ({"tools": [tool("a", "x")]}, "tools"),  # type: ignore[arg-type]
    "parameters of no object": ({"tools": [tool("a", {"type": "string"})]}, "tools"),
    "an unknown type": (
        {"tools": [tool("a", {"type": "object", "properties": {"x": {"type": "objekt"}}})]},
        "tools",
    ),
    "properties of a wrong type": ({"tools": [tool("a", {"properties": 5})]}, "tools"),
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice"),
    "a named choice without tools": ({"tool_choice": named("weather")}, "tool_choice"),
    "an unknown choice": ({"tools": TOOLS, "tool_choice": named("x")}, "tool_choice"),
    "a choice of a wrong type": ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
    "a choice of tools that are not there": (
        {"tools": TOOLS, "tool_choice": allowed("auto", "weather", "x")},
        "tool_choice",
    ),
    "a choice of no tools": ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice"),
    "a choice of too many tools": (
        {"tools": TOOLS, "tool_choice": allowed("auto", *["clock"] * (MAX_TOOLS + 1))},
        "tool_choice",
    ),
    "half a choice of tools": (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
        "tool_choice",
    ),
    "a choice that is empty": ({"tools": TOOLS, "tool_choice": {}}, "tool_choice"),
    "parallel as text": ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    "a forced call and a form of all": (
        {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"},
        "guided_regex",
    ),
    "a user's call": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": "x",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "a", "arguments": "{}"},
                        }
                    ],
                }
            ]
        },
        "messages",
    ),
}


def pieces_made(deltas: list[dict[str, Any]]) -> list[ToolCall]:
    """The calls that a stream's `tool_calls` make."""
    functions = [(each["index"], each["function"]) for each in deltas]
    return calls_in(CallPiece(n, each["arguments"], each.get("name")) for n, each in functions)


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_refused(
    name: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields, param = BAD[name]
    response = await client.post(URL, json={"messages": HELLO, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert engine.asked == []


async def test_a_call_has_openais_shape(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.says = [hermes(ROME), "\n", hermes(OSLO)]
    body = (await client.post(URL, json={"messages": HELLO, "tools": TOOLS})).json()
    [choice] = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    ids = [call.pop("id") for call in message["tool_calls"]]
    assert len({*ids}) == 2
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": ROME}},
            {"type": "function", "function": {"name": "weather", "arguments": OSLO}},
        ],
    }
    assert [each["function"]["name"] for each in engine.tokenizer.tools] == ["weather", "clock"]
    assert engine.asked[0]["sampling"].structured_outputs is None
    assert not engine.asked[0]["sampling"].skip_special_tokens


@pytest.mark.parametrize("name", [name for name in READ if READ[name][0] == "hermes"])
async def test_streaming_equals_whole(
    name: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    _, text, content, calls = READ[name]
    engine.says = [text[start : start + 7] for start in range(0, len(text), 7)]
    body = {"messages": HELLO, "tools": TOOLS}
    [whole] = (await client.post(URL, json=body)).json()["choices"]
    events = events_of((await client.post(URL, json={**body, "stream": True})).text)
    deltas = [event["choices"][0]["delta"] for event in events]
    made = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert chat_text(events) == (whole["message"]["content"] or "") == content
    assert pieces_made(made) == list(calls)
    assert all(("id" in call) == ("name" in call["function"]) for call in made)
    assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert whole["finish_reason"] == ("tool_calls" if calls else "stop")


async def test_an_answer_that_was_cut_says_so(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [hermes(ROME), " and more", " to come"]
    body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 2}
    [choice] = (await client.post(URL, json=body)).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_choice_of_some_tools_hides_the_others(
    mode: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": allowed(mode, "clock")}
    response = await client.post(URL, json=body)
    assert response.status_code == 200, response.text
    assert [each["function"]["name"] for each in engine.tokenizer.tools] == ["clock"]
    form = engine.asked[0]["sampling"].structured_outputs  # type: ignore[attr-defined]
    assert (form is not None) == (mode == "required")
    assert form is None or "weather" not in form.json


async def test_half_a_choice_of_some_tools_is_told_as_such(client: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}
    told = (await client.post(URL, json=body)).json()["error"]["message"]
    assert told == "tool_choice.allowed_tools: is missing"


async def test_a_choice_of_none_hides_the_tools(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [hermes(ROME)]
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"}
    [choice] = (await client.post(URL, json=body)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": hermes(ROME)}
    assert engine.tokenizer.tools == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "said", "reason"),
    [
        ("required", f'[{{"name": "weather", "parameters": {ROME}}}]', "tool_calls"),
        (named("weather"), ROME, "stop"),  # as OpenAI's API does
    ],
    ids=["required", "named"],
)
async def test_a_forced_call(
    choice: Any, said: str, reason: str, stream: bool, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [said[:-9], said[-9:]]
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": choice, "stream": stream}
    body["response_format"] = {"type": "json_object"}  # of text, of which there is none
    response = await client.post(URL, json=body)
    if stream:
        events = events_of(response.text)
        assert chat_text(events) == ""
        deltas = [event["choices"][0]["delta"] for event in events]
        calls = pieces_made([call for delta in deltas for call in delta.get("tool_calls", [])])
        assert sum("tool_calls" in delta for delta in deltas) == 2
        assert events[-1]["choices"][0]["finish_reason"] == reason
    else:
        [whole] = response.json()["choices"]
        calls = [ToolCall(**call["function"]) for call in whole["message"]["tool_calls"]]
        assert whole["finish_reason"] == reason
    assert calls == [WEATHER_ROME]
    assert engine.asked[0]["sampling"].structured_outputs.field == "tools"


@pytest.mark.parametrize("choice", ["required", named("a")], ids=["required", "named"])
@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        ({}, {"type": "object", "properties": {}, **SHUT}),
        ({"parameters": {"properties": {"x": {}}}}, {"properties": {"x": {}}, **SHUT}),
        ({"parameters": {"properties": {}, **OPEN}}, {"properties": {}, **OPEN}),
        ({"parameters": {"type": "object"}}, {"type": "object"}),
        ({"parameters": {"type": "object"}, "strict": True}, {"type": "object", **SHUT}),
    ],
)
async def test_a_forced_call_has_the_arguments_that_its_tool_has(
    function: dict[str, Any],
    wanted: dict[str, Any],
    choice: Any,
    client: httpx.AsyncClient,
    engine: FakeEngine,
) -> None:
    tools = [{"type": "function", "function": {"name": "a", **function}}]
    body = {"messages": HELLO, "tools": tools, "tool_choice": choice}
    assert (await client.post(URL, json=body)).status_code == 200
    schema = json.loads(engine.asked[0]["sampling"].structured_outputs.json)
    if choice == "required":
        schema = schema["items"]["anyOf"][0]["properties"]["parameters"]
    assert schema == {"type": "object", **wanted}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_that_is_cut_is_told_as_far_as_it_went(
    n: int, stream: bool, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [CALLS[:-3], CALLS[-3:], " to come"]
    fields = {"tool_choice": "required", "max_tokens": 2, "n": n, "stream": stream}
    response = await client.post(URL, json={"messages": HELLO, "tools": TOOLS, **fields})
    if stream:
        choices = [event["choices"][0] for event in events_of(response.text)]
    else:
        choices = [{**each, "delta": each["message"]} for each in response.json()["choices"]]
    for index in range(n):
        mine = [each for each in choices if each["index"] == index]
        made = [call for each in mine for call in each["delta"].get("tool_calls", [])]
        numbered = [{"index": place, **call} for place, call in enumerate(made)]
        assert pieces_made(numbered if not stream else made) == list(CUT_CALLS)
        assert mine[-1]["finish_reason"] == "length"
        assert not any(each["delta"].get("content") for each in mine)


async def test_history_reaches_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "clock", "arguments": ""}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "noon"},
    ]
    assert (await client.post(URL, json={"messages": messages})).status_code == 200
    prompt = "".join(map(chr, engine.asked[0]["prompt"]))
    assert prompt == "<user>hi<assistant><tool>noon"


async def test_a_name_reaches_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    messages = [{"role": "user", "name": "Ann", "content": "hi"}, *HELLO]
    for url in (URL, "/tokenize"):
        assert (await client.post(url, json={"messages": messages})).status_code == 200
        first, second = engine.tokenizer.messages
        assert first == {"role": "user", "content": "hi", "name": "Ann"}
        assert "name" not in second


@pytest.mark.parametrize(("form", "write"), [("glm45", glm), ("qwen3_coder", qwen_coder)])
@pytest.mark.parametrize("stream", [False, True])
async def test_marked_arguments_have_the_types_of_their_schema(
    form: Any, write: Any, stream: bool, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.tokenizer.tool_format = form
    text = write(("city", "5"), ("days", "5"))
    engine.says = [text[start : start + 7] for start in range(0, len(text), 7)]
    days = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }
    body = {"messages": HELLO, "tools": [tool("weather", days)], "stream": stream}
    response = await client.post(URL, json=body)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events_of(response.text)]
        calls = pieces_made([call for delta in deltas for call in delta.get("tool_calls", [])])
    else:
        [choice] = response.json()["choices"]
        calls = [ToolCall(**call["function"]) for call in choice["message"]["tool_calls"]]
    assert calls == [ToolCall("weather", '{"city": "5", "days": 5}')]


# ---- over layers of the default model ----------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("choice", ["required", named("weather")], ids=["required", "named"])
async def test_a_model_calls_what_it_must(
    choice: Any, temperature: float, shallow_server: httpx.AsyncClient
) -> None:
    question = [{"role": "user", "content": "What is the weather in Rome?"}]
    body = {
        "messages": question,
        "tools": TOOLS[:1],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": temperature,
        "seed": 1,
    }
    response = await shallow_server.post(URL, json=body)
    assert response.status_code == 200, response.text
    [answer] = response.json()["choices"]
    assert answer["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
    [call] = answer["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert list(arguments) == ["city"]
    assert len(arguments["city"]) <= 8
    after = [
        *question,
        answer["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
    ]
    again = await shallow_server.post(
        URL, json={"messages": after, "tools": TOOLS, "max_tokens": 8}
    )
    assert again.status_code == 200, again.text


@pytest.mark.model
async def test_a_schema_that_only_a_forced_call_compiles(shallow_server: httpx.AsyncClient) -> None:
    odd = tool("a", {"type": "object", "properties": {"x": {"not": {"type": "string"}}}})
    body = {"messages": HELLO, "tools": [odd], "max_tokens": 4}
    assert (await shallow_server.post(URL, json=body)).status_code == 200
    refused = await shallow_server.post(URL, json={**body, "tool_choice": "required"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"
