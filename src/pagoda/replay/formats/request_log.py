"""Logs of requests as clients of OpenAI's interface write them: a JSON object a line.

    {"messages": [{"role": "user", "content": "…"}], "timestamp": 12.5, "max_tokens": 100}
    {"prompt": "…" or [1, 2, 3], "usage": {"completion_tokens": 80}}
    {"body": {"messages": […]}, "response": {"body": {"usage": {…}}}}

Token ids are taken as they are. Without a tokenizer a text's tokens are pieces of four characters,
or its words; units of 16 of them are hashed, chained, and the text is forgotten. What a template
would put between messages is not known, so lengths are about right and shared beginnings are
exact.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from pagoda.cache.prefix import packed
from pagoda.errors import BlockTableError, InvalidRequestError
from pagoda.replay import fields
from pagoda.replay.fields import Row
from pagoda.replay.formats.format import PlainReader, TraceFormat
from pagoda.replay.trace import TracedRequest

UNIT_SIZE = 16
CHARACTERS_OF_A_TOKEN = 4
DEFAULT_OUTPUT_TOKENS = 16
"""Of a request that says neither how long its answer was nor how long it may be; OpenAI's."""
_WORD = re.compile(r"\S+")
_OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

Pieces = Sequence[bytes]
"""A prompt's tokens, each as bytes that no other token has."""


def by_characters(text: str) -> Pieces:
    """Pieces of four characters."""
    size = CHARACTERS_OF_A_TOKEN
    return [_bytes(text[at : at + size]) for at in range(0, len(text), size)]


def by_words(text: str) -> Pieces:
    """Words, with the space before them; what is behind the last one is none's."""
    ends = [0, *(word.end() for word in _WORD.finditer(text))]
    return [_bytes(text[start:end]) for start, end in pairwise(ends)]


class RequestLogReader(PlainReader):
    """See above."""

    def __init__(self, pieces_of: Callable[[str], Pieces]) -> None:
        super().__init__(UNIT_SIZE)
        self._pieces_of = pieces_of
        self._begin_s: float | None = None

    def read(self, row: Row) -> TracedRequest:
        body = _mapping(row, "body") or _mapping(row, "request") or row
        pieces = self._pieces(body)
        if not pieces:
            raise InvalidRequestError("prompt", "", "must not be empty")
        unit_ids = _chained(pieces)
        return TracedRequest(
            arrival_s=self._arrival(row),
            num_prompt_tokens=len(pieces),
            num_output_tokens=_num_output(row, body),
            unit_ids=unit_ids,
            unit_size=UNIT_SIZE,
            num_known_tokens=len(unit_ids) * UNIT_SIZE,
            tenant=fields.text(row, "tenant"),
            cache_salt=fields.text(body, "cache_salt"),
        )

    def _pieces(self, body: Row) -> Pieces:
        if "messages" in body:
            return self._pieces_of(_written(body))
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            try:
                tokens = packed(prompt)
            except BlockTableError as error:
                raise InvalidRequestError("prompt", prompt, error.limit) from None
            return [tokens[at : at + 4] for at in range(0, len(tokens), 4)]
        if isinstance(prompt, str):
            return self._pieces_of(prompt)
        raise InvalidRequestError("prompt", prompt, "must be a text or a list of token ids")

    def _arrival(self, row: Row) -> float:
        """Seconds since the first row that tells a time; such logs have the time of day."""
        name = next((each for each in ("timestamp", "created", "arrival_s") if each in row), None)
        if name is None:
            return 0.0
        at = fields.seconds(row, name)
        if self._begin_s is None:
            self._begin_s = at
        return max(0.0, at - self._begin_s)


def _written(body: Row) -> str:
    """Tools and messages in one text that begins alike where conversations do."""
    messages = body["messages"]
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise InvalidRequestError("messages", messages, "must be a list of objects")
    tools = [json.dumps(body["tools"], sort_keys=True)] if body.get("tools") else []
    return "\n".join([*tools, *map(_one_written, messages)])


def _one_written(message: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
    more = json.dumps(rest, sort_keys=True) if rest else ""
    return f"{message.get('role')}\n{text}{more}"


def _chained(pieces: Pieces) -> array[int]:
    """An id for each full unit, that stands for all pieces up to its end."""
    unit_ids = array("Q")
    parent = b""
    for start in range(0, len(pieces) - UNIT_SIZE + 1, UNIT_SIZE):
        digest = blake2b(parent, digest_size=16)
        for piece in pieces[start : start + UNIT_SIZE]:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        parent = digest.digest()
        unit_ids.append(int.from_bytes(parent[:8], "little"))
    return unit_ids


def _num_output(row: Row, body: Row) -> int:
    response = _mapping(row, "response")
    for holder in (row, response, _mapping(response, "body")):
        usage = _mapping(holder, "usage")
        for name in ("completion_tokens", "output_tokens"):
            if usage.get(name) is not None:
                return fields.whole(usage, name)
    for name in _OUTPUT_FIELDS:
        if body.get(name) is not None:
            return fields.whole(body, name)
    return DEFAULT_OUTPUT_TOKENS


def _mapping(row: Row, name: str) -> Row:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _knows(row: Row) -> bool:
    body = _mapping(row, "body") or _mapping(row, "request") or row
    return "messages" in body or "prompt" in body


REQUEST_LOG = TraceFormat(_knows, lambda row: RequestLogReader(by_characters))
WORD_LOG = TraceFormat(_knows, lambda row: RequestLogReader(by_words))
