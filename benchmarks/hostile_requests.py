"""Requests that cost much beside what they ask for, and ordinary ones to compare them with."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from serving import _head, prompt_ids

Ask = Callable[[int], Awaitable[str]]
"""Sends something to a port of this machine and returns how it was answered."""

NOTHING = "nothing"
_KEY = "the-key-of-alice"
_QUIET_S = 3.0
_PATIENCE_S = 60.0
_MANY = 128


@dataclass(frozen=True)
class Hostile:
    """A request, and the row that shows what its computation alone costs others."""

    name: str
    ask: Ask
    control: str = NOTHING


@asynccontextmanager
async def sent(
    port: int, route: str, content: bytes, *headers: str, num_missing: int = 0
) -> AsyncIterator[asyncio.StreamReader]:
    """A connection over which a request goes; it closes with the block.

    So many bytes of the body as are `num_missing` never come.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = _head("POST", route, _KEY, len(content) + num_missing)
        more = "".join(f"{each}\r\n" for each in headers).encode()
        writer.write(head[:-2] + more + b"\r\n" + content)
        yield reader
    finally:
        writer.close()


def asks(route: str, **body: Any) -> Ask:
    # Written before anything is measured.
    return asks_raw(route, json.dumps(body).encode())


def asks_raw(route: str, content: bytes, *headers: str) -> Ask:
    async def ask(port: int) -> str:
        try:
            async with (
                asyncio.timeout(_PATIENCE_S),
                sent(port, route, content, *headers) as reader,
            ):
                status = await reader.read(12)
                while await reader.read(1 << 20):
                    pass
        except TimeoutError:
            return "none"
        except ConnectionError:
            return "closed"
        return status[9:].decode() or "closed"

    return ask


def at_once(num: int, ask: Ask) -> Ask:
    """The same from so many clients at a time."""

    async def ask_all(port: int) -> str:
        return "/".join(sorted(set(await asyncio.gather(*[ask(port) for _ in range(num)]))))

    return ask_all


async def nothing(port: int) -> str:
    await asyncio.sleep(_QUIET_S)
    return "-"


def unread(num: int, route: str, **body: Any) -> Ask:
    """Answers that nobody reads, but for their first line."""
    content = json.dumps(body).encode()

    async def ask(port: int) -> str:
        async with AsyncExitStack() as stack:
            opened = [stack.enter_async_context(sent(port, route, content)) for _ in range(num)]
            readers = [await each for each in opened]
            await asyncio.sleep(_QUIET_S)
            return "/".join(sorted({(await each.read(12))[9:].decode() for each in readers}))

    return ask


def unsent(num: int, num_bytes: int = 0) -> Ask:
    """Bodies of which so many bytes come and no more; later somebody asks for a word."""

    async def ask(port: int) -> str:
        async with AsyncExitStack() as stack:
            for _ in range(num):
                content = b" " * num_bytes
                await stack.enter_async_context(sent(port, _COMPLETE, content, num_missing=100))
            await asyncio.sleep(_QUIET_S)
            return await _A_WORD(port)

    return ask


_COMPLETE, _CHAT = "/v1/completions", "/v1/chat/completions"
_A_WORD = asks(_COMPLETE, prompt="x", max_tokens=1)
_DIGITS = "7" * 150_000
_ARGUMENTS = json.dumps({"x": _DIGITS})
_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": _ARGUMENTS}}
_SCHEMA = {
    "type": "object",
    "properties": {f"field_{n}": {"type": "string", "maxLength": 99} for n in range(40)},
}
_STOPS = [f"{number:02}" + "ab" * 511 for number in range(64)]
_USER = {"role": "user", "content": ""}
_JUNK = b'{"prompt": "x", "max_tokens": 16, "junk": [%s[]]}' % (b"[]," * 1_500_000)
_GZIP = "Content-Encoding: gzip"
_QUOTES = asks_raw(_COMPLETE, gzip.compress(b'"' * (8 * 2**20)), _GZIP)
_NAMES = {f"name_{number}": number for number in range(300_000)}
_NUMBERS = '{"a": [%s0]}' % ("0," * 3_900_000)
_NUMBERS_CALL = {**_CALL, "function": {"name": "f", "arguments": _NUMBERS}}
_LISTS: dict[str, list[int]] = {f"k{number}": [] for number in range(49_000)}
_MANY_KWARGS = {f"k{number}": 1 for number in range(99_000)}
_METADATA = {f"{number:072}": "" for number in range(90_000)}
_LARGE_SCHEMA = {"type": "object", "enum": [["x"] * 10] * 9_000, "default": "x" * 6_000_000}
_LARGE_TOOL = {"type": "function", "function": {"name": "f", "parameters": _LARGE_SCHEMA}}
_COUNTED = {"prompt": "x", "max_tokens": 1, "n": _MANY}
_FORTY = {"prompt": "x", "max_tokens": 40, "n": 16}
_HUNDRED = {"prompt": "x", "max_tokens": 100, "n": 16, "ignore_eos": True}

A_WORD, LATE_WORD = "a word", "a word, later"
COUNTED, FORTY, HUNDRED = "n = 128", "n = 16, 40 tokens", "n = 16, 100 tokens"
REQUESTS = (
    # What anybody may ask for.
    Hostile(NOTHING, nothing),
    Hostile(A_WORD, _A_WORD),
    Hostile(LATE_WORD, unsent(0)),
    Hostile(COUNTED, asks(_COMPLETE, **_COUNTED)),
    Hostile(FORTY, asks(_COMPLETE, **_FORTY)),
    Hostile(HUNDRED, asks(_COMPLETE, **_HUNDRED)),
    Hostile("a prompt of 1,000 tokens", asks(_COMPLETE, prompt=prompt_ids(99, 1000), max_tokens=1)),
    # What an audit found.
    Hostile(
        "prompt_logprobs",
        asks(_COMPLETE, prompt=prompt_ids(98, 1000), max_tokens=1, n=_MANY, prompt_logprobs=20),
    ),
    Hostile(
        "echo",
        asks(
            _COMPLETE, prompt=prompt_ids(97, 1000), max_tokens=1, n=_MANY, echo=True, logprobs=20
        ),
    ),
    Hostile("logprobs", asks(_COMPLETE, **_HUNDRED, logprobs=20), HUNDRED),
    Hostile("guided_choice", asks(_COMPLETE, prompt="x", guided_choice=[1] * 200_000)),
    Hostile(
        "logit_bias", asks(_COMPLETE, prompt="x", logit_bias=dict.fromkeys(range(100_000)))
    ),
    Hostile("digits", asks(_COMPLETE, prompt=_DIGITS, max_tokens=1)),
    Hostile(
        "arguments",
        asks(_CHAT, messages=[{"role": "assistant", "content": "", "tool_calls": [_CALL] * 3}]),
    ),
    Hostile("empty messages", asks(_CHAT, messages=[_USER] * 30_000)),
    Hostile("stops", asks(_COMPLETE, **_COUNTED, stop=_STOPS), COUNTED),
    Hostile("salt", asks(_COMPLETE, **_COUNTED, cache_salt="s" * 7_000_000), COUNTED),
    Hostile("unknown field", asks_raw(_COMPLETE, _JUNK), A_WORD),
    Hostile("detokenize, unread", unread(6, "/detokenize", tokens=[100] * 1_000_000)),
    Hostile("silent", unsent(4), LATE_WORD),
    Hostile(
        "grammars", asks(_COMPLETE, **_FORTY, structured_outputs={"json": _SCHEMA}), FORTY
    ),
    # Their siblings.
    Hostile(
        "unknown field, gzip",
        asks_raw(_COMPLETE, gzip.compress(_JUNK), _GZIP),
        A_WORD,
    ),
    Hostile("quotes, gzip", _QUOTES),
    Hostile("empty gzip members", asks_raw(_COMPLETE, gzip.compress(b"") * 50_000, _GZIP)),
    Hostile("many fields", asks(_COMPLETE, prompt="x", max_tokens=1, **_NAMES), A_WORD),
    Hostile("nested", asks_raw(_COMPLETE, b'{"prompt": ' + b"[" * 4_000_000)),
    Hostile("a model's name", asks(_COMPLETE, prompt="x", model="m" * 7_000_000)),
    Hostile("ids", asks(_COMPLETE, prompt=[prompt_ids(96, 8192)] * _MANY, max_tokens=1)),
    Hostile("cut digits", asks(_COMPLETE, prompt="7" * 800_000, truncate_prompt_tokens=8)),
    Hostile("tokenize", asks("/tokenize", prompt="7" * 800_000)),
    Hostile("tokenize, unread", unread(6, "/tokenize", prompt=_DIGITS, return_token_strs=True)),
    Hostile("count_tokens", asks("/v1/messages/count_tokens", model="smollm2", messages=[
        {"role": "user", "content": _DIGITS}
    ])),
    Hostile("responses", asks("/v1/responses", input=_DIGITS)),
    # JSON within texts, and mappings.
    Hostile("arguments of numbers", asks(_CHAT, messages=[
        {"role": "assistant", "content": "", "tool_calls": [_NUMBERS_CALL]}
    ])),
    Hostile("template kwargs", asks(_CHAT, messages=[_USER], chat_template_kwargs=_LISTS)),
    Hostile("tokenize's kwargs", asks("/tokenize", prompt="x", chat_template_kwargs=_MANY_KWARGS)),
    Hostile("metadata", asks("/v1/responses", input="x", metadata=_METADATA)),
    Hostile("a large tool", asks(_CHAT, messages=[_USER], tools=[_LARGE_TOOL])),
    # Crowds.
    Hostile("400 silent", unsent(400), LATE_WORD),
    Hostile("100 at once", at_once(100, asks("/tokenize", prompt="x" * 1000)), A_WORD),
    Hostile("32 quotes, gzip", at_once(32, _QUOTES)),
    Hostile("33 half sent", unsent(33, 8 * 2**20 - 100), LATE_WORD),
)  # fmt: skip
