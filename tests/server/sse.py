"""Reads server-sent events as OpenAI's clients do."""

from __future__ import annotations

import json
from typing import Any

DONE = "[DONE]"


def events_of(body: str) -> list[dict[str, Any]]:
    """The JSON of every event; asserts that the stream is well formed and ends with `[DONE]`."""
    *events, done, rest = body.split("\n\n")
    assert rest == ""
    assert done == f"data: {DONE}"
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def completion_text(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def chat_text(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    deltas = [choice["delta"] for choice in choices if choice["index"] == index]
    return "".join(delta.get("content", "") for delta in deltas)
