"""How a model is told about tools, and in which form it then calls them.

A chat template that has a place for tools describes them itself, and its text tells the form of the
calls. For any other, `in_plain_messages` describes them in words, and asks for Hermes' form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

ToolFormat = Literal["glm45", "hermes", "llama", "mistral", "qwen3_coder"]

_MARKS: tuple[tuple[tuple[str, ...], ToolFormat], ...] = (
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>",), "hermes"),
    (('"parameters": dictionary',), "llama"),
    (("<|python_tag|>",), "llama"),
)
"""What a template that describes tools says, and the form of its model's calls; the first row
counts of which all is there."""

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
    return next((form for marks, form in _MARKS if all(each in template for each in marks)), None)


def in_plain_messages(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    takes_system: bool = True,
) -> list[dict[str, Any]]:
    """The same conversation for a template that knows only roles and text, in Hermes' form.

    The tools are described at the end of the system message, which is put first where there is
    none, or in front of what the user says first, where the template `takes_system` messages not.
    Former calls become the assistant's text. Their results become the user's, in one message with
    what the user says beside them, since some templates want roles to alternate. Without tools and
    calls the messages stay as they are.
    """
    plain: list[dict[str, Any]] = []
    for is_users, run in groupby(messages, lambda each: each.get("role") in ("user", "tool")):
        turns = [*run]
        has_result = is_users and any(each["role"] == "tool" for each in turns)
        plain += _as_one(turns) if has_result else map(_in_plain, turns)
    if not tools:
        return plain
    text = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if not takes_system:
        return _told_by_user(plain, text)
    if plain[0].get("role") == "system":
        plain[0]["content"] = f"{plain[0]['content']}\n\n{text}"
        return plain
    return [{"role": "system", "content": text}, *plain]


def _told_by_user(plain: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """With `text` in front of what the user says first."""
    first = next((each for each in plain if each.get("role") == "user"), None)
    if first is None:
        return [{"role": "user", "content": text}, *plain]
    first["content"] = f"{text}\n\n{first['content']}"
    return plain


def _as_one(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Results of calls, and what the user says beside them, as one message of the user's."""
    plain = [_in_plain(each) for each in turns]
    texts = [each.get("content") for each in plain]
    if not all(isinstance(text, str) for text in texts):
        return plain
    return [{"role": "user", "content": "\n".join(map(str, texts))}]


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
