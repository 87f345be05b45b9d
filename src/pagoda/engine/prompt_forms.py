"""The forms in which a program may give prompts and messages, brought into one each.

"text", [1, 2], {"prompt": "text"}, {"prompt_token_ids": [1, 2]}    ──> text or token ids
{"role": …, "content": [{"type": "text", "text": …}, …]}            ──> content as one text
{"type": "function", "function": {"name": …}}                       ──> the same, checked
{"tool_calls": [{"function": {"arguments": "{…}"}, …}], …}          ──> arguments as an object
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from pagoda.errors import InvalidRequestError
from pagoda.structured import MAX_SCHEMA_DEPTH, is_deeper_than

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping of one of the two under the name that vLLM has for it."""

Message = Mapping[str, Any]
"""One turn of a conversation: `role` and `content`, which is text or a list of text parts."""


def prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[str | Sequence[int]]:
    """One prompt or many: a string, a mapping or a list of whole numbers, NumPy's too, is one.

    Raises `InvalidRequestError` naming `prompts`.
    """
    if isinstance(prompts, str | bytes | bytearray | Mapping):
        return [prompt_of(prompts, "prompts")]
    try:
        batch: list[Any] = list(prompts)
    except TypeError:
        limit = "must be text, token ids, or a list of those"
        raise InvalidRequestError("prompts", prompts, limit) from None
    if batch and isinstance(batch[0], Integral):
        return [batch]
    return [prompt_of(prompt, "prompts") for prompt in batch]


def prompt_of(prompt: Prompt, field: str = "prompt") -> str | Sequence[int]:
    """A prompt without the name that it may be given under.

    Raises `InvalidRequestError` naming `field`, also for the messages of a conversation.
    """
    first = prompt[0] if isinstance(prompt, Sequence) and len(prompt) > 0 else None
    if _is_message(prompt) or _is_message(first):
        limit = "messages are for chat and stream_chat"
        raise InvalidRequestError(field, prompt, limit)
    if isinstance(first, Sequence) and not isinstance(prompt, str):
        limit = "must be one prompt, as text or token ids"
        raise InvalidRequestError(field, prompt, limit)
    if not isinstance(prompt, Mapping):
        return prompt
    if len(prompt) != 1 or next(iter(prompt)) not in ("prompt", "prompt_token_ids"):
        limit = "a mapping has either prompt or prompt_token_ids and nothing else"
        raise InvalidRequestError(field, sorted(map(str, prompt)), limit)
    (content,) = prompt.values()
    return content


def conversations_of(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    """One conversation or many.

    Raises `InvalidRequestError` naming `messages` for what is no list.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        limit = "must be a list of messages, each {'role': …, 'content': …}"
        raise InvalidRequestError("messages", messages, limit)
    several = bool(messages) and not isinstance(messages[0], Mapping)
    return list(messages) if several else [messages]  # type: ignore[arg-type, list-item]


def as_templates_want(messages: Sequence[Message]) -> Sequence[Message]:
    """The same messages with the text parts of each content joined, and arguments of calls read.

    What is no message at all is left for the tokenizer to refuse. Raises `InvalidRequestError`
    naming `messages` for a part that is not text.
    """
    if not isinstance(messages, Sequence):
        return messages
    return [
        _with_arguments(_with_one_text(message)) if _is_message(message) else message
        for message in messages
    ]


def read_arguments(text: str) -> dict[str, Any] | str:
    """The arguments of a call for chat templates, who write their JSON themselves: what is no JSON
    object stays text."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    if not isinstance(arguments, dict) or is_deeper_than(arguments, MAX_SCHEMA_DEPTH):
        return text
    return arguments


def _with_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_read_arguments(call) for call in calls]}


def _with_read_arguments(call: Any) -> Any:
    """What is no call is left for the tokenizer to refuse."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": read_arguments(function["arguments"])}}


def tools_of(tools: Sequence[Mapping[str, Any]] | None) -> Sequence[Mapping[str, Any]]:
    """Tools that a chat template can describe; None: none.

    Raises `InvalidRequestError` naming `tools`.
    """
    if tools is None:
        return ()
    limit = "must be a list of {'type': 'function', 'function': {'name': …}}"
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        raise InvalidRequestError("tools", tools, limit)
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name or tool.get("type") != "function":
            raise InvalidRequestError("tools", tool, limit)
    return tools


def _with_one_text(message: Message) -> Message:
    content = message.get("content")
    if content is None and message["role"] in ("system", "developer", "user"):
        limit = f"a message of role {message['role']} has content"
        raise InvalidRequestError("messages", message, limit)
    return message if not isinstance(content, list) else {**message, "content": _joined(content)}


def _joined(parts: Sequence[object]) -> str:
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            limit = "a part of a message's content must be {'type': 'text', 'text': …}"
            raise InvalidRequestError("messages", part, limit)
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequestError("messages", part, "a part's text must be a string")
        texts.append(text)
    return "".join(texts)


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value
