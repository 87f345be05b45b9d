"""A thousand files that a stranger could have made: refused by name, in bounded time and memory."""

from __future__ import annotations

import itertools
import re
import shutil
import tracemalloc
from pathlib import Path

import pytest

from hostile_files import GGUF_FILE, Hostile, SoundGGUF, crafted, mutated, sound_directory
from pagoda.errors import ModelError
from pagoda.models import gguf_keys, gguf_merges, tensor_names
from pagoda.models.gguf_header import MOST_DIMS as MOST_GGUF_DIMS
from pagoda.models.gguf_header import MOST_ENTRIES, MOST_HEADER_BYTES, MOST_NUMBERS, MOST_STRINGS
from pagoda.models.json_file import CONFIG_LIMITS, MOST_DIGITS
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.stored_tensors import HEADER_LIMITS, MOST_DIMS, MOST_TENSORS
from pagoda.models.tensor_files import INDEX_LIMITS, MOST_FILES
from pagoda.models.tokenizer import Tokenizer

DOCUMENT = Path(__file__).parents[2] / "docs" / "files.md"
NUM_MUTATED = 900
MIB = 2**20
MOST_BYTES = {"GGUF": 50 * MIB, "config": 50 * MIB, "safetensors": 70 * MIB, "index": 110 * MIB}
"""That a crafted file may take, by what of a model it is."""
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
            assert peak_bytes < MOST_BYTES[hostile.name.partition(":")[0]], hostile.name
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


LIMITS = {
    "tensors of a model": (tensor_names.MOST_TENSORS, MOST_TENSORS, MOST_GGUF_DIMS, MOST_DIMS),
    "names of tensors and keys": (tensor_names.MOST_NAME_CHARACTERS,),
    "GGUF metadata": (MOST_HEADER_BYTES, MOST_ENTRIES, MOST_STRINGS, MOST_NUMBERS),
    "GGUF tokenizer": (
        *(gguf_keys.MOST_TOKEN_CHARACTERS, gguf_keys.MOST_CHARACTERS),
        *(gguf_merges.MOST_MERGES, gguf_merges.MOST_CHARACTERS),
    ),
    "safetensors header": (HEADER_LIMITS.most_bytes, HEADER_LIMITS.most_values),
    "index": (
        *(INDEX_LIMITS.most_bytes, INDEX_LIMITS.most_wide_bytes),
        *(INDEX_LIMITS.most_values, MOST_FILES),
    ),
    "config.json, generation_config.json, chat_template.json": (
        *(CONFIG_LIMITS.most_bytes, CONFIG_LIMITS.most_values, MOST_DIGITS),
    ),
}
"""Rows of docs/files.md, and the numbers that the code has for them, in their order."""


def numbers_in(text: str) -> list[int]:
    """Those of a text, bytes where it says MiB."""
    found = re.findall(r"(\d[\d,]*)( MiB)?", text)
    return [int(digits.replace(",", "")) * (MIB if unit else 1) for digits, unit in found]


def test_the_documented_limits_are_those_of_the_code():
    rows = dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE))
    assert {name: numbers_in(rows[name]) for name in LIMITS} == {
        name: list(numbers) for name, numbers in LIMITS.items()
    }


def test_the_documented_memory_is_what_crafted_files_are_held_to():
    said = re.search(r"the crafted ones within (.*?):", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert said is not None
    assert numbers_in(said[1]) == list(dict.fromkeys(MOST_BYTES.values()))
