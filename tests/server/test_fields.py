"""The fields that clients expect: each is done, mapped, ignored and said, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.field_table import FIELD_ROWS, FIELDS, FieldRow
from pagoda.server.text_offsets import TextOffsets, offsets_in
from server.fake_engine import FIRST_WORD_ID, MAX_MODEL_LEN, MODEL, OTHER_NAME, FakeEngine
from server.sse import chat_text, completion_text, events_of

pytestmark = pytest.mark.anyio
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi", "max_tokens": 3},
    CHAT: {"messages": HELLO, "max_tokens": 3},
}
ASKING = "a value that asks for something"


async def answer(client: httpx.AsyncClient, url: str, **fields: Any) -> dict[str, Any]:
    response = await client.post(url, json={**BODIES[url], **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def streamed(client: httpx.AsyncClient, url: str, **fields: Any) -> list[dict[str, Any]]:
    response = await client.post(url, json={**BODIES[url], "stream": True, **fields})
    assert response.status_code == 200, response.text
    return events_of(response.text)


# ---- the table -------------------------------------------------------------------------------


def test_the_table_has_the_fields_of_the_bodies_and_each_once() -> None:
    read = set(CompletionRequest.model_fields) | set(ChatCompletionRequest.model_fields)
    covered = {row.name for row in FIELD_ROWS if row.treatment in ("done", "mapped")}
    assert covered == read
    assert len(FIELDS) == len(FIELD_ROWS)


def rows(treatment: str) -> list[FieldRow]:
    return [row for row in FIELD_ROWS if row.treatment == treatment]


async def test_half_of_a_surrogate_pair_in_a_name_is_spelled_out(
    client: httpx.AsyncClient,
) -> None:
    body = {**BODIES[COMPLETIONS], "stream": True, "stream_options": {"a\ud887": 1}}
    response = await client.post(
        COMPLETIONS, content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert "stream_options.a\\\\ud887 is ignored" in response.text
    assert "server_error" not in response.text


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_a_misspelt_field_is_said_with_the_one_that_was_meant(
    url: str, client: httpx.AsyncClient
) -> None:
    said = (await answer(client, url, temprature=0.1, max_token=3, quite_other=[1]))["warnings"]
    assert said == [
        "temprature is ignored: there is no such field; did you mean temperature?",
        "max_token is ignored: there is no such field; did you mean max_tokens?",
        "quite_other is ignored: there is no such field",
    ]
    first, *_ = await streamed(client, url, temprature=0.1)
    assert first["warnings"] == said[:1]


async def test_of_many_unknown_fields_a_few_are_said_and_long_names_are_cut(
    client: httpx.AsyncClient,
) -> None:
    many = {f"{number}{'x' * 1_000}": 1 for number in range(100)}
    said = (await answer(client, CHAT, **many))["warnings"]
    assert 0 < len(said) < 10
    assert all(len(warning) < 100 for warning in said)


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_what_is_refused_is_refused_by_name_with_a_word_of_help(
    url: str, client: httpx.AsyncClient
) -> None:
    for row in rows("refused"):
        response = await client.post(url, json={**BODIES[url], row.name: ASKING})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, row.name)
        assert error["message"] == f"{row.name}='{ASKING}': is not covered: {row.note}"


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_what_asks_for_nothing_is_neither_refused_nor_said(
    url: str, client: httpx.AsyncClient
) -> None:
    neutral = {row.name: row.neutral[0] for row in FIELD_ROWS if row.neutral}
    nulls = {row.name: None for row in rows("refused") + rows("ignored")}
    assert "warnings" not in await answer(client, url, **neutral)
    assert "warnings" not in await answer(client, url, **nulls)


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_what_is_ignored_is_said_once(url: str, client: httpx.AsyncClient) -> None:
    ignored = {row.name: ASKING for row in rows("ignored")}
    said = [f"{row.name} is ignored: {row.note}" for row in rows("ignored") if row.is_said]
    assert sorted((await answer(client, url, **ignored))["warnings"]) == sorted(said)
    first, *rest = await streamed(client, url, n=2, **ignored)
    assert sorted(first["warnings"]) == sorted(said)
    assert not any("warnings" in event for event in rest)


async def test_a_field_of_another_request_is_said(client: httpx.AsyncClient) -> None:
    warnings = (await answer(client, COMPLETIONS, max_completion_tokens=5))["warnings"]
    assert warnings == ["max_completion_tokens is ignored: it is no field of this request"]


async def test_the_log_names_the_fields_that_were_ignored(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "pagoda.access"):
        await answer(client, CHAT, typical_p=0.5, chat_template_kwargs={"secret": 1, "other": 2})
    assert "ignored=typical_p,chat_template_kwargs" in caplog.text
    assert "secret" not in caplog.text


# ---- lengths ---------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_a_limit_beyond_what_is_left_is_taken_and_said(
    url: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    [warning] = (await answer(client, url, max_tokens=MAX_MODEL_LEN))["warnings"]
    assert warning.startswith(f"max_tokens={MAX_MODEL_LEN} is taken as ")
    assert f"maximum context length of {MAX_MODEL_LEN} tokens" in warning
    first, *rest = await streamed(client, url, max_tokens=MAX_MODEL_LEN)
    assert first["warnings"] == [warning]
    assert not any("warnings" in event for event in rest)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n_predict": 2}, 2),
        ({"n_predict": -1}, None),
        ({"n_predict": 2, "max_tokens": 4}, 4),
        ({"max_tokens": "5"}, 5),
        ({"max_tokens": 5.0}, 5),
    ],
)
async def test_names_and_forms_of_the_longest_answer(
    fields: dict[str, Any], expected: int | None, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    for url, body in BODIES.items():
        given = {name: value for name, value in body.items() if name != "max_tokens"}
        response = await client.post(url, json={**given, **fields})
        assert response.status_code == 200, response.text
        assert engine.asked.pop()["sampling"].max_tokens == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_truncation_and_special_tokens_reach_the_engine(
    url: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await answer(client, url, truncate_prompt_tokens=7, add_special_tokens=False)
    options: Any = engine.asked.pop()["options"]
    assert options.truncation.most_tokens(MAX_MODEL_LEN) == 7
    assert not options.add_special_tokens
    await answer(client, url, truncate_prompt_tokens=-1)
    options = engine.asked.pop()["options"]
    assert options.truncation.most_tokens(MAX_MODEL_LEN) == MAX_MODEL_LEN - 3
    assert options.add_special_tokens


# ---- what an answer tells --------------------------------------------------------------------


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("at_end", [False, True])
async def test_usage_in_every_chunk(url: str, at_end: bool, client: httpx.AsyncClient) -> None:
    options = {"include_usage": at_end, "continuous_usage_stats": True}
    events = await streamed(client, url, stream_options=options)
    plain = await streamed(client, url)
    text = completion_text if url == COMPLETIONS else chat_text
    assert text(events) == text(plain)
    assert len(events) == len(plain) + at_end
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    whole = (await answer(client, url))["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-1]["usage"][name] == whole[name]


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_token_ids_beside_the_text(url: str, client: httpx.AsyncClient) -> None:
    expected = [FIRST_WORD_ID, FIRST_WORD_ID + 1, FIRST_WORD_ID + 2]
    whole = await answer(client, url, return_token_ids=True)
    events = await streamed(client, url, return_token_ids=True)
    assert whole["choices"][0]["token_ids"] == expected
    told = [event["choices"][0].get("token_ids") or [] for event in events]
    assert [token_id for each in told for token_id in each] == expected
    prompt = [ord(letter) for letter in ("hi" if url == COMPLETIONS else "<user>hi")]
    holder = whole["choices"][0] if url == COMPLETIONS else whole
    first = events[0]["choices"][0] if url == COMPLETIONS else events[0]
    assert holder["prompt_token_ids"] == first["prompt_token_ids"] == prompt
    plain = str(await answer(client, url)) + str(await streamed(client, url))
    assert "token_ids" not in plain


async def test_tokens_told_by_their_ids(client: httpx.AsyncClient) -> None:
    fields = {"max_tokens": 1, "return_tokens_as_token_ids": True}
    [choice] = (await answer(client, COMPLETIONS, logprobs=1, **fields))["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{FIRST_WORD_ID}"]
    assert choice["logprobs"]["top_logprobs"] == [
        {f"token_id:{FIRST_WORD_ID}": -1.0, "token_id:1": -0.5}
    ]
    [choice] = (await answer(client, CHAT, logprobs=True, top_logprobs=1, **fields))["choices"]
    [token] = choice["logprobs"]["content"]
    assert token["token"] == f"token_id:{FIRST_WORD_ID}"
    assert token["top_logprobs"][0]["token"] == "token_id:1"
    [choice] = (await answer(client, COMPLETIONS, logprobs=0, echo=True, **fields))["choices"]
    tokens = choice["logprobs"]["tokens"]
    assert tokens == [*(f"token_id:{ord(c)}" for c in "hi"), f"token_id:{FIRST_WORD_ID}"]


def test_parts_of_a_character_begin_where_it_does() -> None:
    offsets = TextOffsets(start=2)
    smile = "😀".encode()
    assert offsets.of([b"ab", smile[:1], smile[1:3]]) == [2, 4, 4]
    assert offsets.of([smile[3:], b"c", b"\xff", b"d"]) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("text", "tokens", "places"),
    [
        ("hi you", [b"<s>", b" hi", b" you"], [0, 0, 2]),
        ("<s>hi you", [b"<s>", b"hi", b" you", b"</s>"], [0, 3, 5, 9]),
        ("hi</s> you", [b"<s>", b"hi", b"</s>", b" you", b"</s>"], [0, 0, 2, 6, 10]),
        (" hi", [b"<s>", b" ", b"hi"], [0, 0, 1]),
        ("HI you", [b"hi", b" you", b"!"], [0, 2, 6]),
        ("日", ["日".encode()[:2], "日".encode()[2:]], [0, 0]),
    ],
)
def test_what_a_tokenizer_adds_to_a_prompt_has_no_room_in_its_text(
    text: str, tokens: list[bytes], places: list[int]
) -> None:
    special = {tokens.index(each) for each in (b"<s>", b"</s>") if each in tokens}
    ids = [tokens.index(each) for each in tokens]
    assert offsets_in(text, ids, tokens.__getitem__, special) == places


async def test_no_token_of_an_echo_begins_behind_it(client: httpx.AsyncClient) -> None:
    [choice] = (await answer(client, COMPLETIONS, logprobs=0, echo=True))["choices"]
    places = choice["logprobs"]["text_offset"]
    assert places == sorted(places)
    assert places[:3] == [0, 1, 2]


# ---- chats -----------------------------------------------------------------------------------


async def test_how_a_conversation_becomes_a_prompt(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields: dict[str, Any] = {
        "continue_final_message": True,
        "add_special_tokens": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    for url in (CHAT, "/tokenize"):
        response = await client.post(url, json={"messages": HELLO, **fields})
        assert response.status_code == 200
        assert "warnings" not in response.json()
        options = engine.tokenizer.options
        assert not options.add_generation_prompt
        assert options.continue_final_message
        assert options.add_special_tokens
        assert options.template_kwargs == {"enable_thinking": False}
    await client.post("/tokenize", json={"messages": HELLO, "add_generation_prompt": False})
    assert not engine.tokenizer.options.add_generation_prompt
    assert not engine.tokenizer.options.continue_final_message


BAD_CHATS: dict[str, tuple[str, dict[str, Any]]] = {
    "both ends": (
        "continue_final_message",
        {"continue_final_message": True, "add_generation_prompt": True},
    ),
    "a list for a template": ("chat_template_kwargs", {"chat_template_kwargs": {"a": [1]}}),
    "a long name": ("chat_template_kwargs", {"chat_template_kwargs": {"a" * 65: 1}}),
    "a long value": ("chat_template_kwargs", {"chat_template_kwargs": {"a": "x" * 1025}}),
    "many values": (
        "chat_template_kwargs",
        {"chat_template_kwargs": {f"a{index}": 1 for index in range(33)}},
    ),
}


@pytest.mark.parametrize("name", BAD_CHATS)
async def test_a_bad_way_to_a_prompt_is_refused(name: str, client: httpx.AsyncClient) -> None:
    field, fields = BAD_CHATS[name]
    response = await client.post(CHAT, json={"messages": HELLO, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"text": "hi"}])
async def test_a_message_that_says_nothing_is_refused(
    role: str, content: dict[str, Any], client: httpx.AsyncClient
) -> None:
    response = await client.post(CHAT, json={"messages": [*HELLO, {"role": role, **content}]})
    assert response.status_code == 400
    assert "has content" in response.json()["error"]["message"]


async def test_what_only_the_request_itself_may_say_is_said(client: httpx.AsyncClient) -> None:
    fields = {"chat_template_kwargs": {"add_generation_prompt": False}}
    reason = "it is a field of the request itself"
    said = [f"chat_template_kwargs.add_generation_prompt is ignored: {reason}"]
    assert (await answer(client, CHAT, **fields))["warnings"] == said


@pytest.mark.parametrize("most", [0, -2])
async def test_a_prompt_is_not_cut_to_nothing(most: int, client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json={"messages": HELLO, "truncate_prompt_tokens": most})
    assert response.status_code == 400
    assert "at least 1, or -1" in response.json()["error"]["message"]


async def test_what_the_template_does_not_read_is_said(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields = {"chat_template_kwargs": {"thinking": True}, "reasoning_effort": "low"}
    reason = "is ignored: the model's chat template does not read it, only enable_thinking"
    said = [f"chat_template_kwargs.thinking {reason}", f"reasoning_effort {reason}"]
    assert (await answer(client, CHAT, **fields))["warnings"] == said
    engine.tokenizer.template_names = frozenset({"thinking", "reasoning_effort"})
    assert "warnings" not in await answer(client, CHAT, **fields)
    kwargs = engine.tokenizer.options.template_kwargs
    assert kwargs == {"thinking": True, "reasoning_effort": "low"}


async def test_no_effort_turns_thinking_off(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert "warnings" not in await answer(client, CHAT, reasoning_effort="none")
    kwargs = engine.tokenizer.options.template_kwargs
    assert kwargs == {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}
    await answer(
        client, CHAT, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}
    )
    assert engine.tokenizer.options.template_kwargs["enable_thinking"] is True


async def test_an_answer_that_goes_on_may_begin_with_what_was_said(
    client: httpx.AsyncClient,
) -> None:
    said = [*HELLO, {"role": "assistant", "content": "minus one, "}]
    fields = {"messages": said, "continue_final_message": True, "echo": True}
    [choice] = (await answer(client, CHAT, **fields))["choices"]
    assert choice["message"]["content"] == "minus one, zero one two"
    assert chat_text(await streamed(client, CHAT, **fields)) == "minus one, zero one two"
    [choice] = (await answer(client, CHAT, echo=True))["choices"]
    assert choice["message"]["content"] == "zero one two"


@pytest.mark.parametrize(
    "refused",
    [
        {"content": [{"type": "text", "text": "n"}, {"type": "refusal", "refusal": "o"}]},
        {"content": None, "refusal": "no"},
        {"refusal": "no"},
        {"content": "no", "refusal": None},
    ],
)
async def test_a_refusal_is_what_the_assistant_said(
    refused: dict[str, Any], client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    messages = [*HELLO, {"role": "assistant", **refused}, *HELLO]
    await answer(client, CHAT, messages=messages)
    assert [each["content"] for each in engine.tokenizer.messages] == ["hi", "no", "hi"]


async def test_a_prompt_that_is_no_chat_has_no_template(client: httpx.AsyncClient) -> None:
    kwargs = {str(number): 1 for number in range(32)}
    body = {"prompt": "x", "chat_template_kwargs": kwargs, "reasoning_effort": "low"}
    answered = await client.post("/tokenize", json={**body, "add_special_tokens": False})
    fields = ("chat_template_kwargs", "reasoning_effort")
    said = [f"{field} is ignored: no chat template is used" for field in fields]
    assert answered.json()["warnings"] == said
    assert "warnings" not in (await client.post("/tokenize", json={"prompt": "x"})).json()


async def test_older_roles_and_odd_calls_are_taken(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    function = {"name": "files.read", "arguments": '{"path": '}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]},
        {"role": "function", "content": "a"},
        {"role": "ipython", "content": "b"},
    ]
    tools = [{"type": "function", "function": {"name": "files.read"}}]
    await answer(client, CHAT, messages=messages, tools=tools)
    prompt: Any = engine.asked.pop()["prompt"]
    assert "".join(map(chr, prompt)) == "<user>hi<assistant><tool>a<tool>b"


# ---- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_a_model_answers_to_all_of_its_names(url: str, client: httpx.AsyncClient) -> None:
    for name in (MODEL, OTHER_NAME):
        assert (await answer(client, url, model=name))["model"] == MODEL
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"]) for card in listed] == [(MODEL, MODEL), (OTHER_NAME, MODEL)]
    assert (await client.get(f"/v1/models/{OTHER_NAME}")).json()["id"] == OTHER_NAME


# ---- constraints -----------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"json_schema": SCHEMA}, "json"),
        ({"grammar": 'start: "a"'}, "grammar"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json"),
        ({"response_format": {"type": "json_object"}, "grammar": ""}, "json_object"),
    ],
)
@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_constraints_by_llama_cpps_names(
    url: str, fields: dict[str, Any], kind: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await answer(client, url, **fields)
    sampling: Any = engine.asked.pop()["sampling"]
    assert sampling.structured_outputs.kind == kind


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_words_and_tokens_that_may_not_or_may_alone_be_said(
    url: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await answer(client, url, bad_words=["a", "b c"], allowed_token_ids=[5, 6])
    sampling: Any = engine.asked.pop()["sampling"]
    assert (sampling.bad_words, sampling.allowed_token_ids) == (("a", "b c"), (5, 6))
