"""A chunk that says nothing but text, of which an answer has one for nearly every token."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_core import to_json

TEXT = "\ue000text\ue000"
"""Stands where the text will be; in private use, so no tokenizer's text and no name is like it."""


class TextChunk:
    """The JSON around the text: made once, as nothing else differs from chunk to chunk."""

    def __init__(self, chunk: BaseModel) -> None:
        """`chunk` has `TEXT` for its text, and no field after it that could hold the same."""
        self._before, mark, self._after = json_of(chunk).rpartition(to_json(TEXT))
        assert mark, "the chunk has no place for a text"

    def saying(self, text: str) -> bytes:
        """The chunk's JSON with this text."""
        return self._before + to_json(text) + self._after


def json_of(body: BaseModel) -> bytes:
    """As it is sent."""
    return body.model_dump_json().encode("utf-8")
