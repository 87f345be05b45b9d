"""Every field of every body is refused in one form: the field, the value, and what it must be, each
said once."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.messages_api.body import MessagesBody
from pagoda.server.problem_words import wanted
from pagoda.server.responses_api.body import ResponsesRequest
from pagoda.server.token_requests import DetokenizeRequest, TokenizeRequest

pytestmark = pytest.mark.anyio
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, tuple[dict[str, Any], type[BaseModel]]] = {
    "/v1/completions": ({"prompt": "hi", "max_tokens": 1}, CompletionRequest),
    "/v1/chat/completions": ({"messages": HELLO, "max_tokens": 1}, ChatCompletionRequest),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 1}, ResponsesRequest),
    "/v1/messages": ({"messages": HELLO, "max_tokens": 1}, MessagesBody),
    "/tokenize": ({"prompt": "hi"}, TokenizeRequest),
    "/detokenize": ({"tokens": [72]}, DetokenizeRequest),
}
WRONG = (-7, 0.5, "\ud800", "x" * 5000, [{}], {"a": {}})
REFUSED = re.compile(
    r"(?P<field>\w+)(?P<place>[\w.\[\]]*)(=(?P<value>.*?))?: (?P<limit>.*)", re.DOTALL
)
NOT_OURS = ("Input should", "Value error", "Value should", "instance of", "Field required")


@pytest.mark.parametrize("route", BODIES)
async def test_a_field_is_named_once_and_in_our_words(
    route: str, client: httpx.AsyncClient
) -> None:
    body, model = BODIES[route]
    refused = set()
    for name in model.model_fields:
        for value in WRONG:
            content = json.dumps({**body, name: value})
            answer = await client.post(
                route, content=content, headers={"content-type": "application/json"}
            )
            if answer.status_code == 200:
                continue
            message = answer.json()["error"]["message"]
            if "maximum context length" in message:
                continue  # begins with the sentence that clients look for
            refused.add(name)
            told = REFUSED.fullmatch(message)
            assert told is not None, message
            is_word = "_" not in told["field"]  # prompt=[]: must hold at least one prompt …
            again = (re.match if is_word else re.search)(rf"\b{told['field']}\b", told["limit"])
            assert again is None, message
            assert not any(words in message for words in NOT_OURS), message
    assert len(refused) > len(model.model_fields) // 2


def test_of_several_types_each_thing_is_said_once() -> None:
    problems = [
        {"type": "string_type", "msg": "?"},
        {"type": "model_type", "msg": "?"},
        {"type": "dict_type", "msg": "?"},
        {"type": "own", "msg": "at most 3 of them"},
    ]
    assert wanted(problems) == "must be text or an object or at most 3 of them"
