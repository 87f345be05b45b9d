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

    def __init__(self, make: Callable[[str], BaseModel], num_places: int = 1) -> None:
        """`make` gives the chunk that says a text, which stands in so many places of it."""
        self._around = json_of(make(_TEXT)).rsplit(to_json(_TEXT), num_places)
        is_all = len(self._around) == num_places + 1 and self.saying("") == json_of(make(""))
        assert is_all, "more or less of it depends on the text"

    def saying(self, text: str) -> bytes:
        """The chunk's JSON with this text."""
        return to_json(text).join(self._around)
