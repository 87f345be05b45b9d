"""Long lists in bodies: refused as a whole before anything in them is looked at."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError, create_model

from pagoda.models.chat_options import MAX_TEMPLATE_KWARGS
from pagoda.request import MAX_LOGIT_BIASES, MAX_STOPS
from pagoda.server import tools
from pagoda.server.body import Many, ManyNamed
from pagoda.server.body_route import first_problems
from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.list_bounds import MAX_PARTS, at_most
from pagoda.server.messages_api.blocks import InputMessage
from pagoda.server.messages_api.body import CountTokensBody, MessagesBody
from pagoda.server.responses_api.body import ResponsesRequest
from pagoda.server.token_requests import DetokenizeRequest, TokenizeRequest
from pagoda.server.tool_choice import MAX_TOOLS
from server.body_containers import containers_in
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    CHAT: {"messages": HELLO},
    "/tokenize": {"messages": HELLO},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": HELLO, "max_tokens": 3},
}
ODD: list[Any] = [[]]
"""No entry of any list: whoever looked at one would tell that."""
LISTS = [
    (CHAT, "messages", MAX_PARTS),
    ("/tokenize", "messages", MAX_PARTS),
    (RESPONSES, "input", MAX_PARTS),
    (MESSAGES, "messages", MAX_PARTS),
    (MESSAGES, "system", MAX_PARTS),
    (CHAT, "tools", MAX_TOOLS),
    (RESPONSES, "tools", MAX_TOOLS),
    (MESSAGES, "tools", MAX_TOOLS),
    (CHAT, "stop", MAX_STOPS),
    (MESSAGES, "stop_sequences", MAX_STOPS),
]


async def refused(client: httpx.AsyncClient, url: str, field: str, given: Any) -> str:
    """What is told of a field."""
    response = await client.post(url, json={**BODIES[url], field: given})
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    assert message.startswith(f"{field}=")
    return message


@pytest.mark.parametrize(("url", "field", "most"), LISTS)
async def test_a_long_list_is_refused_by_its_length(
    url: str, field: str, most: int, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    told = await refused(client, url, field, ODD * (most + 1))
    assert f"at most {most:,} " in told
    assert f"here are {most + 1:,}" in told
    response = await client.post(url, json={**BODIES[url], field: ODD * most})
    assert "here are" not in response.text, "it is looked at one by one"
    assert not engine.started


@pytest.mark.parametrize(
    ("url", "field", "most"),
    [
        (CHAT, "logit_bias", MAX_LOGIT_BIASES),
        (CHAT, "chat_template_kwargs", MAX_TEMPLATE_KWARGS),
        ("/tokenize", "chat_template_kwargs", MAX_TEMPLATE_KWARGS),
        (RESPONSES, "metadata", 16),
    ],
)
async def test_a_long_mapping_is_refused_by_its_length(
    url: str, field: str, most: int, client: httpx.AsyncClient
) -> None:
    odd = {str(number): [] for number in range(most + 1)}
    told = await refused(client, url, field, odd)
    assert f"at most {most:,} of them, and here are {most + 1:,}" in told
    if url == "/tokenize":
        response = await client.post(url, json={"prompt": "hi", field: odd})
        assert "here are" in response.json()["error"]["message"]


EVERY_BODY: list[type[BaseModel]] = [
    CompletionRequest, ChatCompletionRequest, TokenizeRequest, DetokenizeRequest, ResponsesRequest,
    MessagesBody, CountTokensBody,
]  # fmt: skip


@pytest.mark.parametrize("body", EVERY_BODY)
def test_every_list_and_mapping_has_a_bound(body: type[BaseModel]) -> None:
    found = containers_in(body)
    assert found
    assert [each for each in found if not each.is_bounded] == []


def test_a_list_or_a_mapping_without_a_bound_is_found() -> None:
    class Unbounded(BaseModel):
        texts: Many[str]
        slow: Annotated[list[str], at_most(3)]
        named: Annotated[dict[str, int] | None, at_most(3)]
        many_named: ManyNamed[str, int]
        anything: dict[str, Any]

    found = containers_in(Unbounded)
    assert [each.field for each in found] == ["texts", "slow", "named", "many_named"]
    assert not any(each.is_bounded for each in found)


def test_of_many_problems_a_few_are_kept() -> None:
    fields: dict[str, Any] = {f"field_{number}": (int, ...) for number in range(99)}
    with pytest.raises(ValidationError) as refused:
        create_model("Wrong", **fields).model_validate({})
    first, *others = first_problems(refused.value)
    assert first["loc"] == ("field_0",)
    assert len(others) < 10


@pytest.mark.parametrize(
    ("url", "field", "entry"),
    [
        (CHAT, "messages", {"role": "user", "content": ODD * 63}),
        (CHAT, "messages", {"role": "assistant", "tool_calls": ODD * 63}),
        (RESPONSES, "input", {"role": "user", "content": ODD * 63}),
        (RESPONSES, "input", {"type": "function_call_output", "output": ODD * 63}),
        (RESPONSES, "input", {"type": "reasoning", "summary": ODD * 63}),
        (MESSAGES, "messages", {"role": "user", "content": [{"content": ODD * 62}]}),
    ],
)
async def test_parts_count_as_well(
    url: str, field: str, entry: dict[str, Any], client: httpx.AsyncClient
) -> None:
    num = MAX_PARTS // 64
    told = await refused(client, url, field, [entry] * (num + 1))
    assert f"at most {MAX_PARTS:,} with the parts of their contents" in told
    assert f"here are {MAX_PARTS + 64:,}" in told
    response = await client.post(url, json={**BODIES[url], field: [entry] * num})
    assert "here are" not in response.text


def test_what_a_tool_is_called_with_has_no_parts() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"content": [1] * MAX_PARTS}}
    message = {"role": "assistant", "content": [call]}
    body = CountTokensBody.model_validate({"messages": [message]})
    assert body.messages == [InputMessage.model_validate(message)]


@pytest.mark.parametrize("url", [CHAT, RESPONSES, MESSAGES])
async def test_tools_are_checked_once_for_each_body_and_beside_the_event_loop(
    url: str, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, list[threading.Thread]] = {"_check_tools": [], "closed": []}

    def note(name: str) -> None:
        run = getattr(tools, name)

        def noted(*given: Any, **how: Any) -> Any:
            threads[name].append(threading.current_thread())
            return run(*given, **how)

        monkeypatch.setattr(tools, name, noted)

    note("_check_tools")
    note("closed")
    tool = {"type": "function", "name": "f", "function": {"name": "f"}}
    if url == MESSAGES:
        tool = {"name": "f", "input_schema": {"type": "object"}}
    choice: Any = {"type": "any"} if url == MESSAGES else "required"
    body = {**BODIES[url], "tools": [tool], "tool_choice": choice, "unknown": "x" * 2**14}
    response = await client.post(url, json=body)
    assert response.status_code == 200, response.text
    for ran_in in threads.values():
        assert len(ran_in) == 1
        assert ran_in[0] is not threading.current_thread()
