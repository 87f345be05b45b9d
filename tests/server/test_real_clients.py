"""Clients that people use, as they are: OpenAI's own, LangChain's and curl."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import Model, connect
from pagoda.engine.options import EngineOptions
from pagoda.server.keys import KeyRing
from server.live import live_server

if TYPE_CHECKING:  # where they are used they are imported: not in every process that collects tests
    import openai

pytestmark = pytest.mark.model
MODEL = "SmolLM2-135M-Instruct"
KEY = "a-key-for-tests"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def url(default_model: Model) -> Iterator[str]:
    engine = AsyncEngine(connect(default_model, EngineOptions(kv_cache_memory_bytes=2**28)))
    with live_server(engine, keys=KeyRing({KEY: "tests"})) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "smollm2"]


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4, 5, 6, 7,", max_tokens=12, temperature=0, n=1, logprobs=2
    )
    [choice] = answer.choices
    assert "8, 9" in choice.text
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 32}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    text = whole.choices[0].message.content
    assert "Paris" in text
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        **asked, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == text
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens_details.cached_tokens > 0


def test_a_response_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 32}
    whole = client.responses.create(**asked)  # type: ignore[call-overload]
    assert "Paris" in whole.output_text
    *events, last = list(client.responses.create(**asked, stream=True))  # type: ignore[call-overload]
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(deltas) == last.response.output_text == whole.output_text
    assert last.response.usage.input_tokens_details.cached_tokens > 0
    more = client.responses.create(  # type: ignore[call-overload]
        **{**asked, "input": "And of Italy?", "previous_response_id": whole.id}
    )
    assert more.usage.input_tokens > whole.usage.input_tokens + whole.usage.output_tokens


def test_choices_and_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, n=3, seed=5, max_tokens=8, logprobs=True, top_logprobs=4,
        temperature=1.2, stop=["\n"], presence_penalty=0.1, logit_bias={"7": -50},
    )  # type: ignore[call-overload]  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    for choice in answer.choices:
        assert all(len(token.top_logprobs) == 4 for token in choice.logprobs.content)


def test_an_answer_by_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=64, temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
    )  # type: ignore[call-overload]  # fmt: skip
    found = json.loads(answer.choices[0].message.content)
    assert sorted(found) == ["city", "people"]
    assert isinstance(found["people"], int)


def test_a_tool_is_called(client: openai.OpenAI) -> None:
    place = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}
    place |= {"required": ["city"], "additionalProperties": False}
    tool = {"name": "weather", "parameters": place}
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": tool}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 64,
    }
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    [choice] = whole.choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    chunks = client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert "".join(part.function.arguments or "" for part in parts) == call.function.arguments


def test_errors_become_the_clients_own(client: openai.OpenAI, url: str) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)  # type: ignore[call-overload]
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=QUESTION)  # type: ignore[call-overload]
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="not-a-key-here", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_langchain(url: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=32)  # type: ignore[arg-type,call-arg]
    assert "Paris" in str(model.invoke("What is the capital of France?").content)
    chunks = list(model.stream("What is the capital of France?"))
    assert "Paris" in "".join(str(chunk.content) for chunk in chunks)


def readme_commands() -> list[str]:
    """What the README tells people to type at the server."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"(?:^    .*\n)+", text, re.M)
    commands = [re.sub(r"^    ", "", block, flags=re.M) for block in blocks if "curl " in block]
    return [each for block in commands for each in re.split(r"\n(?=curl )", block.strip())]


@pytest.mark.parametrize("command", readme_commands())
def test_the_readmes_curl_commands(command: str, url: str) -> None:
    command = command.replace("http://127.0.0.1:8000", url)
    command = command.replace(
        "curl ", f"curl -sS --fail-with-body -H 'Authorization: Bearer {KEY}' "
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout.startswith("{"):
        assert "error" not in json.loads(done.stdout)
