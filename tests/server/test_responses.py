"""`/v1/responses`: what is asked of the engine, and what comes back whole and in events."""

from __future__ import annotations

import difflib
import json
from typing import Any

import httpx
import pytest

from pagoda.errors import InvalidRequestError
from pagoda.request import SamplingParams
from pagoda.server.responses_api.tool_kinds import FunctionPlace
from server.fake_engine import FakeEngine, engine_failure
from server.test_server_errors import assert_refused

pytestmark = pytest.mark.anyio
URL = "/v1/responses"
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "parameters": PLACE, "strict": True}
CLOCK = {"type": "function", "name": "clock", "description": "The time."}
MATH = {"type": "namespace", "name": "math", "description": "Sums.",
        "tools": [{"type": "function", "name": "add"}]}  # fmt: skip
ROME = '{"city": "Rome"}'
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>'
SCHEMA = {"type": "json_schema", "name": "Place", "schema": PLACE, "strict": True}


async def ask(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """The response to a body that is right."""
    response = await client.post(URL, json={"input": "hi", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def events(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream; asserts that they are named and numbered."""
    response = await client.post(URL, json={"input": "hi", "stream": True, **body})
    assert response.headers["content-type"].startswith("text/event-stream")
    *sent, rest = response.text.split("\n\n")
    assert rest == ""
    lines = [each.split("\n") for each in sent]
    told = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name for name, _ in lines] == [f"event: {each['type']}" for each in told]
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    return told


def kinds(told: list[dict[str, Any]]) -> list[str]:
    return [each["type"].removeprefix("response.") for each in told]


def sampling_of(engine: FakeEngine) -> SamplingParams:
    sampling = engine.asked[-1]["sampling"]
    assert isinstance(sampling, SamplingParams)
    return sampling


def prompt_of(engine: FakeEngine) -> str:
    prompt = engine.asked[-1]["prompt"]
    assert isinstance(prompt, list)
    return "".join(map(chr, prompt))


INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"input": "hi"}, "<user>hi"),
    "instructions": ({"instructions": "be", "input": "hi"}, "<system>be<user>hi"),
    "messages": (
        {"input": [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]},
        "<system>d<user>u",
    ),
    "parts": (
        {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": x} for x in "ab"],
                }
            ]
        },
        "<user>ab",
    ),
    "an answer of before": (
        {
            "input": [
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [
                        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
                    ],
                },
                {"role": "user", "content": "u"},
            ]
        },
        "<assistant>a<user>u",
    ),
    "a call and its result": (
        {
            "input": [
                {"role": "user", "content": "u"},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "r"},
                {
                    "type": "function_call_output",
                    "call_id": "2",
                    "output": [{"type": "input_text", "text": "s"}],
                },
            ]
        },
        "<user>u<assistant><tool>r<tool>s",
    ),
    "a refusal": (
        {
            "input": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"role": "user", "content": "v"},
            ]
        },
        "<user>u<assistant>no<user>v",
    ),
    "what was thought": (
        {
            "input": [
                {"role": "user", "content": "u"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "hm"}],
                    "encrypted_content": None,
                },
            ]
        },
        "<user>u",
    ),
}


@pytest.mark.parametrize("name", INPUTS)
async def test_prompts(name: str, client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body, prompt = INPUTS[name]
    await ask(client, **body)
    assert prompt_of(engine) == prompt


async def test_a_refusal_is_kept_as_what_it_was(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    part = {"type": "refusal", "refusal": "no"}
    said = [{"role": "user", "content": "u"}, {"role": "assistant", "content": [part]}]
    first = await ask(client, input=said, max_output_tokens=1)
    await ask(client, input="v", previous_response_id=first["id"])
    assert prompt_of(engine) == "<user>u<assistant>no<assistant>zero<user>v"
    listed = (await client.get(f"{URL}/{first['id']}/input_items?order=asc")).json()["data"]
    assert listed[1]["content"] == [part]


async def test_sampling(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await ask(
        client, max_output_tokens=3, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, seed=7,
        stop=["x"], top_logprobs=2, cache_salt="s", priority=3, user="u", metadata={"a": "b"},
        reasoning={"effort": "high"}, service_tier="auto", truncation="disabled",
        prompt_cache_key="k", include=["reasoning.encrypted_content"], text={"verbosity": "low"},
    )  # fmt: skip
    sampling = sampling_of(engine)
    expected = SamplingParams(
        max_tokens=3,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=7,
        stop=("x",),
        logprobs=2,
    )
    assert sampling == expected
    options: Any = engine.asked[-1]["options"]
    assert (options.cache_salt, options.priority) == ("s", 3)
    assert options.max_tokens_field == "max_output_tokens"
    told = {name: answer[name] for name in ("metadata", "user", "temperature", "top_p")}
    assert told == {"metadata": {"a": "b"}, "user": "u", "temperature": 0.5, "top_p": 0.9}
    assert answer["reasoning"] == {"effort": None, "summary": None}
    assert [warning.split(" is ignored: ")[0] for warning in answer["warnings"]] == [
        "reasoning.effort",
        "text.verbosity",
    ]


async def test_a_whole_response(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.says = ["Hel", "lo"]
    answer = await ask(client)
    [item] = answer["output"]
    [part] = item["content"]
    assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert part == {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    again = await ask(client)
    assert again["usage"] == {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }


MESSAGE = [
    "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
    "content_part.done", "output_item.done",
]  # fmt: skip
CALL = [
    "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
    "output_item.done",
]  # fmt: skip


async def test_events_of_text(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.says = ["Hel", "lo"]
    told = await events(client)
    opening, closing = ["created", "in_progress"], ["completed"]
    assert kinds(told) == opening + MESSAGE[:3] + MESSAGE[2:] + closing
    assert [each["delta"] for each in told if "delta" in each] == ["Hel", "lo"]
    first, last = told[0]["response"], told[-1]["response"]
    assert (first["status"], first["output"]) == ("in_progress", [])
    assert (last["status"], last["usage"]["output_tokens"]) == ("completed", 2)
    [item] = last["output"]
    assert item == told[-2]["item"]
    assert {each["item_id"] for each in told if "item_id" in each} == {item["id"]}
    assert told[2]["item"] == {**item, "status": "in_progress", "content": []}
    assert told[3]["part"]["text"] == ""
    assert item["content"][0]["text"] == "Hello"


async def test_events_of_text_and_calls(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.says = ["See. ", HERMES[:20], HERMES[20:], HERMES]
    told = await events(client, tools=[WEATHER, CLOCK])
    assert kinds(told) == ["created", "in_progress", *MESSAGE, *CALL, *CALL, "completed"]
    message, first, second = told[-1]["response"]["output"]
    assert message["content"][0]["text"] == "See."
    assert first["call_id"] != second["call_id"]
    for index, call in ((1, first), (2, second)):
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", ROME)
        ours = [each for each in told if each.get("output_index") == index]
        assert [each["delta"] for each in ours if "delta" in each] == [ROME]
        assert ours[-1]["item"] == call
    whole = await ask(client, tools=[WEATHER, CLOCK])
    assert [item["type"] for item in whole["output"]] == ["message", *["function_call"] * 2]
    described = {"name": "weather", "parameters": PLACE}
    assert engine.tokenizer.tools[0] == {"type": "function", "function": described}


async def test_an_answer_that_is_cut(client: httpx.AsyncClient) -> None:
    told = await events(client, max_output_tokens=2)
    last = told[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"
    whole = await ask(client, max_output_tokens=2)
    assert whole["status"] == "incomplete"


async def test_an_answer_that_fails(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail = engine_failure()
    told = await events(client)
    assert kinds(told) == ["created", "in_progress", *MESSAGE, "error", "failed"]
    error, failed = told[-2:]
    assert (error["code"], error["param"]) == ("engine_error", None)
    assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["output"][0]["status"] == "incomplete"
    response = await client.get(f"{URL}/{failed['response']['id']}")
    assert_refused(response, "response_id", status=404)


async def test_an_answer_of_nothing_is_an_empty_message(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [""]
    told = await events(client)
    assert kinds(told) == ["created", "in_progress", *MESSAGE, "completed"]
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == ""


async def test_log_probabilities(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = await ask(client, **asked, max_output_tokens=2)
    found = whole["output"][0]["content"][0]["logprobs"]
    assert [each["token"] for each in found] == ["zero", "one"]
    assert [len(each["top_logprobs"]) for each in found] == [2, 2]
    told = await events(client, **asked, max_output_tokens=2)
    deltas = [each for each in told if each["type"] == "response.output_text.delta"]
    assert [each["logprobs"][0]["token"] for each in deltas] == ["zero", "one"]
    [done] = [each for each in told if each["type"] == "response.output_text.done"]
    assert done["logprobs"] == found
    await ask(client, include=asked["include"])
    assert sampling_of(engine).logprobs == 0


async def test_text_by_schema(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await ask(client, text={"format": SCHEMA})
    wanted = sampling_of(engine).structured_outputs
    assert wanted is not None
    assert json.loads(str(wanted.json)) == PLACE
    assert answer["text"] == {"format": SCHEMA}
    await ask(client, text={"format": {"type": "json_object"}})
    assert getattr(sampling_of(engine).structured_outputs, "kind", None) == "json_object"
    await ask(client, text={"format": {"type": "text"}})
    assert sampling_of(engine).structured_outputs is None


ALLOWED = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "clock"}],
}


@pytest.mark.parametrize(
    ("choice", "shown", "is_forced"),
    [
        ("auto", ["weather", "clock"], False),
        ("none", [], False),
        ("required", ["weather", "clock"], True),
        ({"type": "function", "name": "weather"}, ["weather", "clock"], True),
        (ALLOWED, ["clock"], False),
        ({**ALLOWED, "mode": "required"}, ["clock"], True),
    ],
)
async def test_choices_among_tools(
    choice: Any, shown: list[str], is_forced: bool, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await ask(client, tools=[WEATHER, CLOCK], tool_choice=choice)
    functions: list[Any] = [tool["function"] for tool in engine.tokenizer.tools]
    assert [function["name"] for function in functions] == shown
    assert (sampling_of(engine).structured_outputs is not None) == is_forced
    assert answer["tool_choice"] == choice


async def test_one_call_where_no_more_are_wanted(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [HERMES, HERMES]
    answer = await ask(client, tools=[WEATHER], parallel_tool_calls=False)
    assert [item["type"] for item in answer["output"]] == ["function_call"]
    assert answer["parallel_tool_calls"] is False


PARAMETERS = {**PLACE, "title": "weather_args"}
FROM_CLIENTS: dict[str, dict[str, Any]] = {
    "openai-agents 0.24": {
        "model": "fake-model", "include": [], "instructions": "be",
        "input": [
            {"content": "w?", "role": "user"},
            {
                "id": "msg_1", "role": "assistant", "status": "completed", "type": "message",
                "content": [
                    {"annotations": [], "text": "See.", "type": "output_text", "logprobs": []}
                ],
            },
            {
                "arguments": ROME, "call_id": "f4", "name": "weather", "type": "function_call",
                "id": "fc_1", "status": "completed",
            },
            {"call_id": "f4", "output": "warm", "type": "function_call_output"},
        ],
        "tools": [
            {
                "name": "weather", "parameters": PARAMETERS, "strict": True, "type": "function",
                "description": "The weather.",
            }
        ],
    },
    "pydantic-ai 2.68": {
        "model": "fake-model", "stream": False, "instructions": "be", "tool_choice": "auto",
        "input": [
            {"role": "user", "content": "w?"},
            {"role": "assistant", "content": "See."},
            {"name": "weather", "arguments": ROME, "call_id": "f4", "type": "function_call"},
            {"type": "function_call_output", "call_id": "f4", "output": "warm"},
        ],
        "tools": [
            {
                "name": "weather", "parameters": PARAMETERS, "type": "function",
                "description": "The weather.", "strict": True,
            }
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FROM_CLIENTS)
async def test_what_clients_send(name: str, client: httpx.AsyncClient, engine: FakeEngine) -> None:
    """As they were seen to send it in the second turn of an agent."""
    engine.says = ["Warm."]
    answer = await ask(client, **FROM_CLIENTS[name])
    assert answer["output"][0]["content"][0]["text"] == "Warm."
    assert prompt_of(engine) == "<system>be<user>w?<assistant>See.<tool>warm"


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({"input": None}, "input", "at least one message"),
    "no items": ({"input": []}, "input", "at least one message"),
    "an image": ({"input": user({"type": "input_image", "image_url": "x"})}, "input", "no images"),
    "a screen": (
        {"input": [{"type": "computer_call_output", "output": {}}]}, "input", "computer_call_output"
    ),
    "an unknown role": ({"input": [{"role": "wizard", "content": "x"}]}, "input", "role"),
    "a lone surrogate": ({"input": "\ud800"}, "input", "surrogate"),
    "too long": ({"input": "x" * 100}, "input", "tokens"),
    "large metadata": ({"metadata": {"a": "x" * 513}}, "metadata", "512"),
    "large tools": (
        {"tools": [{"type": "function", "name": "f",
                    "parameters": {"type": "object", "description": "x" * 2**18}}],
         "tool_choice": "none"},
        "tools", "262,144 characters",
    ),
    "an unknown item": ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "no such"),
    "an unknown response": ({"previous_response_id": "x"}, "previous_response_id", "no such"),
    "a search": ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
    "too many of other kinds": (
        {"tools": [WEATHER, *[{"type": f"kind {i}"} for i in range(128)]]}, "tools", "128"
    ),
    "a namespace within another": (
        {"tools": [{**MATH, "tools": [MATH]}]}, "tools", "function"
    ),
    "one name twice": ({"tools": [MATH, {**WEATHER, "name": "math.add"}]}, "tools", "of its own"),
    "MCP": ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools", "mcp"),
    "a choice of a search": ({"tool_choice": {"type": "mcp"}}, "tool_choice", "mcp"),
    "a choice of no tool": (
        {"tools": [WEATHER], "tool_choice": {**ALLOWED}}, "tool_choice", "must be the names"
    ),
    "a named choice of no tool": (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}},
        "tool_choice", "name"
    ),
    "half of a surrogate pair in a tool": (
        {"tools": [{**WEATHER, "parameters": {"\ud800": 1}}]}, "tools", "surrogate"
    ),
    "no tokens": ({"max_output_tokens": 0}, "max_output_tokens", "between 1"),
    "too many candidates": ({"top_logprobs": 21}, "top_logprobs", "20"),
    "a chat's limit": ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
    "a chat's format": (
        {"response_format": {"type": "text"}},
        "response_format",
        "response_format={'type': 'text'}: is called text.format",
    ),
    "a chat's schema": (
        {"text": {"format": {"type": "json_schema", "json_schema": {"schema": {}}}}},
        "text",
        "needs format.schema",
    ),
    "choices": ({"n": 2}, "n", "one answer"),
    "a format without schema": ({"text": {"format": {"type": "json_schema"}}}, "text", "schema"),
    "a schema that is none": (
        {"text": {"format": {**SCHEMA, "schema": {"a": "\ud800"}}}}, "text", "surrogate"
    ),
    "two forms": ({"text": {"format": SCHEMA}, "guided_regex": "a"}, "guided_regex", "text"),
    "a form and a forced call": (
        {"guided_regex": "a", "tools": [WEATHER], "tool_choice": "required"},
        "guided_regex", "forces"
    ),
    "background": ({"background": True}, "background", "not covered"),
    "truncation": ({"truncation": "auto"}, "truncation", "not covered"),
    "a conversation": ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    "a stored prompt": ({"prompt": {"id": "p"}}, "prompt", "not covered"),
    "an unknown inclusion": ({"include": ["everything"]}, "include", "one of"),
    "another model": ({"model": "gpt-5"}, "model", "fake-model"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_bad_bodies_are_refused_by_name(
    name: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body, param, told = BAD[name]
    content = json.dumps({"input": "hi", **body})
    response = await client.post(URL, content=content, headers={"content-type": "application/json"})
    status = 404 if param == "model" else 400
    message = assert_refused(response, param, status)
    assert told in message
    assert message.startswith((param, "This model's maximum context length is"))
    assert engine.started == []


async def test_neutral_values_change_nothing(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    neutral: dict[str, Any] = {
        "background": False, "context_management": [], "conversation": None, "moderation": None,
        "n": 1, "prompt": None, "return_token_ids": False, "tools": [], "truncation": "disabled",
    }  # fmt: skip
    plain, told = await ask(client), await ask(client, **neutral)
    bare, asked = engine.asked
    assert asked["prompt"] == bare["prompt"]
    assert (asked["sampling"], asked["options"]) == (bare["sampling"], bare["options"])
    for name in ("id", "created_at", "completed_at", "usage", "output"):
        del plain[name], told[name]
    assert told == plain
    assert told["background"] is False
    assert "warnings" not in told


async def test_tools_that_are_not_covered_are_left_out_and_said(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    searches: list[dict[str, Any]] = [{"type": "web_search", "filters": {}}] * 2
    answer = await ask(client, tools=[WEATHER, *searches])
    assert [tool["function"]["name"] for tool in engine.tokenizer.tools] == ["weather"]
    assert [tool["name"] for tool in answer["tools"]] == ["weather"]
    [warning] = answer["warnings"]
    assert warning.startswith("tools.web_search is ignored")


async def test_functions_in_namespaces(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    called = '<tool_call>{"name": "math.add", "arguments": {}}</tool_call>'
    engine.says = [called[:30], called[30:]]
    [item] = (await ask(client, tools=[WEATHER, MATH]))["output"]
    assert (item["namespace"], item["name"]) == ("math", "add")
    told = await events(client, tools=[WEATHER, MATH])
    assert [each["item"]["namespace"] for each in told if "item" in each] == ["math", "math"]
    [item_told] = told[-1]["response"]["output"]
    assert (item_told["namespace"], item_told["name"]) == ("math", "add")
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "3"}
    await ask(client, input=[{"role": "user", "content": "u"}, item, result], tools=[MATH])
    [call] = engine.tokenizer.messages[1]["tool_calls"]
    assert call["function"]["name"] == "math.add"
    engine.says = [HERMES]
    [item] = (await ask(client, tools=[WEATHER, MATH]))["output"]
    assert "namespace" not in item


ADD = {"type": "function", "name": "add"}
TEXTS = {**MATH, "name": "texts", "description": "Words.", "tools": [
    {**ADD, "description": "Joins two."}, {"type": "function", "name": "cut"},
]}  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({**ADD, "namespace": "math"}, ["math.add"]),
        ({**ADD, "name": "math.add"}, ["math.add"]),
        ({**ADD, "name": "cut"}, ["texts.cut"]),
        ({**ADD, "name": "weather"}, ["weather"]),
        ({**ADD, "name": "cut", "namespace": "math"}, []),
        (ADD, []),
    ],
)
async def test_a_choice_names_a_function_as_its_calls_are_told(
    choice: dict[str, Any], names: list[str], client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    tools = [WEATHER, MATH, TEXTS]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    if not names:
        for refused in (choice, allowed):
            body = {"input": "hi", "tools": tools, "tool_choice": refused}
            response = await client.post(URL, json=body)
            assert response.json()["error"]["param"] == "tool_choice"
        return
    engine.says = ["{}"]
    answer = await ask(client, tools=tools, tool_choice=choice)
    assert answer["tool_choice"] == choice
    [call] = answer["output"]
    called = FunctionPlace(call.get("namespace"), call["name"])
    assert [called.full_name] == names
    await ask(client, tools=tools, tool_choice=allowed)
    assert [each["function"]["name"] for each in engine.tokenizer.tools] == names  # type: ignore[index]


async def test_a_namespace_is_described_by_the_first_that_is_shown(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    def descriptions() -> list[Any]:
        functions: list[Any] = [each["function"] for each in engine.tokenizer.tools]
        return [each.get("description") for each in functions]

    await ask(client, tools=[MATH, TEXTS])
    assert descriptions() == ["Sums.", "Words.\nJoins two.", None]
    cut = {"type": "function", "name": "cut", "namespace": "texts"}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [cut]}
    await ask(client, tools=[MATH, TEXTS], tool_choice=allowed)
    assert descriptions() == ["Words."]


async def test_what_is_ignored_is_worked_out_once(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    find = difflib.get_close_matches

    def noted(name: str, *among: Any, **how: Any) -> list[str]:
        names.append(name)
        return find(name, *among, **how)

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    [warning] = (await ask(client, temprature=1))["warnings"]
    assert "did you mean temperature" in warning
    assert names == ["temprature"]


async def test_names_in_namespaces_may_be_long(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    name = "x" * 128
    call = {"type": "function_call", "call_id": "1", "name": name, "namespace": name}
    said = [{"role": "user", "content": "u"}, {**call, "arguments": "{}"}]
    inner = {"type": "function", "name": name, "parameters": None}
    await ask(client, input=said, tools=[{**MATH, "name": name, "tools": [inner]}])
    [made] = engine.tokenizer.messages[-1]["tool_calls"]
    assert made["function"]["name"] == f"{name}.{name}"


async def test_input_tokens_are_counted(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.post(f"{URL}/input_tokens", json={"input": "hi", "instructions": "x"})
    assert response.json() == {"object": "response.input_tokens", "input_tokens": 17}
    assert engine.started == []


async def test_a_schema_that_cannot_be_followed_names_its_field(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.fail = InvalidRequestError("text", "x", "too complex")
    told = await events(client)
    assert told[-2]["param"] == "text"
    assert told[-1]["response"]["error"]["code"] == "invalid_prompt"
