from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from pagoda.server.responses import (
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatDelta,
    CompletionChoice,
    CompletionResponse,
    json_of,
)
from pagoda.server.text_chunk import _TEXT, TextChunk

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def completion(name: str, text: str) -> BaseModel:
    choices = [CompletionChoice(index=3, text=text)]
    return CompletionResponse(id="cmpl-1", created=1, model=name, choices=choices)


def chat(name: str, text: str) -> BaseModel:
    choices = [ChatChunkChoice(index=3, delta=ChatDelta(content=text))]
    return ChatCompletionChunk(id="chatcmpl-1", created=1, model=name, choices=choices)


@given(make=st.sampled_from([completion, chat]), name=TEXTS, texts=st.lists(TEXTS, max_size=3))
@example(make=completion, name=_TEXT, texts=[_TEXT, '"\\\u2028\x00', ""])
def test_every_text_comes_out_as_the_whole_chunk_would(make, name, texts) -> None:
    chunk = TextChunk(partial(make, name))
    for text in texts:
        assert chunk.saying(text) == json_of(make(name, text))


@given(text=TEXTS)
def test_a_text_may_stand_in_two_places(text) -> None:
    def make(said: str) -> BaseModel:
        delta = ChatDelta(reasoning_content=said, reasoning=said)
        return ChatChunkChoice(index=0, delta=delta)

    assert TextChunk(make, 2).saying(text) == json_of(make(text))


@pytest.mark.parametrize(
    "make",
    [
        lambda text: ChatChunkChoice(index=0, delta=ChatDelta(content=text), finish_reason=text),
        lambda text: ChatChunkChoice(index=0, delta=ChatDelta(content="said " + text)),
        lambda text: ChatChunkChoice(index=0, delta=ChatDelta(content=text or None)),
        lambda text: ChatChunkChoice(index=len(text), delta=ChatDelta(content=text)),
        lambda text: ChatChunkChoice(index=0, delta=ChatDelta()),
    ],
    ids=["twice", "changed", "left-out", "counted", "nowhere"],
)
def test_a_chunk_that_depends_on_its_text_elsewhere_is_found_out_at_once(make) -> None:
    with pytest.raises(AssertionError, match="depends on the text"):
        TextChunk(make)
