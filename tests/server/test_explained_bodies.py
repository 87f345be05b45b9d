"""`/cache/explain` of any request's body says what the request itself then finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from checkpoints import CASES, CHAT_TEMPLATE, write_checkpoint
from pagoda.cli.main import run
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.server.explained_body import ExplainedBody
from pagoda.server.options import ServerOptions
from server.live import live_server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MAX_MODEL_LEN = 1024
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TEXT = "a pagoda on a hill, and the bells of evening "
HELLO = [{"role": "user", "content": TEXT}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time."}}
OFFERED = {"name": "weather", "input_schema": CITY}
ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]}
USE = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Rome"}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "warm"}
PARTS = [{"type": "text", "text": part} for part in ("a pagoda", "on a hill")]

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a text": (COMPLETIONS, {"prompt": TEXT}),
    "token ids": (COMPLETIONS, {"prompt": [*range(60, 99)]}),
    "texts": (COMPLETIONS, {"prompt": [TEXT, TEXT[::-1]]}),
    "lists of token ids": (COMPLETIONS, {"prompt": [[*range(60, 99)], [*range(50, 90)]]}),
    "a text that is cut": (COMPLETIONS, {"prompt": TEXT, "truncate_prompt_tokens": 21}),
    "a text whose logits are told": (COMPLETIONS, {"prompt": TEXT, "prompt_logprobs": 0}),
    "a text that is echoed with them": (
        COMPLETIONS, {"prompt": TEXT, "echo": True, "logprobs": 1}
    ),
    "a text without special tokens": (COMPLETIONS, {"prompt": TEXT, "add_special_tokens": False}),
    "a salt": (COMPLETIONS, {"prompt": TEXT, "cache_salt": "of one user"}),
    "a chat": (CHAT, {"messages": HELLO}),
    "a chat with tools": (CHAT, {"messages": HELLO, "tools": [TOOL, CLOCK]}),
    "tools that may not be called": (
        CHAT, {"messages": HELLO, "tools": [TOOL, CLOCK], "tool_choice": "none"}
    ),
    "some of the tools": (
        CHAT,
        {
            "messages": HELLO,
            "tools": [TOOL, CLOCK],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED},
        },
    ),
    "a chat that is cut": (CHAT, {"messages": HELLO, "truncate_prompt_tokens": 33}),
    "a chat that is cut to leave room": (
        CHAT,
        {"messages": [{"role": "user", "content": TEXT * 30}], "truncate_prompt_tokens": -1},
    ),
    "a chat whose logits are told": (CHAT, {"messages": HELLO, "prompt_logprobs": 1}),
    "a chat that goes on": (
        CHAT,
        {
            "messages": [*HELLO, {"role": "assistant", "content": "It"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ),
    "a chat that tells the template more": (
        CHAT, {"messages": HELLO, "chat_template_kwargs": {"mood": "gay"}}
    ),
    "a message": (MESSAGES, {"messages": [{"role": "user", "content": PARTS}], "system": ""}),
    "a message with a system prompt": (MESSAGES, {"messages": HELLO, "system": PARTS}),
    "a message of tools": (MESSAGES, {"messages": HELLO, "tools": [OFFERED]}),
    "a message of tools that may not be called": (
        MESSAGES, {"messages": HELLO, "tools": [OFFERED], "tool_choice": {"type": "none"}}
    ),
    "a message behind a call": (
        MESSAGES,
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": [*PARTS, USE]},
                {"role": "user", "content": [RESULT, *PARTS]},
            ]
        },
    ),
    "a message that is not answered": (MESSAGES, {"messages": HELLO, "max_tokens": 0}),
    "a text beside nothing": (COMPLETIONS, {"prompt": TEXT, "messages": None, "input": None}),
    "a chat beside nothing": (CHAT, {"messages": HELLO, "input": None, "stop_sequences": None}),
    "a response": (RESPONSES, {"input": TEXT}),
    "a response with instructions": (RESPONSES, {"input": HELLO, "instructions": "Be brief."}),
    "a response with tools": (
        RESPONSES,
        {"input": TEXT, "tools": [{"type": "function", **FUNCTION}], "tool_choice": "none"},
    ),
    "a response that is cut": (RESPONSES, {"input": TEXT, "truncate_prompt_tokens": 33}),
}  # fmt: skip
"""Where each is sent, and what is in it beside the length of its answer."""
LENGTHS = {RESPONSES: "max_output_tokens"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a server whose template is told a mood, if by nobody else then by the server."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])
    config = checkpoint / "config.json"
    fields = {**json.loads(config.read_text("utf-8")), "max_position_embeddings": MAX_MODEL_LEN}
    config.write_text(json.dumps(fields), "utf-8")
    template = checkpoint / "chat_template.jinja"
    assert template.read_text("utf-8") == CHAT_TEMPLATE
    template.write_text("{{ mood }}" + CHAT_TEMPLATE, "utf-8")
    engine = AsyncEngine.load(
        EngineOptions(str(checkpoint), num_gpu_blocks_override=800, block_size=4, threads=1)
    )
    options = ServerOptions(default_chat_template_kwargs={"mood": "a calm mood, all day long"})
    with live_server(engine, options) as url:
        yield httpx.Client(base_url=url, timeout=60)


def posted(client: httpx.Client, url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(url, json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def used(usage: dict[str, Any]) -> tuple[int, int]:
    """The tokens of a request's prompts, and those of them that it found, by any API's usage."""
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if "input_tokens_details" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    found = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + found, found


@pytest.mark.parametrize("name", BODIES)
def test_what_is_explained_is_what_the_request_finds(name: str, client: httpx.Client) -> None:
    url, asked = BODIES[name]
    body = {LENGTHS.get(url, "max_tokens"): 1, **asked}
    posted(client, url, body)
    told = posted(client, "/cache/explain", body)
    prompts = told.get("prompts", [told])
    assert len(prompts) == (2 if name in ("texts", "lists of token ids") else 1)
    num_tokens = sum(each["prompt_tokens"] for each in prompts)
    num_found = sum(each["found_tokens"] for each in prompts)
    assert (num_tokens, num_found) == used(posted(client, url, body)["usage"])
    is_read = {each["cause"] for each in prompts} == {"remainder"}
    assert is_read == (num_found > 0)


def test_a_response_goes_on_from_one_that_is_kept(client: httpx.Client) -> None:
    first = posted(client, RESPONSES, {"input": TEXT, "max_output_tokens": 8})
    body = {"previous_response_id": first["id"], "input": "And then?", "max_output_tokens": 1}
    told = posted(client, "/cache/explain", body)
    assert told["found_tokens"] > len(TEXT)
    asked = (told["prompt_tokens"], told["found_tokens"])
    assert asked == used(posted(client, RESPONSES, body)["usage"])


def test_several_prompts_are_told_in_their_order(
    client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"prompt": ["never asked before, this", TEXT], "max_tokens": 1}
    posted(client, COMPLETIONS, {**body, "prompt": TEXT})
    told = posted(client, "/cache/explain", body)
    assert [each["cause"] for each in told["prompts"]] == ["never_seen", "remainder"]
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body))
    assert run(["explain", str(file), "--url", str(client.base_url)]) == 0
    assert [line.split(" of ")[0] for line in capsys.readouterr().out.splitlines()] == ["0", "44"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": HELLO, "tools": [TOOL], "tool_choice": "all"}, "tool_choice"),
        ({"messages": HELLO, "system": "x", "max_tokens": "many"}, "max_tokens"),
        ({"messages": HELLO, "system": "x"}, "max_tokens"),
        ({"input": TEXT, "messages": HELLO}, "messages"),
        ({"input": 5}, "input"),
        ({"input": TEXT, "top_logprobs": 21}, "top_logprobs"),
        ({"previous_response_id": "none"}, "previous_response_id"),
        ({"messages": HELLO, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"messages": [{"role": "user", "content": TEXT * 30}]}, "messages"),
        ({"prompt": TEXT, "temperature": -1}, "temperature"),
        ([TEXT], None),
    ],
)
def test_what_the_request_would_be_refused_for(
    body: object, field: str | None, client: httpx.Client
) -> None:
    answer = client.post("/cache/explain", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_told_by_its_shape(name: str) -> None:
    url, asked = BODIES[name]
    body = ExplainedBody.model_validate({LENGTHS.get(url, "max_tokens"): 1, **asked}).root
    kinds = {
        COMPLETIONS: "CompletionRequest",
        CHAT: "ChatCompletionRequest",
        MESSAGES: "MessagesBody",
        RESPONSES: "ResponsesRequest",
    }
    assert type(body).__name__ == kinds[url]
