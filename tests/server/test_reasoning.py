"""What a model thinks before it answers, apart from the answer in all three APIs."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from pagoda.errors import InvalidOptionError
from pagoda.request import ThoughtMarks
from pagoda.server.app import create_app
from pagoda.server.options import ServerOptions
from server.calling_answers import ROME, hermes
from server.conftest import client_of
from server.fake_engine import FIRST_WORD_ID, MODEL, FakeEngine
from server.sse import chat_text, events_of

pytestmark = pytest.mark.anyio
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
SAYS = ("<think>", "\nHm", ".\n</thi", "nk>\n\nIt", " is.")
TEMPLATE = "{{ m.content.split('</think>') }} <think>"
ENABLED = {"max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORM = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}


@pytest.fixture
def thinker(engine: FakeEngine, app: Any) -> FakeEngine:
    """The engine of a model that thinks."""
    engine.says = SAYS
    engine.tokenizer.chat_template = TEMPLATE
    engine.tokenizer.marks = ("<think>", "</think>")
    return engine


@pytest.fixture(autouse=True)
def _thinks(thinker: FakeEngine) -> None:
    """What the model's form is was found out by the file's first request."""


async def anew(engine: FakeEngine, options: ServerOptions | None = None, **fields: Any) -> Any:
    """What an application says that has found out nothing yet."""
    async with client_of(create_app(engine, options)) as client:  # type: ignore[arg-type]
        return await ask(client, **fields)


async def ask(client: httpx.AsyncClient, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    said = {"input": "hi"} if url == RESPONSES else {"messages": HELLO}
    response = await client.post(url, json={**said, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def chunks(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    response = await client.post(CHAT, json={"messages": HELLO, "stream": True, **fields})
    return events_of(response.text)


async def named_events(client: httpx.AsyncClient, url: str, **fields: Any) -> list[dict[str, Any]]:
    said = {"input": "hi"} if url == RESPONSES else {"messages": HELLO}
    response = await client.post(url, json={**said, "stream": True, **fields})
    parts = [each.partition("data: ")[2] for each in response.text.split("\n\n")]
    return [json.loads(each) for each in parts if each]


def count_as_said(engine: FakeEngine) -> None:
    """The tokens of the first choice are the pieces that it says."""
    engine.tokenizer.token_bytes = (  # type: ignore[method-assign]
        lambda token_id: engine.says[token_id - FIRST_WORD_ID].encode()
    )


async def test_a_whole_chat(client: httpx.AsyncClient, thinker: FakeEngine) -> None:
    count_as_said(thinker)
    answer = await ask(client)
    [choice] = answer["choices"]
    assert choice["message"] == {
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
        "role": "assistant",
        "content": "It is.",
    }
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


async def test_a_streamed_chat(client: httpx.AsyncClient, thinker: FakeEngine) -> None:
    count_as_said(thinker)
    told = await chunks(client, stream_options={"include_usage": True})
    deltas = [each["choices"][0]["delta"] for each in told[:-1]]
    assert [each.get("reasoning_content") for each in deltas] == [None, "Hm", ".", None, None]
    assert all(each.get("reasoning") == each.get("reasoning_content") for each in deltas)
    assert [each.get("content") for each in deltas] == ["", None, None, "It", " is."]
    assert told[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


async def test_usage_in_chunks_tells_the_thoughts_so_far(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    count_as_said(thinker)
    told = await chunks(client, stream_options={"continuous_usage_stats": True})
    details = [each["usage"]["completion_tokens_details"] for each in told]
    assert [each["reasoning_tokens"] for each in details] == [1, 2, 3, 4, 4]


async def test_each_of_several_answers_has_its_thought(client: httpx.AsyncClient) -> None:
    for choice in (await ask(client, n=2))["choices"]:
        assert choice["message"]["reasoning_content"] == "Hm."
        assert choice["message"]["content"] == "It is."
    assert [chat_text(await chunks(client, n=2), index) for index in range(2)] == ["It is."] * 2


async def test_a_thought_that_is_cut_is_no_answer(client: httpx.AsyncClient) -> None:
    [choice] = (await ask(client, max_tokens=2))["choices"]
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "Hm"
    assert choice["finish_reason"] == "length"
    told = await chunks(client, max_tokens=2)
    assert chat_text(told) == ""
    assert told[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_thought_may_have_begun_in_the_prompt(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    thinker.tokenizer.begun_answer = "assistant\n<think>\n"
    thinker.says = ("Hm.", "\n</think>\n", "Yes.")
    [choice] = (await ask(client))["choices"]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", "Yes.")
    thinker.tokenizer.begun_answer = "assistant\n<think>\n\n</think>\n\n"
    thinker.says = ("Hm.", " Yes.")
    [choice] = (await ask(client))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hm. Yes."}


async def test_thoughts_may_be_left_out(client: httpx.AsyncClient) -> None:
    [choice] = (await ask(client, include_reasoning=False))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It is."}
    told = await chunks(client, include_reasoning=False)
    assert chat_text(told) == "It is."
    assert "Hm" not in json.dumps(told)


async def test_calls_are_read_behind_the_thought_alone(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    thinker.says = ("<think>I might ", hermes(ROME), "</think>\n", hermes(ROME))
    function = {"name": "weather", "parameters": CITY}
    [choice] = (await ask(client, tools=[{"type": "function", "function": function}]))["choices"]
    message = choice["message"]
    assert message["reasoning_content"] == f"I might {hermes(ROME)}"
    assert message["content"] is None
    assert [each["function"]["arguments"] for each in message["tool_calls"]] == [ROME]
    assert choice["finish_reason"] == "tool_calls"


async def test_a_form_holds_behind_the_thought(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    thinker.says = ("<think>", "Hm.", "</think>", ROME)
    [choice] = (await ask(client, response_format=FORM))["choices"]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", ROME)
    options: Any = thinker.asked[-1]["options"]
    assert options.thought == ThoughtMarks(2000, 2001, is_open=False)
    assert options.shown_ids == {2000, 2001}


async def test_where_marks_are_no_tokens_a_form_holds_for_all(thinker: FakeEngine) -> None:
    thinker.tokenizer.marks = ()
    thinker.says = (ROME,)
    thinker.tokenizer.begun_answer = "<think>\n"
    [choice] = (await anew(thinker, response_format=FORM))["choices"]
    assert choice["message"] == {"role": "assistant", "content": ROME}
    options: Any = thinker.asked[-1]["options"]
    assert options.thought is None


async def test_past_thoughts_are_given_to_the_template(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    for name in ("reasoning_content", "reasoning"):
        said = {"role": "assistant", "content": "a", name: "Hm."}
        await ask(client, messages=[*HELLO, said, *HELLO])
        past = {"role": "assistant", "content": "a", "reasoning_content": "Hm."}
        assert thinker.tokenizer.messages[1] == past


async def test_what_a_model_says_that_does_not_think_stays_as_it_is(thinker: FakeEngine) -> None:
    thinker.tokenizer.chat_template, thinker.tokenizer.marks = "{{ messages }}", ()
    answer = await anew(thinker)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "".join(SAYS)}
    assert "completion_tokens_details" not in answer["usage"]


@pytest.mark.parametrize(
    ("parser", "content"),
    [("none", "".join(SAYS)), ("qwen3", "It is."), ("mistral", "".join(SAYS)), ("auto", "It is.")],
)
async def test_a_flag_names_the_form(parser: str, content: str, thinker: FakeEngine) -> None:
    [choice] = (await anew(thinker, ServerOptions(reasoning_parser=parser)))["choices"]
    assert choice["message"]["content"] == content


async def test_defaults_for_the_template(thinker: FakeEngine) -> None:
    options = ServerOptions(default_chat_template_kwargs={"enable_thinking": False, "a": 1})
    async with client_of(create_app(thinker, options)) as client:  # type: ignore[arg-type]
        for url, fields in ((CHAT, {}), (RESPONSES, {}), (MESSAGES, {"max_tokens": 9})):
            await ask(client, url, **fields)
            kwargs = thinker.tokenizer.options.template_kwargs
            assert kwargs == {"enable_thinking": False, "a": 1}
        for url in (CHAT, "/tokenize"):
            await ask(client, url, chat_template_kwargs={"enable_thinking": True})
            kwargs = thinker.tokenizer.options.template_kwargs
            assert kwargs == {"enable_thinking": True, "a": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"reasoning_parser": "qwen"},
        {"default_chat_template_kwargs": {"a": [1]}},
        {"default_chat_template_kwargs": {"a" * 65: 1}},
    ],
)
def test_options_that_will_not_do(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        ServerOptions(**options)


async def test_openais_client_reads_it(client: httpx.AsyncClient) -> None:
    import openai

    asked: Any = {"model": MODEL, "messages": HELLO}
    async with openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key="x", http_client=client
    ) as openais:
        whole = await openais.chat.completions.create(**asked)
        [choice] = whole.choices
        assert (choice.message.content, choice.message.reasoning_content) == ("It is.", "Hm.")  # type: ignore[attr-defined]
        stream = await openais.chat.completions.create(**asked, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert "".join(getattr(each, "reasoning_content", "") for each in deltas) == "Hm."
        response = await openais.responses.create(model=MODEL, input="hi")
        assert response.output_text == "It is."
        assert response.output[0].content[0].text == "Hm."  # type: ignore[union-attr,index]


# ---- OpenAI's Responses API --------------------------------------------------------------------


async def test_a_whole_response(client: httpx.AsyncClient, thinker: FakeEngine) -> None:
    count_as_said(thinker)
    answer = await ask(client, RESPONSES)
    thought, message = answer["output"]
    assert thought["id"].startswith("rs_")
    assert {**thought, "id": ""} == {
        "id": "",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    assert message["content"][0]["text"] == "It is."
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


async def test_a_streamed_response(client: httpx.AsyncClient) -> None:
    events = await named_events(client, RESPONSES)
    told = [each["type"].removeprefix("response.") for each in events]
    assert told == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    done = next(each for each in events if each["type"].endswith("reasoning_text.done"))
    assert (done["text"], done["output_index"]) == ("Hm.", 0)
    [thought, _] = events[-1]["response"]["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]


async def test_a_response_that_is_cut_in_its_thought(client: httpx.AsyncClient) -> None:
    answer = await ask(client, RESPONSES, max_output_tokens=2)
    [thought] = answer["output"]
    assert (answer["status"], thought["status"]) == ("incomplete", "incomplete")


async def test_the_tokens_of_a_thought_are_none_of_the_text(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    thinker.says = ("<think>", "Hm.", "</think>", "It", " is.")
    count_as_said(thinker)
    wanted = ["message.output_text.logprobs"]
    _, message = (await ask(client, RESPONSES, include=wanted))["output"]
    assert len(message["content"][0]["logprobs"]) == 2


async def test_a_thought_goes_before_what_was_said_behind_it(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    first = await ask(client, RESPONSES)
    await ask(client, RESPONSES, input="and?", previous_response_id=first["id"])
    past = {"role": "assistant", "content": "It is.", "reasoning_content": "Hm."}
    assert thinker.tokenizer.messages[1] == past
    listed = (await client.get(f"{RESPONSES}/{first['id']}/input_items")).json()["data"]
    assert [each["type"] for each in listed] == ["message"]
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
        {"type": "reasoning_text", "text": "So."}
    ]}  # fmt: skip
    call = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "warm"}
    said = [*HELLO, thought, call, result, thought, *HELLO]
    await ask(client, RESPONSES, input=said)
    messages = thinker.tokenizer.messages
    assert [each.get("reasoning_content") for each in messages] == [None, "So.", None, None]
    assert messages[1]["tool_calls"][0]["id"] == "1"


async def test_an_effort_is_given_to_the_template(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    thinker.tokenizer.template_names = frozenset({"reasoning_effort"})
    answer = await ask(client, RESPONSES, reasoning={"effort": "low"})
    assert answer["reasoning"] == {"effort": "low", "summary": None}
    assert thinker.tokenizer.options.template_kwargs == {"reasoning_effort": "low"}
    assert "warnings" not in answer


# ---- Anthropic's Messages API ------------------------------------------------------------------


async def test_a_whole_message(client: httpx.AsyncClient, thinker: FakeEngine) -> None:
    answer = await ask(client, MESSAGES, **ENABLED)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "It is."},
    ]
    kwargs = thinker.tokenizer.options.template_kwargs
    assert kwargs == {"enable_thinking": True, "thinking": True}


async def test_a_streamed_message(client: httpx.AsyncClient) -> None:
    events = await named_events(client, MESSAGES, **ENABLED)
    told = [(each["type"], each.get("index")) for each in events]
    assert told == [
        ("message_start", None), ("ping", None),
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1), ("content_block_delta", 1), ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "Hm"}
    assert deltas[2] == {"type": "text_delta", "text": "It"}


@pytest.mark.parametrize("thinking", [{}, {"thinking": {"type": "disabled"}}])
async def test_a_message_tells_thoughts_where_they_are_wanted_alone(
    thinking: dict[str, Any], client: httpx.AsyncClient
) -> None:
    fields = {"max_tokens": 9, **thinking}
    answer = await ask(client, MESSAGES, **fields)
    assert answer["content"] == [{"type": "text", "text": "It is."}]
    assert "Hm" not in json.dumps(await named_events(client, MESSAGES, **fields))


async def test_thinking_is_turned_off_where_that_is_asked(
    client: httpx.AsyncClient, thinker: FakeEngine
) -> None:
    await ask(client, MESSAGES, max_tokens=9, thinking={"type": "disabled"})
    kwargs = thinker.tokenizer.options.template_kwargs
    assert kwargs == {"enable_thinking": False, "thinking": False}
