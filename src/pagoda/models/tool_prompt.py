"""How a model is told about tools, and in which form it then calls them.

A chat template that has a place for tools describes them itself, and its text tells the form of the
calls. For any other, `in_plain_messages` describes them in words, and asks for Hermes' form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

ToolFormat = Literal["hermes", "llama", "mistral"]

_MARKS: tuple[tuple[str, ToolFormat], ...] = (
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ('"parameters": dictionary', "llama"),
    ("<|python_tag|>", "llama"),
)
"""What a template that describes tools says, and the form of its model's calls; the first that is
there counts."""

_TOOLS = """# Tools

You may call one or more functions to assist with the user's query. Here are their signatures, one \
JSON object a line, between <tools> and </tools>:
<tools>
{tools}
</tools>

To call a function, answer with a JSON object of its name and arguments between <tool_call> and \
</tool_call>:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>"""


def format_in(template: str) -> ToolFormat | None:
    """The form of calls that a chat template asks for; None where it has no place for tools."""
    if "tools" not in template:
        return None
    return next((form for mark, form in _MARKS if mark in template), None)


def in_plain_messages(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The same conversation for a template that knows only roles and text, in Hermes' form.

    The tools are described at the end of the system message, which is put first where there is
    none; former calls become the assistant's text, and their results the user's. Without tools and
    calls the messages stay as they are.
    """
    plain = [_in_plain(message) for message in messages]
    if not tools:
        return plain
    text = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain[0].get("role") == "system":
        plain[0]["content"] = f"{plain[0]['content']}\n\n{text}"
        return plain
    return [{"role": "system", "content": text}, *plain]


def _in_plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        content = f"<tool_response>\n{message.get('content')}\n</tool_response>"
        return {"role": "user", "content": content}
    if not message.get("tool_calls"):
        return dict(message)
    try:
        calls = [_written(call["function"]) for call in message["tool_calls"]]
    except (KeyError, TypeError):
        raise ValueError("each of tool_calls needs a function with name and arguments") from None
    said = [message["content"]] if message.get("content") else []
    return {"role": message["role"], "content": "\n".join([*said, *calls])}


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
