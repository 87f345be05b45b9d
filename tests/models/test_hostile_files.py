"""A thousand files that a stranger could have made: refused by name, in bounded time and memory."""

from __future__ import annotations

import itertools
import shutil
import tracemalloc
from pathlib import Path

import pytest

from hostile_files import GGUF_FILE, Hostile, SoundGGUF, crafted, mutated, sound_directory
from pagoda.errors import ModelError
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.tokenizer import Tokenizer

NUM_MUTATED = 900
MOST_BYTES = 50 * 2**20
MEASURED_FROM_BYTES = 2**18
"""Measuring takes several times as long."""


def opened(model: Path) -> None:
    """Read all that an engine would, but for a directory's tokenizer, which transformers reads."""
    files = locate(str(model))
    load_weights(files, load_spec(files), "float32")
    if files.kind == "gguf":
        Tokenizer(files)


def refusal(hostile: Hostile, directory: Path) -> ModelError | None:
    """How a file is refused; None where it loads. Anything else that is raised is a failure."""
    try:
        opened(hostile.write(directory))
    except ModelError as refused:
        return refused
    return None


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Hostile:
    return sound_directory(tmp_path_factory.mktemp("sound"))


def test_what_the_others_are_made_of_loads(sound, tmp_path):
    assert refusal(sound, tmp_path / "directory") is None
    gguf = Hostile("sound", {GGUF_FILE: SoundGGUF.make().encode()})
    assert refusal(gguf, tmp_path / "gguf") is None


def test_crafted_files_are_refused_by_name_in_bounded_memory(sound, tmp_path):
    for hostile in crafted(sound):
        measured = hostile.size_bytes > MEASURED_FROM_BYTES
        if measured:
            tracemalloc.start()
        refused = refusal(hostile, tmp_path / "model")
        if measured:
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak_bytes < MOST_BYTES, hostile.name
        assert refused is not None, hostile.name
        assert len(str(refused)) < 1000, hostile.name
        assert str(refused).isprintable(), hostile.name
        shutil.rmtree(tmp_path / "model")


def test_mutated_files_are_refused_or_load(sound, tmp_path):
    mutations = mutated(SoundGGUF.make(), sound, seed=14)
    refusals = [
        refusal(hostile, tmp_path / hostile.kind)
        for hostile in itertools.islice(mutations, NUM_MUTATED)
    ]
    refused = [str(error) for error in refusals if error is not None]
    assert NUM_MUTATED / 2 < len(refused) < NUM_MUTATED
    assert all(len(text) < 1000 and text.isprintable() for text in refused)
