"""`/v1/messages` and `/v1/messages/count_tokens`: what comes in, what is asked, what goes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pagoda.cache_hint import CacheHint
from pagoda.engine.outputs import RequestOutput
from pagoda.server.app import create_app
from pagoda.server.error_codes import SERVER_FULL, SHUTTING_DOWN, TENANT_FULL
from pagoda.server.errors import RejectedError, detail_of
from pagoda.server.keys import KeyRing
from pagoda.server.messages_api.block_events import BlockEvents
from pagoda.server.messages_api.blocks import InputMessage
from pagoda.server.messages_api.conversation import Conversation
from pagoda.server.messages_api.errors import failure_of, messages_error
from pagoda.server.messages_api.message import content_of
from pagoda.server.options import ServerOptions
from pagoda.server.reading import CallPiece, Reading, TextPiece
from server.conftest import client_of
from server.fake_engine import FIRST_WORD_ID, MODEL, FakeEngine, engine_failure
from server.saying_engine import SayingEngine
from server.test_disconnect import until

pytestmark = pytest.mark.anyio
URL, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 3, "messages": HELLO}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells the weather.", "input_schema": CITY}
ROME = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
FORMAT = {"format": {"type": "json_schema", "schema": {}}}
OSLO = ROME.replace("Rome", "Oslo")
KEY = "a-key-for-tests"
AGENTS_BODY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: version=1; number=ab12;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<reminder>"},
                {"type": "text", "text": "Rome?", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [
                        {"type": "text", "text": "Warm."},
                        {"type": "text", "text": "Dry."},
                    ],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": "no",
                    "is_error": True,
                },
            ],
        },
        {"role": "system", "content": "Few tokens are left."},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {**WEATHER, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True},
        {"type": "custom", "name": "mcp__" + "a" * 80, "input_schema": {"type": "object"}},
    ],
    "tool_choice": {"type": "auto"},
    "metadata": {"user_id": "user_1"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}
"""As coding agents send it: every field that one of them is known to use."""


async def ask(client: httpx.AsyncClient, url: str = URL, **body: Any) -> dict[str, Any]:
    response = await client.post(url, json={**BODY, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def events(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    """Asserts that each event has its type as its name."""
    response = await client.post(URL, json={**BODY, **body, "stream": True})
    assert response.status_code == 200, response.text
    return events_in(response.text)


def events_in(text: str) -> list[dict[str, Any]]:
    *written, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for each in written:
        name, data = each.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def in_short(events: list[dict[str, Any]]) -> list[str]:
    """What each event brings, without the first two and the last two."""
    start, ping, *content, delta, stop = events
    assert [each["type"] for each in (start, ping)] == ["message_start", "ping"]
    assert [each["type"] for each in (delta, stop)] == ["message_delta", "message_stop"]
    return [_in_short(each) for each in content]


def _in_short(event: dict[str, Any]) -> str:
    index = event["index"]
    if event["type"] == "content_block_start":
        return f"{index} {event['content_block']['type']}"
    if event["type"] == "content_block_stop":
        return f"{index} end"
    delta = event["delta"]
    return f"{index} + {delta['text'] if delta['type'] == 'text_delta' else delta['partial_json']}"


async def test_an_agents_body_becomes_a_prompt() -> None:
    engine = SayingEngine(["Warm."])
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
    async with client_of(create_app(engine), headers=headers) as client:
        response = await client.post(f"{URL}?beta=true", json=AGENTS_BODY)
    assert response.status_code == 200, response.text
    call = {"name": "weather", "arguments": {"city": "Rome"}}
    assert engine.tokenizer.messages == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "<reminder>\nRome?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Warm.\nDry."},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "user", "content": "Few tokens are left.\nAnd now?"},
    ]
    described, other = engine.tokenizer.tools
    function = {"name": "weather", "description": "Tells the weather.", "parameters": CITY}
    assert described == {"type": "function", "function": function}
    assert other["function"]["name"] == "mcp__" + "a" * 80  # type: ignore[index]
    [asked] = engine.asked
    assert asked["options"].max_tokens_field is None  # type: ignore[attr-defined]
    assert events_in(response.text)[-2]["delta"]["stop_reason"] == "end_turn"


async def test_sampling_is_passed_on(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    given = {"temperature": 0.3, "top_p": 0.9, "top_k": 7, "stop_sequences": ["a", "b"]}
    await ask(client, **given)
    [asked] = engine.asked
    sampling: Any = asked["sampling"]
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.3, 0.9, 7)
    assert (sampling.max_tokens, sampling.stop) == (3, ("a", "b"))


async def test_what_is_said_of_the_cache_is_passed_on(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await ask(client, kv_retention="window:64", cache_hint="pin")
    [asked] = engine.asked
    options: Any = asked["options"]
    assert (options.kv_retention, options.cache_hint) == ("window:64", CacheHint.PIN)
    refused = await client.post(URL, json={**BODY, "cache_hint": "keep"})
    assert refused.status_code == 400
    assert "cache_hint" in refused.json()["error"]["message"]


FREE, SHUT = {"type": "object"}, {"type": "object", "additionalProperties": False}
OPEN = {"type": "object", "additionalProperties": True}


async def test_a_schema_is_followed_strictly(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": FREE, "b": OPEN}}
    await ask(client, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert schema_of(engine) == {**SHUT, "properties": {"a": SHUT, "b": OPEN}}
    for strict, inner in ((True, SHUT), (None, FREE)):
        tool = {"name": "f", "input_schema": {"properties": {"a": FREE}}, "strict": strict}
        await ask(client, tools=[tool], tool_choice={"type": "tool", "name": "f"})
        assert schema_of(engine) == {**SHUT, "properties": {"a": inner}}


async def test_the_older_name_of_a_format_is_followed_too(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    schema = {"type": "object", "properties": {"a": FREE}}
    older = {"type": "json_schema", "schema": schema}
    await ask(client, output_format=older)
    assert schema_of(engine) == {**SHUT, "properties": {"a": SHUT}}
    await ask(client, output_format=None)
    assert engine.asked[-1]["sampling"].structured_outputs is None  # type: ignore[attr-defined]
    forced = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}
    await ask(client, output_format=older, **forced)
    assert "city" in schema_of(engine)["properties"]
    both = {**BODY, "output_format": older, "output_config": FORMAT}
    told = (await client.post(URL, json=both)).json()["error"]["message"]
    assert told.startswith("output_format=")
    assert told.endswith("cannot be combined with output_config.format")


def schema_of(engine: FakeEngine) -> Any:
    sampling: Any = engine.asked[-1]["sampling"]
    return json.loads(sampling.structured_outputs.json)


def conversation(*messages: tuple[str, Any]) -> Conversation:
    given = [InputMessage(role=role, content=content) for role, content in messages]  # type: ignore[arg-type]
    return Conversation.of(None, given)


def test_a_last_message_of_the_assistant_is_gone_on_with() -> None:
    begun = conversation(("user", "Name one."), ("assistant", "A"), ("assistant", "B ("))
    assert begun.messages[-1] == {"role": "assistant", "content": "A\nB ("}
    assert begun.options.continue_final_message
    for nothing in ("", [], [{"type": "thinking"}]):
        fresh = conversation(("user", "Name one."), ("assistant", nothing))
        assert fresh.messages == [{"role": "user", "content": "Name one."}]
        assert fresh.options.add_generation_prompt


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("nothing", ["", [], [{"type": "thinking"}]])
async def test_a_message_that_says_nothing_is_told_as_an_empty_one(
    role: str, nothing: object, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    empty = {"role": role, "content": nothing}
    await ask(client, messages=[empty])
    assert engine.tokenizer.messages == [{"role": role, "content": ""}]
    said = [*HELLO, {"role": "assistant", "content": "A"}]
    if role == "user":  # what the assistant says last is gone on with
        await ask(client, messages=[*said, empty])
        assert engine.tokenizer.messages == [*said, {"role": role, "content": ""}]


def test_results_and_text_of_one_turn_keep_their_order() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "x"}
    text = {"type": "text", "text": "y"}
    told = conversation(("user", [result, result, text]), ("user", [text]))
    assert [each["role"] for each in told.messages] == ["tool", "tool", "user"]
    assert told.messages[-1]["content"] == "y\ny"


async def test_a_whole_message(client: httpx.AsyncClient) -> None:
    answer = await ask(client)
    assert answer.pop("id").startswith("msg_")
    usage = answer.pop("usage")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "zero one two"}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
    }
    assert usage["output_tokens"] == 3


async def test_usage_tells_apart_what_was_cached(client: httpx.AsyncClient) -> None:
    counted = (await ask(client, COUNT))["input_tokens"]
    fresh, again = [(await ask(client))["usage"] for _ in range(2)]
    assert (fresh["input_tokens"], fresh["cache_read_input_tokens"]) == (counted, 0)
    assert again["cache_read_input_tokens"] > 0
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(again[kind] for kind in kinds) == counted


async def test_no_tokens_compute_the_prompt_alone(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await ask(client, max_tokens=0)
    assert (answer["content"], answer["stop_reason"]) == ([], "max_tokens")
    assert answer["usage"]["output_tokens"] == 0
    sampling: Any = engine.asked[0]["sampling"]
    assert sampling.prompt_alone
    assert in_short(await events(client, max_tokens=0)) == []


async def test_events_of_text(client: httpx.AsyncClient) -> None:
    found = await events(client)
    assert in_short(found) == ["0 text", "0 + zero", "0 +  one", "0 +  two", "0 end"]
    message = found[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert found[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 3


SAID = {
    "a call": ([ROME], ["tool_use"], "tool_use"),
    "text and a call": (["Well. ", ROME], ["text", "tool_use"], "tool_use"),
    "two calls": ([ROME, OSLO], ["tool_use", "tool_use"], "tool_use"),
    "text alone": (["It is ", "warm."], ["text"], "end_turn"),
    "text between calls": (
        ["A ", ROME, "B", OSLO, " C"],
        ["text", "tool_use", "text", "tool_use", "text"],
        "tool_use",
    ),
    "nothing": ([""], [], "end_turn"),
}


@pytest.mark.parametrize("name", SAID)
async def test_blocks_are_the_same_whole_and_in_events(
    name: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says, kinds, reason = SAID[name]
    asked = {"tools": [WEATHER], "max_tokens": 50}
    whole = await ask(client, **asked)
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == reason
    streamed = await events(client, **asked)
    assert streamed[-2]["delta"]["stop_reason"] == reason
    texts: list[str] = []
    for each in in_short(streamed):
        if " + " in each:
            texts[-1] += each.partition(" + ")[2]
        elif not each.endswith("end"):
            texts.append("")
    told = [block.get("text") or json.dumps(block["input"]) for block in whole["content"]]
    assert texts == told


async def test_a_call_that_was_cut_ends_with_max_tokens(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = ['{"city": "Rome", ', '"day": "Mon', "never said"]
    forced = {"type": "tool", "name": "weather"}
    asked = {"tools": [WEATHER], "tool_choice": forced, "max_tokens": 2, "output_config": FORMAT}
    cut = await ask(client, **asked)
    [block] = cut["content"]
    assert (cut["stop_reason"], block["input"]) == ("max_tokens", {"city": "Rome"})
    sampling: Any = engine.asked[0]["sampling"]
    assert json.loads(sampling.structured_outputs.json) == {**CITY, "additionalProperties": False}
    streamed = await events(client, **asked)
    assert in_short(streamed) == ["0 tool_use", '0 + {"city": "Rome", ', '0 + "day": "Mon', "0 end"]


def test_arguments_that_are_no_object_are_an_empty_input() -> None:
    for arguments in ("warm", "[1]", '"x"', "", "{nonsense"):
        [block] = content_of(Reading((CallPiece(0, arguments, "weather"),)))
        assert block.input == {}  # type: ignore[union-attr]
    for arguments in ("warm", "[1]", '"x"', ""):
        assert b"input_json_delta" not in BlockEvents().news(
            Reading((CallPiece(0, arguments, "weather"),))
        )


def test_the_end_of_a_call_comes_before_the_text_behind_it() -> None:
    blocks = BlockEvents()
    begun = blocks.news(Reading((CallPiece(0, '{"a":', "weather"),)))
    rest = (CallPiece(0, "1}"), TextPiece(" bye", 9), CallPiece(1, "{}", "weather"))
    ended = blocks.news(Reading(rest))
    told = [_in_short(each) for each in events_in((begun + ended + blocks.end()).decode())]
    assert told == [
        "0 tool_use", '0 + {"a":', "0 + 1}", "0 end", "1 text", "1 +  bye", "1 end",
        "2 tool_use", "2 + {}", "2 end",
    ]  # fmt: skip


async def test_numbers_may_be_texts_and_fields_of_others_are_ignored(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await ask(client, max_tokens="2", temperature="0.5", top_k=3.0, best_of=4)
    assert answer["stop_reason"] == "max_tokens"
    sampling: Any = engine.asked[0]["sampling"]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (2, 0.5, 3)


def test_a_call_may_come_in_pieces() -> None:
    blocks = BlockEvents()
    pieces = (CallPiece(0, "", "weather"), CallPiece(0, '{"city": '), CallPiece(0, '"Rome"}'))
    written = b"".join(blocks.news(Reading((piece,))) for piece in pieces) + blocks.end()
    told = [_in_short(each) for each in events_in(written.decode())]
    assert told == ["0 tool_use", '0 + {"city": ', '0 + "Rome"}', "0 end"]


async def test_choices_among_tools(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.says = [ROME, OSLO]
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert len((await ask(client, tools=[WEATHER], tool_choice=one))["content"]) == 1
    await ask(client, tools=[WEATHER], tool_choice={"type": "none"})
    assert engine.tokenizer.tools == []
    await ask(client, tools=[WEATHER], tool_choice={"type": "any"})
    sampling: Any = engine.asked[-1]["sampling"]
    assert "weather" in sampling.structured_outputs.json


@pytest.fixture
def stopping(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Makes the engine end its answers of one token as it is told."""

    def end_with(reason: str | None) -> None:
        async def generate(prompt: Any, sampling: Any, **options: Any) -> Any:
            choice = engine._choice(0, 1, 9, sampling)
            ended = replace(
                choice, finish_reason="stop" if reason else "length", stop_reason=reason
            )
            yield RequestOutput("", None, [FIRST_WORD_ID], None, [ended], True)

        monkeypatch.setattr(engine, "generate", generate)

    return end_with


async def test_why_a_message_ends(
    client: httpx.AsyncClient, stopping: Callable[[str | None], None]
) -> None:
    stopping("###")
    expected = {"stop_reason": "stop_sequence", "stop_sequence": "###"}
    whole = await ask(client, stop_sequences=["###"])
    assert {name: whole[name] for name in expected} == expected
    assert (await events(client, stop_sequences=["###"]))[-2]["delta"] == expected
    stopping(None)  # earlier than max_tokens
    assert (await ask(client))["stop_reason"] == "model_context_window_exceeded"


async def test_a_failure_is_an_event(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail = engine_failure()
    response = await client.post(URL, json={**BODY, "stream": True})
    *_, last = events_in(response.text)
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert last["request_id"] == response.headers["request-id"]
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, TENANT_FULL, "rate_limit_error"),
        (503, SERVER_FULL, "overloaded_error"),
        (503, SHUTTING_DOWN, "overloaded_error"),
    ],
)
def test_a_failure_in_a_stream_has_the_type_of_its_status(
    status: int, code: str, kind: str
) -> None:
    detail = detail_of(RejectedError(status, code, "no more"))
    assert failure_of(detail, "1") == messages_error(status, detail, "1")
    assert failure_of(detail, "1").error.type == kind


async def test_leaving_aborts(engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    async with client_of(create_app(engine)) as client:
        asking = asyncio.create_task(client.post(URL, json=BODY))
        await until(lambda: len(engine.started) == 1)
        assert engine.aborted == []
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: engine.aborted == engine.started)


def said_by(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": role, "content": list(blocks)}]}


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "1"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no max_tokens": ({"max_tokens": None}, "max_tokens"),
    "negative max_tokens": ({"max_tokens": -1}, "max_tokens=-1: must be between 0 and"),
    "endless max_tokens": ({"max_tokens": 10**30}, "must be between 0 and"),
    "no messages": ({"messages": []}, "messages"),
    "a role": (said_by("wizard"), "messages[1].role"),
    "an image": (said_by("user", IMAGE), "messages[1].content[0]"),
    "an image in a result": (said_by("user", {**RESULT, "content": [IMAGE]}), "no images"),
    "a document": (said_by("user", {**IMAGE, "type": "document"}), "document"),
    "a server's result": (said_by("user", {"type": "web_search_tool_result"}), "web_search"),
    "the user's call": (said_by("user", CALL), "only an assistant's message"),
    "the assistant's result": (said_by("assistant", RESULT), "only a user's message"),
    "a call at the end": (said_by("assistant", CALL), "needs a tool_result"),
    "a server's tool": ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "web_search"),
    "a choice without a name": ({"tool_choice": {"type": "tool"}}, "tool_choice"),
    "a tool that is not there": (
        said_by("user", {**RESULT, "content": [{"type": "tool_reference", "tool_name": "x"}]}),
        "messages='x': a tool_reference must name one of tools",
    ),
    "a choice of no tool": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "stops": ({"stop_sequences": [""]}, "stop_sequences"),
    "other servers": ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    "too long": ({"system": "x" * 100}, "prompt is too long"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_bodies(name: str, client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body, told = BAD[name]
    response = await client.post(URL, json={**BODY, **body})
    assert_error(response, 400, "invalid_request_error")
    assert told in response.json()["error"]["message"]
    assert engine.started == []


async def test_a_choice_is_refused_in_the_clients_own_words(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json={**BODY, "tool_choice": {"type": "any"}})
    message = response.json()["error"]["message"]
    assert message == "tool_choice={'type': 'any'}: needs tools"


async def test_a_tool_is_described_where_it_is_first_referred_to(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    found = {"type": "tool_reference", "tool_name": "weather"}
    body = said_by("user", {**RESULT, "content": [found, found]})
    later = {**WEATHER, "defer_loading": True}
    response = await client.post(COUNT, json={"model": MODEL, **body, "tools": [later]})
    assert response.status_code == 200, response.text
    assert engine.tokenizer.tools == []
    definition, again = engine.tokenizer.messages[-1]["content"].split("\n")
    assert json.loads(definition)["function"]["parameters"] == CITY
    assert again == "weather"


@pytest.mark.parametrize("choice", ["auto", "any", "none"])
async def test_a_tool_that_may_not_be_called_is_described_as_before(
    choice: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = said_by("user", {**RESULT, "content": [{"type": "tool_reference", "tool_name": "f"}]})
    tools = [{"name": "f", "input_schema": {}, "defer_loading": True}]
    await client.post(COUNT, json={**body, "tools": tools, "tool_choice": {"type": choice}})
    definition = json.loads(engine.tokenizer.messages[-1]["content"])
    assert definition["function"]["name"] == "f"
    assert engine.tokenizer.tools == []


def assert_error(response: httpx.Response, status: int, kind: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert set(body) == {"type", "error", "request_id"}
    assert set(body["error"]) == {"type", "message"}
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert int(response.headers["content-length"]) == len(response.content)


@pytest.mark.parametrize("url", [URL, COUNT])
async def test_errors_of_the_door(url: str, engine: FakeEngine) -> None:
    options = ServerOptions(max_body_bytes=400, max_header_bytes=600, client_timeout=0.05)
    app = create_app(engine, options, KeyRing({KEY: "tests"}))
    async with client_of(app, headers={"x-api-key": KEY}) as client:
        stranger = await client.post(url, json=BODY, headers={"x-api-key": "another"})
        assert_error(stranger, 401, "authentication_error")
        unknown = await client.post(url, json={**BODY, "model": "claude-1"})
        assert_error(unknown, 404, "not_found_error")
        assert MODEL in unknown.json()["error"]["message"]
        assert_error(await client.get(f"{URL}/batches"), 404, "not_found_error")
        assert_error(await client.get(url), 405, "invalid_request_error")
        large = await client.post(url, json={**BODY, "system": "x" * 400})
        assert_error(large, 413, "request_too_large")
        headers = {"x-much": "x" * 600}
        assert_error(await client.post(url, json=BODY, headers=headers), 431, "request_too_large")
        assert_error(await client.post(url, content=slowly()), 408, "timeout_error")
        assert_error(await client.post(url, content=b"{"), 400, "invalid_request_error")


async def slowly() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.sleep(10)


@pytest.mark.parametrize(
    ("most", "status", "kind"), [(1, 429, "rate_limit_error"), (None, 503, "overloaded_error")]
)
async def test_errors_of_a_full_server(
    most: int | None, status: int, kind: str, engine: FakeEngine
) -> None:
    engine.hold, engine.max_num_seqs = asyncio.Event(), 1
    options = ServerOptions(max_num_queued_reqs=1 if most else 0, max_num_reqs_per_key=most)
    async with client_of(create_app(engine, options)) as client:
        first = asyncio.create_task(client.post(URL, json=BODY))
        await until(lambda: len(engine.started) == 1)
        for url in (URL, COUNT):
            response = await client.post(url, json=BODY)
            assert_error(response, status, kind)
            assert response.headers["retry-after"] == "1"
        engine.hold.set()
        assert (await first).status_code == 200


async def test_errors_of_the_engine(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.fail = engine_failure()
    async with client_of(create_app(engine)) as client:
        assert_error(await client.post(URL, json=BODY), 500, "api_error")
        monkeypatch.setattr(engine.tokenizer, "chat", None)  # a fault of the server's own
        assert_error(await client.post(URL, json=BODY), 500, "api_error")
    engine.fail, engine.hold = None, asyncio.Event()
    monkeypatch.undo()
    async with client_of(create_app(engine, ServerOptions(request_timeout=0.02))) as client:
        assert_error(await client.post(URL, json=BODY), 504, "timeout_error")


async def test_other_routes_keep_openais_shape(client: httpx.AsyncClient) -> None:
    for path in ("/v1/chat/completions", "/v1/messagesque"):
        assert set((await client.post(path, json={})).json()) == {"error"}


async def test_either_header_has_a_key(engine: FakeEngine) -> None:
    async with client_of(create_app(engine, keys=KeyRing({KEY: "tests"}))) as client:
        for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert (await client.post(URL, json=BODY, headers=headers)).status_code == 200
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        wrong = {"x-api-key": KEY, "authorization": "Bearer another"}
        assert (await client.post(URL, json=BODY, headers=wrong)).status_code == 401
