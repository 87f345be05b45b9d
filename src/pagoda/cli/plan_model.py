"""Which model a plan is for: a directory, a config.json, a GGUF file, a table's name, a hub id."""

from __future__ import annotations

import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pagoda.cli.plan_hub import hub_config
from pagoda.errors import ModelError
from pagoda.models.config import CONFIG_FILE, ModelConfig, read_directory_config
from pagoda.models.directory_config import completed_by_weights
from pagoda.models.json_file import read_json
from pagoda.models.locate import ModelFiles, locate
from pagoda.models.quantization import SECTION, read_quantization
from pagoda.models.registry import language_tensors
from pagoda.models.tensor_files import INDEX_FILE, INDEX_LIMITS, SINGLE_FILE
from pagoda.planning.request import ModelFacts
from pagoda.planning.tables import find_model, nearest_models

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def find_facts(model: str) -> ModelFacts:
    """The facts of the model; `ModelError` with the nearest names where there is none."""
    if not model:
        raise ModelError("model", model, "must be a directory, a file, a name or a hub id")
    path = Path(model)
    try:
        path = path.expanduser()
        is_directory, is_file, is_there = path.is_dir(), path.is_file(), path.exists()
    except (OSError, RuntimeError):  # a name that is too long, a home that is not there
        is_directory = is_file = is_there = False
    if is_directory:
        return _of_directory(path)
    if is_file and path.suffix == ".gguf":
        return _of_gguf(path)
    if is_there:  # a pipe as well
        return _of_config(path)
    found = find_model(model)
    if found is not None:
        return ModelFacts.of_row(*found)
    if model == "smollm2":
        return _of_gguf(locate(None).path)
    if _HUB_ID.fullmatch(model) and path.suffix not in (".json", ".gguf"):
        return _of_hub(model)
    raise ModelError(
        "model", model, f"there is no such file, nor a model of that name{_near(model)}"
    )


def _of_directory(path: Path) -> ModelFacts:
    name, config = path.resolve().name, read_directory_config(path)
    files = ModelFiles("directory", path, name)
    with suppress(ModelError):  # there may be no weights yet to tell more
        config = completed_by_weights(config, files)
    facts = ModelFacts(name, str(path / CONFIG_FILE), config, files_bytes=_files_bytes(path))
    return facts if config.section(SECTION) is None else _with_types(facts, files)


def _with_types(facts: ModelFacts, files: ModelFiles) -> ModelFacts:
    """The types of quantised tensors, or why the engine refuses them, where there are files."""
    from pagoda.models.schemes.quantised_tensors import quantised_types

    try:
        tensors = language_tensors(facts.config, files.tensors)
    except ModelError:
        return facts
    try:
        scheme = read_quantization(facts.config)
        types = {} if scheme is None else quantised_types(scheme, tensors)
    except ModelError as error:
        return replace(facts, refused_by_pagoda=error)
    return replace(facts, tensor_types=types)


def _of_config(path: Path) -> ModelFacts:
    return ModelFacts(path.resolve().parent.name, str(path), ModelConfig(read_json(path)))


def _files_bytes(path: Path) -> int | None:
    """Bytes of the tensors, by the index or by the files themselves."""
    single = path / SINGLE_FILE
    if single.is_file():
        return single.stat().st_size or None
    index = path / INDEX_FILE
    # a longer one, of very many experts, tells little more than the sizes of the files
    if index.is_file() and index.stat().st_size <= INDEX_LIMITS.most_bytes:
        metadata = ModelConfig(read_json(index, INDEX_LIMITS)).section("metadata")
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
    [(commonest, _)] = Counter(
        tensor.type.name for tensor in tensors if len(tensor.shape) > 1
    ).most_common(1)
    return ModelFacts(
        name=path.stem,
        source=str(path),
        config=reading.config,
        parameters=numbers,
        files_bytes=stored,
        stored_as=commonest,
        refused_by_pagoda=reading.refused_by_pagoda,
        tensor_types=file.types,
        kind="gguf",
    )


def _of_hub(hub_id: str) -> ModelFacts:
    values, source = hub_config(hub_id, f"is not in the table{_near(hub_id)}")
    return ModelFacts(hub_id, source, ModelConfig(values))


def _near(model: str) -> str:
    near = nearest_models(model)
    return f" (the nearest are {', '.join(near)})" if near else ""
