"""Unknown fields of the objects within a body."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pagoda.server.inner_body import MOST_UNKNOWN
from server.sse import events_of

pytestmark = pytest.mark.anyio
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"input": "hi"},
}
CITY = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
FUNCTION = {"type": "function", "function": {"name": "x"}}
INNER: dict[str, tuple[str, dict[str, Any], str]] = {
    "stream_options.includ_usage": (
        CHAT,
        {"stream_options": {"includ_usage": True, "include_usage": None, "x": None}},
        "include_usage",
    ),
    "response_format.json_schema.strct": (
        COMPLETIONS,
        {"response_format": {**CITY, "json_schema": {**CITY["json_schema"], "strct": True}}},
        "strict",
    ),
    "response_format.json_shema": (CHAT, {"response_format": {**CITY, "json_shema": 1}}, "json_sc"),
    "tools[1].function.paramters": (
        CHAT,
        {"tools": [FUNCTION, {"type": "function", "function": {"name": "y", "paramters": {}}}]},
        "parameters",
    ),
    "text.format.schma": (RESPONSES, {"text": {"format": {"type": "text", "schma": {}}}}, "schema"),
    "tools[1].typ": (
        RESPONSES,
        {"tools": [{"type": "web_search", "x": 1}, {**FUNCTION["function"], **FUNCTION, "typ": 1}]},
        "type",
    ),
}


@pytest.mark.parametrize("place", INNER)
async def test_a_misspelt_field_of_an_object_within_is_said_with_its_place(
    place: str, client: httpx.AsyncClient
) -> None:
    url, fields, meant = INNER[place]
    body = {**BODIES[url], **fields, "stream": "stream_options" in fields}
    answered = await client.post(url, json=body)
    told = events_of(answered.text)[0] if body["stream"] else answered.json()
    assert f"{place} is ignored: there is no such field; did you mean {meant}" in "".join(
        told["warnings"]
    )


async def test_of_unknown_fields_of_all_objects_a_few_are_said(client: httpx.AsyncClient) -> None:
    many = {f"{number}{'x' * 1_000}": 1 for number in range(6)}
    tools = [{**FUNCTION, **many, "function": {"name": f"f{n}", **many}} for n in range(128)]
    said = (await client.post(CHAT, json={**BODIES[CHAT], **many, "tools": tools})).json()[
        "warnings"
    ]
    assert len(said) == MOST_UNKNOWN
    assert all(len(warning) < 120 for warning in said)
    assert sum(warning.startswith("tools[0]") for warning in said) == MOST_UNKNOWN - len(many)


async def test_a_misspelt_field_of_tokenize_is_said(client: httpx.AsyncClient) -> None:
    answered = await client.post("/tokenize", json={"prompt": "x", "add_special_token": False})
    [warning] = answered.json()["warnings"]
    assert warning.endswith("did you mean add_special_tokens?")
