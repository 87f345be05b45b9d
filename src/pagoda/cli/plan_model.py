"""Which model a plan is for: a directory, a config.json, a GGUF file, a table's name, a hub id."""

from __future__ import annotations

import re
from pathlib import Path

from pagoda.errors import ModelError
from pagoda.models.config import CONFIG_FILE, ModelConfig, read_directory_config, read_json
from pagoda.planning.gguf_fields import config_of_gguf
from pagoda.planning.request import ModelFacts
from pagoda.planning.tables import find_model, nearest_models

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_INDEX = "model.safetensors.index.json"


def find_facts(model: str) -> ModelFacts:
    """The facts of the model; `ModelError` with the nearest names where there is none."""
    path = Path(model).expanduser()
    if path.is_dir():
        return _of_directory(path)
    if path.is_file():
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
        total = None if metadata is None else metadata.optional_number("total_size")
        if total is not None:
            return int(total)
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) or None


def _of_gguf(path: Path) -> ModelFacts:
    from pagoda.models.gguf import GGUFFile  # reads the table of tensors, and needs numpy

    file = GGUFFile(path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("token_embd.weight", None, "the file lacks this tensor")
    values = config_of_gguf(
        file.metadata, embedding.shape[0], is_tied="output.weight" not in file.tensors
    )
    numbers, stored = 0, 0
    for tensor in file.tensors.values():
        rows = 1
        for length in tensor.shape[:-1]:
            rows *= length
        numbers += rows * tensor.shape[-1]
        stored += rows * tensor.row_bytes
    return ModelFacts(path.stem, str(path), ModelConfig(values), numbers, stored)


def _of_hub(hub_id: str) -> ModelFacts:
    from huggingface_hub import hf_hub_download  # takes long, and only a hub id needs it

    try:
        path = Path(hf_hub_download(hub_id, CONFIG_FILE))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ModelError(
            "model",
            hub_id,
            f"is not in the table{_near(hub_id)}, and its config could not be fetched from the "
            f"hub: {reason}",
        ) from error
    return ModelFacts(hub_id, f"huggingface.co/{hub_id}", ModelConfig(read_json(path)))


def _near(model: str) -> str:
    near = nearest_models(model)
    return f" (the nearest are {', '.join(near)})" if near else ""
