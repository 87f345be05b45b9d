"""A chunk that says nothing but text, of which an answer has one for nearly every token."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel
from pydantic_core import to_json

from pagoda.server.responses import json_of

_TEXT = "\ue000text\ue000"
"""Stands where the text will be; in private use, so no tokenizer's text and no name is like it."""


def with_usage(chunk: bytes, usage: bytes) -> bytes:
    """A chunk's JSON with a usage, which is JSON too."""
    return chunk[:-1] + b',"usage":' + usage + b"}"


class TextChunk:
    """The JSON around the text: made once, as nothing else differs from chunk to chunk."""

    def __init__(self, make: Callable[[str], BaseModel]) -> None:
        """`make` gives the chunk that says a text, and has no other place where that stands."""
        self._before, _, self._after = json_of(make(_TEXT)).rpartition(to_json(_TEXT))
        assert self.saying("") == json_of(make("")), "more than one place depends on the text"

    def saying(self, text: str) -> bytes:
        """The chunk's JSON with this text."""
        return self._before + to_json(text) + self._after
