"""Where a model is found, and what is said where it is not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from pagoda.errors import ModelError
from pagoda.models.locate import DEFAULT_MODEL_NAME, ModelFiles, locate


def refused(match: str):
    return pytest.raises(ModelError, match=re.escape(match))


@pytest.mark.model
@pytest.mark.parametrize("model", [None, "smollm2"])
def test_the_default_model_lies_in_its_package(model):
    files = locate(model)
    assert files.kind == "gguf"
    assert files.path.suffix == ".gguf"
    assert files.path.is_file()
    assert files.name == DEFAULT_MODEL_NAME == "SmolLM2-135M-Instruct"


def test_without_its_package_the_default_model_says_what_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    limit = "the default model is not installed; `pagoda install-model` installs it"
    with refused(f"model='smollm2': {limit}"):
        locate()


def test_a_directory_and_a_gguf_file_are_taken_as_they_are(tmp_path):
    path = tmp_path / "tiny-model.gguf"
    path.touch()
    assert locate(str(tmp_path)) == ModelFiles("directory", tmp_path, tmp_path.name)
    assert locate(str(path)) == ModelFiles("gguf", path, "tiny-model")


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    assert locate("~/tiny").path == tmp_path / "tiny"


@pytest.mark.parametrize("model", ["~no-such-user/x", "x" * 10_000])
def test_a_path_that_cannot_be_looked_up_is_refused(model):
    with refused(": cannot be looked up: "):
        locate(model)


def test_a_path_below_an_unreadable_directory_is_refused(monkeypatch):
    def is_dir(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", is_dir)
    with refused("model='/secret/model': cannot be looked up: Permission denied; name a directory"):
        locate("/secret/model")


def test_a_directory_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with refused("is a directory that may not be read"):
        locate(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.touch()
    with refused("is a file but no .gguf; name a directory, a .gguf file, a hub id"):
        locate(str(path))


@pytest.mark.parametrize("model", ["", "/no/such/place", "nowhere", "a/b/c", "models/x.gguf", "a/"])
def test_what_is_neither_a_path_nor_a_hub_id_is_refused(model, monkeypatch):
    monkeypatch.chdir("/")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with refused(f"model={model!r}: there is no such file or directory; name a directory"):
        locate(model)


def test_a_hub_id_is_fetched_without_the_weights_of_other_formats(tmp_path, monkeypatch):
    stored = ["config.json", "model.safetensors", "pytorch_model.bin", "model-q4.gguf"]
    stored += ["consolidated.safetensors", "original/consolidated.00.pth", "original/params.json"]
    fetched: list[str] = []

    def snapshot_download(
        repo_id: str, *, revision: str, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        assert (repo_id, revision) == ("owner/Name-1.5", "v1.0")
        fetched.extend(
            huggingface_hub.utils.filter_repo_objects(
                stored, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            )
        )
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    files = locate("owner/Name-1.5", "v1.0")
    assert files == ModelFiles("directory", Path(tmp_path), "owner/Name-1.5")
    assert fetched == ["config.json", "model.safetensors"]


def test_only_a_hub_id_has_revisions(tmp_path):
    with refused("revision='main': only a hub id has revisions"):
        locate(str(tmp_path), "main")


@pytest.mark.parametrize("revision", ["", "-x", "a b", "x" * 300, "../..", "a\n"])
def test_a_revision_is_checked_before_the_hub_is_asked(revision, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with refused("must be a commit, a branch or a tag of a hub id"):
        locate("owner/name", revision)


@pytest.mark.parametrize(
    "error",
    [
        LocalEntryNotFoundError("cannot find it in the cache"),
        OfflineModeIsEnabled("offline mode is enabled"),
        HFValidationError("a strange name"),
        ConnectionError("no route to host"),
        RuntimeError("a proxy says no, in a class of its own"),
    ],
)
def test_a_hub_id_that_cannot_be_fetched_says_what_to_do(error, monkeypatch):
    def snapshot_download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with refused("or download it elsewhere and name its directory. The hub said: ") as caught:
        locate("owner/name")
    assert str(error).splitlines()[0] in str(caught.value)
