"""Tools: what clients offer, what the model is told, and how its calls are found."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.models.tool_prompt import format_in, in_plain_messages
from pagoda.server import json_calls
from pagoda.server.forced_calls import ForcedArguments, ForcedCalls
from pagoda.server.json_end import JSONEnd
from pagoda.server.tool_calls import (
    AnswerReader,
    CallPiece,
    FirstCall,
    Reading,
    ToolCall,
    gathered,
)
from pagoda.server.tool_forms import begin_reading
from pagoda.server.tools import MAX_TOOLS
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


SHUT, OPEN = {"additionalProperties": False}, {"additionalProperties": True}
TOOLS = [tool("weather"), tool("clock", {"type": "object", "properties": {}})]
LONG = "a." * 64
NAMES = frozenset({"weather", "clock", "files.read-2", LONG})
ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo </tool_call> \\" }"}'
WEATHER_ROME, WEATHER_OSLO = ToolCall("weather", ROME), ToolCall("weather", OSLO)


def hermes(arguments: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(arguments: str) -> str:
    return f'{{"name": "weather", "parameters": {arguments}}}'


READ: dict[str, tuple[str, str, str, tuple[ToolCall, ...]]] = {
    "no call": ("hermes", "It is <b>warm</b>.\n", "It is <b>warm</b>.\n", ()),
    "a call": ("hermes", hermes(ROME), "", (WEATHER_ROME,)),
    "two calls": ("hermes", f"{hermes(ROME)}\n{hermes(OSLO)}", "", (WEATHER_ROME, WEATHER_OSLO)),
    "text before": ("hermes", f"Let me see.\n\n{hermes(ROME)}", "Let me see.", (WEATHER_ROME,)),
    "text after": ("hermes", f"A {hermes(ROME)} B", "A  B", (WEATHER_ROME,)),
    "no closing tag": ("hermes", hermes(ROME).removesuffix("</tool_call>"), "", (WEATHER_ROME,)),
    "arguments as text": (
        "hermes",
        hermes(json.dumps(ROME)),
        "",
        (WEATHER_ROME,),
    ),
    "no arguments": ("hermes", hermes("{}", "clock"), "", (ToolCall("clock", "{}"),)),
    "half a call": ("hermes", hermes(ROME)[:30], hermes(ROME)[:30], ()),
    "no JSON": ("hermes", "<tool_call>x</tool_call>", "<tool_call>x</tool_call>", ()),
    "an unknown tool": ("hermes", hermes(ROME, "rm"), hermes(ROME, "rm"), ()),
    "an unknown tool with odd arguments": ("hermes", hermes("[1", "rm"), hermes("[1", "rm"), ()),
    "arguments as they were written": (
        "hermes",
        hermes('{ "n":1.50,\n"x":NaN,"e":"\\u00e9" }'),
        "",
        (ToolCall("weather", '{ "n":1.50,\n"x":NaN,"e":"\\u00e9" }'),),
    ),
    "arguments that break off": (
        "hermes",
        hermes(ROME).removesuffix('me"}}\n</tool_call>'),
        "",
        (ToolCall("weather", '{"city": "Ro'),),
    ),
    "arguments that break": (
        "hermes",
        hermes('{"city": ]'),
        "]}\n</tool_call>",
        (ToolCall("weather", '{"city": '),),
    ),
    "arguments before the name": (
        "hermes",
        f'<tool_call>{{"arguments": {ROME}, "name": "weather"}}</tool_call>',
        "",
        (WEATHER_ROME,),
    ),
    "text of arguments before the name": (
        "hermes",
        f'<tool_call>{{"parameters": {json.dumps(ROME)}, "name": "weather"}}</tool_call>',
        "",
        (WEATHER_ROME,),
    ),
    "more beside the arguments": (
        "hermes",
        f'<tool_call>{{"id": 7, "name": "weather", "arguments": {ROME}, "x": [{{}}], "y": null}}',
        "",
        (WEATHER_ROME,),
    ),
    "cut behind the arguments": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {ROME}, "x": "',
        "",
        (WEATHER_ROME,),
    ),
    "a call without arguments": (
        "hermes",
        '<tool_call>{"name": "clock"}</tool_call>',
        "",
        (ToolCall("clock", "{}"),),
    ),
    "arguments of null": ("hermes", hermes("null", "clock"), "", (ToolCall("clock", "{}"),)),
    "arguments of a number": ("hermes", hermes("1"), hermes("1"), ()),
    "arguments twice": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {ROME}, "arguments": {{}}}}</tool_call>',
        "",
        (WEATHER_ROME,),
    ),
    "half a character": (
        "hermes",
        hermes(r'"\ud800"'),
        hermes(r'"\ud800"'),
        (),
    ),
    "no JSON before a call": (
        "hermes",
        f"<tool_call>x</tool_call>{hermes(ROME)}",
        "<tool_call>x</tool_call>",
        (WEATHER_ROME,),
    ),
    "deep JSON": ("hermes", "<tool_call>" + "[" * 9999, "<tool_call>" + "[" * 9999, ()),
    "half a tag at the end": ("hermes", "a <tool_ca", "a <tool_ca", ()),
    "Mistral's": (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, '
        f'{{"name": "weather", "arguments": {OSLO}}}]',
        "",
        (WEATHER_ROME, WEATHER_OSLO),
    ),
    "Mistral's newer": (
        "mistral",
        f"Well.[TOOL_CALLS]weather[ARGS]{ROME}[TOOL_CALLS]weather[ARGS]{OSLO}",
        "Well.",
        (WEATHER_ROME, WEATHER_OSLO),
    ),
    "Mistral's newer, with ids": (
        "mistral",
        f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{ROME}",
        "",
        (WEATHER_ROME,),
    ),
    "Mistral's newer, bare": ("mistral", f"[TOOL_CALLS] weather {ROME}", "", (WEATHER_ROME,)),
    "Mistral's list, cut": (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, {{"na',
        "",
        (WEATHER_ROME,),
    ),
    "Mistral's list with something else": (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, 5] there',
        " 5] there",
        (WEATHER_ROME,),
    ),
    "Mistral's empty list": ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", ()),
    "a name with a dot": (
        "mistral",
        "[TOOL_CALLS]files.read-2[ARGS]{}",
        "",
        (ToolCall("files.read-2", "{}"),),
    ),
    "a long name": (
        "mistral",
        f"[TOOL_CALLS]{LONG}[CALL_ID]a1b2c3d4e[ARGS]{{}}",
        "",
        (ToolCall(LONG, "{}"),),
    ),
    "a name with a dot, Llama's": (
        "llama",
        '{"name": "files.read-2", "parameters": {}}',
        "",
        (ToolCall("files.read-2", "{}"),),
    ),
    "Mistral's newer, unknown": ("mistral", "[TOOL_CALLS]rm[ARGS]{}", "[TOOL_CALLS]rm[ARGS]{}", ()),
    "Mistral's newer, cut": ("mistral", "[TOOL_CALLS]weather[AR", "[TOOL_CALLS]weather[AR", ()),
    "Mistral's odd name": ("mistral", "[TOOL_CALLS]wea ther{}", "[TOOL_CALLS]wea ther{}", ()),
    "Mistral's text": ("mistral", "See [1] and [TOOL", "See [1] and [TOOL", ()),
    "Llama's": ("llama", llama(ROME), "", (WEATHER_ROME,)),
    "Llama's with a tag": ("llama", f"<|python_tag|>{llama(ROME)}", "", (WEATHER_ROME,)),
    "Llama's two": ("llama", f"{llama(ROME)}; {llama(OSLO)}", "", (WEATHER_ROME, WEATHER_OSLO)),
    "Llama's text": ("llama", f"Sure: {llama(ROME)}", f"Sure: {llama(ROME)}", ()),
    "Llama's list": ("llama", f"[{llama(ROME)}]", f"[{llama(ROME)}]", ()),
    "Llama's call and text": ("llama", f"{llama(ROME)} there", "there", (WEATHER_ROME,)),
    "Llama's own JSON": (
        "llama",
        '{"name": "Bob", "parameters": 1}',
        '{"name": "Bob", "parameters": 1}',
        (),
    ),
}

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


def reader(form: Any) -> AnswerReader:
    return begin_reading(form, NAMES)


Read = tuple[str, tuple[ToolCall, ...]]


def read(reader: AnswerReader, pieces: list[str]) -> Read:
    """The text and the calls of an answer that comes in these pieces."""
    readings = [reader.feed(piece, finished=False) for piece in pieces]
    readings.append(reader.feed("", finished=True))
    content = "".join(reading.content for reading in readings)
    return content, tuple(gathered(piece for reading in readings for piece in reading.calls))


def pieces_made(deltas: list[dict[str, Any]]) -> list[ToolCall]:
    """The calls that a stream's `tool_calls` make."""
    functions = [(each["index"], each["function"]) for each in deltas]
    return gathered(CallPiece(n, each["arguments"], each.get("name")) for n, each in functions)


def calls_of(reading: Reading) -> tuple[ToolCall, ...]:
    return tuple(gathered(reading.calls))


@pytest.mark.parametrize("name", READ)
async def test_calls_are_found(name: str) -> None:
    form, text, content, calls = READ[name]
    reading = reader(form).feed(text, finished=True)
    assert (reading.content, calls_of(reading)) == (content, calls)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("name", READ)
async def test_calls_are_found_in_any_pieces(name: str, size: int) -> None:
    form, text, content, calls = READ[name]
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert read(reader(form), pieces) == (content, calls)


async def test_text_outside_of_calls_is_told_as_it_comes() -> None:
    hermes_reader = reader("hermes")
    assert hermes_reader.feed("It is <to", finished=False).content == "It is"
    assert hermes_reader.feed(" you", finished=False).content == " <to you"
    assert reader("llama").feed("It", finished=False).content == "It"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_call>x"),
        ("hermes", '<tool_call>{"name": 5}</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather", </tool_call>'),
        ("hermes", '<tool_call>{"name": "weather]</tool_call>\n'),
        ("hermes", '<tool_call>{"name": "weather"]</tool_call>'),
        ("hermes", "<tool_call>" + " " * 300),
        ("mistral", "[TOOL_CALLS]weather: "),
        ("llama", '{"Rome": "warm"}'),
        ("llama", "<|python_tag|>print(1)"),
    ],
)
async def test_what_cannot_be_a_call_any_more_is_told_at_once(form: str, text: str) -> None:
    assert reader(form).feed(text, finished=False).content == text.rstrip()


STREAMED = {
    "Hermes'": ("hermes", '<tool_call>\n{"name": "weather", "arguments": ', "}\n</tool_call>"),
    "Mistral's list": ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": ', "}]"),
    "Mistral's newer": ("mistral", "[TOOL_CALLS]weather[ARGS]", ""),
    "Llama's": ("llama", '{"name": "weather", "parameters": ', "}"),
}


@pytest.mark.parametrize("name", STREAMED)
async def test_arguments_are_told_as_they_come(name: str) -> None:
    form, before, behind = STREAMED[name]
    streamed = reader(form)
    assert not any(streamed.feed(character, finished=False).calls for character in before)
    [first] = streamed.feed(OSLO[:3], finished=False).calls
    assert first == CallPiece(0, OSLO[:3], "weather")
    for character in OSLO[3:]:
        assert streamed.feed(character, finished=False).calls == (CallPiece(0, character),)
    assert not any(streamed.feed(character, finished=False).calls for character in behind)


async def test_a_name_that_comes_last_is_waited_for() -> None:
    streamed = reader("llama")
    assert not streamed.feed(f'{{"parameters": {ROME}, "name": "weath', finished=False).calls
    assert streamed.feed('er"', finished=False).calls == (CallPiece(0, ROME, "weather"),)


CUT_CALLS = (WEATHER_ROME, ToolCall("clock", '{"at": 1'))
CALLS = f'[{{"name": "weather", "parameters": {ROME}}}, {{"name": "clock", "parameters": {{"at": 1'


@pytest.mark.parametrize(
    ("num_characters", "calls"),
    [
        (len(CALLS), CUT_CALLS),
        (CALLS.index('{"at"'), (WEATHER_ROME, ToolCall("clock", ""))),
        (CALLS.index('ck"'), (WEATHER_ROME,)),
        (CALLS.index("ome"), (ToolCall("weather", '{"city": "R'),)),
        (1, ()),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 99])
async def test_forced_calls_that_are_cut_are_told_as_far_as_they_went(
    num_characters: int, calls: tuple[ToolCall, ...], size: int
) -> None:
    said = CALLS[:num_characters]
    pieces = [said[start : start + size] for start in range(0, len(said), size)]
    assert read(ForcedCalls(NAMES), pieces) == ("", calls)


async def test_a_named_call_is_told_even_if_it_is_cut_at_once() -> None:
    assert read(ForcedArguments("weather"), []) == ("", (ToolCall("weather", ""),))
    assert read(ForcedArguments("weather"), list(ROME)) == ("", (WEATHER_ROME,))


async def test_one_call_is_enough_where_no_more_are_wanted() -> None:
    pieces = [hermes(ROME), hermes(OSLO)]
    assert read(FirstCall(reader("hermes")), pieces)[1] == (WEATHER_ROME,)
    assert read(FirstCall(reader("hermes")), ["".join(pieces)])[1] == (WEATHER_ROME,)


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "weather", '"name"',
    '"weather"', '{"name": "weather", "arguments": ', "{}", "{", "}", "[", "]", '"', "\\", ":", ",",
    "; ", "\n", "\x0b", " ", "é", "<", hermes(ROME), hermes(OSLO), llama(ROME), '["', ',"',
]  # fmt: skip


class CountingEnd(JSONEnd):
    num_looked_at = 0

    def look(self, text: str, position: int) -> int:
        end = super().look(text, position)
        CountingEnd.num_looked_at += end - position
        return end


@settings(max_examples=2000, deadline=None)
@given(
    form=st.sampled_from(["hermes", "mistral", "llama"]),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=40),
    size=st.integers(1, 9),
)
def test_any_pieces_bring_the_same_and_are_looked_at_once(
    form: str, fragments: list[str], size: int
) -> None:
    text = "".join(fragments)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_calls, "JSONEnd", CountingEnd)
        for parts in (pieces, [text]):
            CountingEnd.num_looked_at = 0
            whole = reader(form).feed(text, finished=True)
            assert read(reader(form), parts) == (whole.content, calls_of(whole))
            assert CountingEnd.num_looked_at <= 2 * len(text)  # once, by two readers


@pytest.mark.parametrize("unit", ['<tool_call>["', '<tool_call>[",', "<tool_call>[", '"\\"'])
async def test_a_long_answer_is_not_read_again_for_each_piece(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_calls, "JSONEnd", CountingEnd)
    CountingEnd.num_looked_at = 0
    text = '<tool_call>{"' + unit * 2000
    read(reader("hermes"), list(text))
    assert CountingEnd.num_looked_at <= len(text)


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


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}[TOOL_CALLS]", "mistral"),
        ("{% if tools %}<tool_call>", "hermes"),
        ('{% if tools %}{"name": function name, "parameters": dictionary of', "llama"),
        ("{% if tools %}<|python_tag|>", "llama"),
        ("{% if tools %}something else", None),
        ("{{ messages }}", None),
    ],
)
async def test_the_form_is_told_from_the_template(template: str, form: str | None) -> None:
    assert format_in(template) == form


async def test_a_template_without_tools_is_told_in_words() -> None:
    function = {"name": "clock", "arguments": {"zone": "é"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "Wait.", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "noon"},
    ]
    system, assistant, user = in_plain_messages(messages, TOOLS)
    assert system["content"].startswith("Be kind.\n\n# Tools")
    assert json.dumps(TOOLS[0]) in system["content"]
    said = "Wait.\n" + hermes('{"zone": "é"}', "clock")
    assert assistant == {"role": "assistant", "content": said}
    assert user == {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}
    assert in_plain_messages(HELLO, []) == HELLO
    assert in_plain_messages(HELLO, TOOLS)[0]["role"] == "system"
    assert "tool_calls" in messages[1]


# ---- over the default model ------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("choice", ["required", named("weather")], ids=["required", "named"])
async def test_the_default_model_calls_what_it_must(
    choice: Any, temperature: float, server: httpx.AsyncClient
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
    response = await server.post(URL, json=body)
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
    again = await server.post(URL, json={"messages": after, "tools": TOOLS, "max_tokens": 8})
    assert again.status_code == 200, again.text


@pytest.mark.model
async def test_a_schema_that_only_a_forced_call_compiles(server: httpx.AsyncClient) -> None:
    odd = tool("a", {"type": "object", "properties": {"x": {"not": {"type": "string"}}}})
    body = {"messages": HELLO, "tools": [odd], "max_tokens": 4}
    assert (await server.post(URL, json=body)).status_code == 200
    refused = await server.post(URL, json={**body, "tool_choice": "required"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"
