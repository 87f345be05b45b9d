"""Which model a plan is for: a directory, a config.json, a GGUF file, a table's name, a hub id."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from pagoda.cli.plan_hub import hub_config
from pagoda.errors import ModelError
from pagoda.models.config import CONFIG_FILE, ModelConfig, read_directory_config, read_json
from pagoda.models.directory_config import read_config_beside_weights
from pagoda.planning.request import ModelFacts
from pagoda.planning.tables import find_model, nearest_models

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_INDEX = "model.safetensors.index.json"


def find_facts(model: str) -> ModelFacts:
    """The facts of the model; `ModelError` with the nearest names where there is none."""
    path = Path(model)
    try:
        path = path.expanduser()
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError):  # a name that is too long, a home that is not there
        is_directory = is_file = False
    if is_directory:
        return _of_directory(path)
    if is_file:
        return _of_gguf(path) if path.suffix == ".gguf" else _of_config(path)
    found = find_model(model)
    if found is not None:
        return ModelFacts.of_row(*found)
    if model == "smollm2":
        from pagoda.models.locate import locate

        return _of_gguf(locate(None).path)
    if _HUB_ID.fullmatch(model) and path.suffix not in (".json", ".gguf"):
        return _of_hub(model)
    raise ModelError(
        "model", model, f"there is no such file, nor a model of that name{_near(model)}"
    )


def _of_directory(path: Path) -> ModelFacts:
    try:
        config = read_config_beside_weights(path)
    except ModelError:  # there may be no weights yet to tell the dtype
        config = read_directory_config(path)
    return ModelFacts(
        path.resolve().name, str(path / CONFIG_FILE), config, files_bytes=_files_bytes(path)
    )


def _of_config(path: Path) -> ModelFacts:
    return ModelFacts(path.resolve().parent.name, str(path), ModelConfig(read_json(path)))


def _files_bytes(path: Path) -> int | None:
    """Bytes of the tensors, by the index or by the files themselves."""
    index = path / _INDEX
    if index.is_file():
        metadata = ModelConfig(read_json(index)).section("metadata")
        if metadata is not None and metadata.optional_number("total_size") is not None:
            total = int(metadata.number("total_size"))
            return ModelConfig({"total_size": total}, metadata.prefix).integer("total_size")
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) or None


def _of_gguf(path: Path) -> ModelFacts:
    # what reads the table of tensors takes a while to import
    from pagoda.models.gguf import GGUFFile
    from pagoda.planning.gguf_fields import read_gguf

    file = GGUFFile(path)
    reading = read_gguf(file)
    tensors = file.tensors.values()
    numbers = sum(math.prod(tensor.shape) for tensor in tensors)
    stored = sum(math.prod(tensor.shape[:-1]) * tensor.row_bytes for tensor in tensors)
    commonest, _ = Counter(
        tensor.type.name for tensor in tensors if len(tensor.shape) > 1
    ).most_common(1)[0]
    return ModelFacts(
        path.stem, str(path), reading.config, numbers, stored, commonest, reading.refused_by_pagoda
    )


def _of_hub(hub_id: str) -> ModelFacts:
    values, source = hub_config(hub_id, f"is not in the table{_near(hub_id)}")
    return ModelFacts(hub_id, source, ModelConfig(values))


def _near(model: str) -> str:
    near = nearest_models(model)
    return f" (the nearest are {', '.join(near)})" if near else ""
