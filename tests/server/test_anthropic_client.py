"""Anthropic's own client for Python, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pagoda.server.keys import KeyRing
from server.fake_engine import MODEL, OTHER_NAME, FakeEngine, engine_failure
from server.live import live_server

if TYPE_CHECKING:  # where it is used it is imported: not in every process that collects tests
    import anthropic

KEY = "a-key-for-tests"
HELLO: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hi"}]
WEATHER: anthropic.types.ToolParam = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    """Of a model that may think."""
    engine = FakeEngine()
    engine.tokenizer.chat_template = "<think></think>"
    return engine


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with live_server(engine, keys=KeyRing({KEY: "tests"})) as url:
        yield url


@pytest.fixture(autouse=True)
def _as_new(engine: FakeEngine) -> None:
    engine.says, engine.fail = (), None


@pytest.fixture(scope="module")
def client(url: str) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


def test_a_message_whole_and_streamed(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model=MODEL, max_tokens=3, messages=HELLO, system="Be brief.")
    [block] = whole.content
    assert (block.type, whole.stop_reason) == ("text", "max_tokens")
    assert whole._request_id
    with client.messages.stream(
        model=MODEL, max_tokens=3, messages=HELLO, system=[{"type": "text", "text": "Be brief."}]
    ) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(pieces) == 3
    [streamed] = message.content
    assert streamed.type == block.type == "text"
    assert "".join(pieces) == streamed.text == block.text
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens == 3
    assert message.usage.cache_read_input_tokens


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    asked: list[anthropic.types.MessageParam] = [{"role": "user", "content": "how many?"}]
    counted = client.messages.count_tokens(model=MODEL, messages=asked)
    answer = client.messages.create(model=MODEL, max_tokens=1, messages=asked)
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_tool_is_called_and_its_result_sent(
    client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.says = ["I look. ", CALL[:20], CALL[20:]]
    whole = client.messages.create(model=MODEL, max_tokens=9, messages=HELLO, tools=[WEATHER])
    text, call = whole.content
    assert (text.type, call.type, whole.stop_reason) == ("text", "tool_use", "tool_use")
    assert call.type == "tool_use"
    assert call.input == {"city": "Rome"}
    with client.messages.stream(
        model=MODEL, max_tokens=9, messages=HELLO, tools=[WEATHER]
    ) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["text", "tool_use"]
    last = streamed.content[-1]
    assert last.type == "tool_use"
    assert (last.input, streamed.stop_reason) == (call.input, "tool_use")
    engine.says = ()
    result: anthropic.types.ToolResultBlockParam = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "Warm."}],
    }
    client.messages.create(
        model=MODEL,
        max_tokens=2,
        messages=[*HELLO, whole.to_param(), {"role": "user", "content": [result]}],
        tools=[WEATHER],
    )
    assert [each["role"] for each in engine.tokenizer.messages] == ["user", "assistant", "tool"]


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, OTHER_NAME]


def test_the_beta_routes_are_the_same(client: anthropic.Anthropic) -> None:
    answer = client.beta.messages.create(
        model=MODEL, max_tokens=2, messages=HELLO, betas=["context-management-2025-06-27"]
    )  # type: ignore[call-overload]
    assert answer.usage.output_tokens == 2


def test_errors_become_the_clients_own(
    client: anthropic.Anthropic, engine: FakeEngine, url: str
) -> None:
    import anthropic

    def ask(client: anthropic.Anthropic = client, model: str = MODEL, stop: str = "#") -> None:
        client.messages.create(model=model, max_tokens=2, messages=HELLO, stop_sequences=[stop])

    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(model="claude-1")
    assert (unknown.value.type, MODEL in unknown.value.message) == ("not_found_error", True)
    assert unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        ask(stop="")
    with pytest.raises(anthropic.AuthenticationError):
        ask(anthropic.Anthropic(base_url=url, api_key="not-a-key-here", max_retries=0))
    ask(anthropic.Anthropic(base_url=url, auth_token=KEY, max_retries=0))
    engine.fail = engine_failure()
    with pytest.raises(anthropic.InternalServerError) as failed:
        ask()
    assert failed.value.type == "api_error"
    with (
        pytest.raises(anthropic.APIStatusError) as cut,
        client.messages.stream(model=MODEL, max_tokens=2, messages=HELLO) as stream,
    ):
        stream.get_final_message()
    assert cut.value.type == "api_error"


def test_a_thought_whole_and_streamed(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.says = ["<think>", "Hm", ".</think>", "It", " is."]
    asked: Any = {"model": MODEL, "max_tokens": 9, "messages": HELLO}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        thought, text = message.content
        assert (thought.thinking, text.text) == ("Hm.", "It is.")
