"""Which safetensors files of a directory hold a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagoda.errors import ModelError
from pagoda.models.json_file import JSONLimits, read_json

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_SHARDS = "model-*-of-*.safetensors"
_SUFFIX = ".safetensors"
_GGUF = ".gguf"

INDEX_LIMITS = JSONLimits(most_bytes=2**24, most_values=2**18, names_twice=False)
"""The largest index is that of 384 experts in 60 layers with a scale each: 140,000 tensors, 13 MiB.
It takes 70 MiB to read."""
MOST_FILES = 2**10
_MOST_NAME_CHARACTERS = 255
_PICKLES = (".bin", ".pth", ".pt", ".ckpt")
"""Endings of files that PyTorch unpickles, which can run code."""


def tensor_files(directory: Path) -> list[Path]:
    """model.safetensors, or the files of the index, or the only one there is.

    Beside model.safetensors others may lie: the same weights in another format, or the index and
    the files of an earlier save. It comes first, as in transformers. Raises `ModelError` where
    there are none, or the index names what is not in the directory.
    """
    if (directory / SINGLE_FILE).is_file():
        return [directory / SINGLE_FILE]
    index = directory / INDEX_FILE
    if index.is_file():
        return _of_index(directory, read_json(index, INDEX_LIMITS).get("weight_map"))
    found = sorted(directory.glob(f"*{_SUFFIX}"))
    if len(found) != 1:
        advice = _advice(directory) if not found else ""
        limit = f"holds {len(found)} {_SUFFIX} files; {SINGLE_FILE} or {INDEX_FILE} is needed"
        raise ModelError("model", str(directory), f"{limit}{advice}")
    return found


def shards_left_aside(directory: Path) -> list[Path]:
    """The files of a sharded save that lie, with its index, beside the model.safetensors that is
    read instead."""
    is_read = not ((directory / SINGLE_FILE).is_file() and (directory / INDEX_FILE).is_file())
    return [] if is_read else sorted(directory.glob(_SHARDS))


def gguf_left_aside(directory: Path) -> list[Path]:
    """The GGUF files that lie beside the safetensors, which are read instead."""
    return sorted(directory.glob(f"*{_GGUF}"))


def _of_index(directory: Path, weight_map: Any) -> list[Path]:
    field = f"{INDEX_FILE} weight_map"
    if type(weight_map) is not dict or not all(type(name) is str for name in weight_map.values()):
        raise ModelError(field, weight_map, "must map tensors to files")
    names = sorted(set(weight_map.values()))
    if not 1 <= len(names) <= MOST_FILES:
        raise ModelError(field, f"{len(names):,} files", f"must be 1 to {MOST_FILES:,}")
    for name in names:
        if not _is_plain(name):
            raise ModelError(field, name, f"must be a {_SUFFIX} file in the same directory")
        # the hub's cache keeps links there: they are the owner's, the index is a stranger's
        if not (directory / name).is_file():
            raise ModelError("model", str(directory), f"lacks {name}, which its index names")
    return [directory / name for name in names]


def _is_plain(name: str) -> bool:
    """Whether it names a file without leading anywhere else."""
    return (
        name.endswith(_SUFFIX)
        and len(name) <= _MOST_NAME_CHARACTERS
        and name.isprintable()
        and not {"/", "\\", ":"} & set(name)
    )


def _advice(directory: Path) -> str:
    """How to come by weights that can be read, if the directory has others."""
    names = sorted(file.name for file in directory.iterdir())
    for name in names:
        if name.endswith(_GGUF):
            return f". To run {name}, name the file itself"
        if name.endswith(_PICKLES):
            return (
                f". {name} is PyTorch's own form, which can run code when it is read. Convert it "
                "once, if you trust it: transformers' AutoModelForCausalLM.from_pretrained(...)"
                ".save_pretrained(...) writes safetensors"
            )
    return ""
