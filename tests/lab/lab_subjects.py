"""A tiny random model to try methods on, and a text for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from checkpoints import Case, write_checkpoint
from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions
from pagoda.lab.subject import Subject
from pagoda.lab.text import Text, TokenText

TEXT = Text("a text", " ".join(f"word {number} of it," for number in range(400)))
CASE = Case("llama", {"num_hidden_layers": 2})


@cache
def tiny_subject() -> Subject:
    """A Llama of two small layers over bytes, in float32."""
    with TemporaryDirectory() as folder:
        directory = write_checkpoint(Path(folder), CASE)
        options = EngineOptions(model=str(directory), device="cpu", threads=1, block_size=8)
        return Subject(load_model(options), options)


def tiny_text() -> TokenText:
    """In the tokens of the tiny model, which are bytes."""
    return TokenText.of(TEXT, tiny_subject().model.tokenizer)
