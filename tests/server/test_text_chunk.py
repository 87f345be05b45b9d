from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from pagoda.server.responses import (
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatDelta,
    CompletionChoice,
    CompletionResponse,
)
from pagoda.server.text_chunk import TEXT, TextChunk, json_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def completion(name: str, text: str) -> BaseModel:
    choices = [CompletionChoice(index=3, text=text)]
    return CompletionResponse(id="cmpl-1", created=1, model=name, choices=choices)


def chat(name: str, text: str) -> BaseModel:
    choices = [ChatChunkChoice(index=3, delta=ChatDelta(content=text))]
    return ChatCompletionChunk(id="chatcmpl-1", created=1, model=name, choices=choices)


@given(make=st.sampled_from([completion, chat]), name=TEXTS, texts=st.lists(TEXTS, max_size=3))
@example(make=completion, name=TEXT, texts=[TEXT, '"\\\u2028\x00', ""])
def test_every_text_comes_out_as_the_whole_chunk_would(make, name, texts) -> None:
    chunk = TextChunk(make(name, TEXT))
    for text in texts:
        assert chunk.saying(text) == json_of(make(name, text))
