"""What a chat template takes, found out by rendering conversations that most templates take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]
"""The text of messages and tools; raises whatever the template does."""

_SAID = "Be brief."
_USER: dict[str, Any] = {"role": "user", "content": "Hello."}
_TOOL = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_IDS = ("clock0001", "clock0002")
"""Nine letters and digits, the only form that Mistral's templates take."""


def takes_system(render: Render) -> bool:
    """What a system message says reaches the model; Gemma 2's template refuses such messages."""
    return _SAID in (_rendered(render, [{"role": "system", "content": _SAID}, _USER], []) or "")


def takes_one_call(render: Render) -> bool:
    """An assistant's message may have one call of a tool and no more, as in Llama 3's templates."""
    one, two = (_rendered(render, _called(ids), [_TOOL]) for ids in (_IDS[:1], _IDS))
    return one is not None and two is None


def _called(ids: Sequence[str]) -> list[dict[str, Any]]:
    """A conversation with as many calls at once, and their results."""
    function = {"name": "clock", "arguments": {}}
    calls = [{"id": each, "type": "function", "function": function} for each in ids]
    results = [
        {"role": "tool", "tool_call_id": each, "name": "clock", "content": "noon"} for each in ids
    ]
    return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


def _rendered(
    render: Render, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> str | None:
    """None where the template refuses them."""
    try:
        return render(messages, tools)
    # the template is a program in the model's files: what it raises cannot be foreseen
    except Exception:
        return None
