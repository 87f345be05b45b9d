"""Safetensors files that are sharded, damaged, truncated or missing."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from checkpoints import CASES, write_checkpoint
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models import checkpoint
from pagoda.models.checkpoint import SafetensorsCheckpoint
from pagoda.models.config import ModelConfig
from pagoda.models.directory_config import completed_by_weights
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import ModelFiles, locate
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.part import HeadRows, Part, RotatedHeads
from pagoda.models.stored_tensors import MOST_TENSORS, stored_tensors
from pagoda.models.tensor_files import INDEX_FILE, SINGLE_FILE


def refused(match: str):
    return pytest.raises(ModelError, match=re.escape(match))


def write_raw(path: Path, header: Any, size_bytes: int) -> Path:
    """A safetensors file with any header and so many bytes after it."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size_bytes))
    return path.parent


def completed(config: ModelConfig, directory: Path) -> ModelConfig:
    return completed_by_weights(config, ModelFiles("directory", directory, "tiny"))


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_every_dtype_is_read_in_chunks_of_any_size(dtype, chunk_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_CHUNK_BYTES", chunk_bytes)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "matrix": torch.randn(37, 11, generator=generator).to(dtype),
        "vector": torch.randn(13, generator=generator).to(dtype),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    source = SafetensorsCheckpoint(stored_tensors(tmp_path))
    assert dict(source.shapes) == {"matrix": (37, 11), "vector": (13,)}
    for name, tensor in tensors.items():
        target = torch.empty(tensor.shape, dtype=torch.float32)
        source.read(Part(name, tuple(tensor.shape)), target)
        assert torch.equal(target, tensor.to(torch.float32))
        rows = torch.empty(8, *tensor.shape[1:])
        source.read(Part(name, tuple(rows.shape), None, 3, tuple(tensor.shape)), rows)
        assert torch.equal(rows, target[3:11])


def test_the_only_file_may_have_any_name(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "weights.safetensors")
    assert dict(SafetensorsCheckpoint(stored_tensors(tmp_path)).shapes) == {"a": (2,)}


def test_the_dtype_of_a_tensor_is_that_of_the_file(tmp_path):
    name = HUGGING_FACE_NAMES.embedding
    save_file({name: torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    given = ModelConfig({"torch_dtype": "float16"})
    assert completed_by_weights(
        ModelConfig({}), ModelFiles("directory", tmp_path, "tiny")
    ).values == {"dtype": "bfloat16"}
    assert completed_by_weights(given, ModelFiles("directory", tmp_path, "tiny")) == given
    save_file({"b": torch.ones(2)}, tmp_path / "model.safetensors")
    assert (
        completed_by_weights(ModelConfig({}), ModelFiles("directory", tmp_path, "tiny")).values
        == {}
    )


def test_a_dtype_that_is_not_covered_is_named(tmp_path):
    save_file({"a": torch.ones(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match="a='I8': covered are F64, F32, F16, BF16"):
        SafetensorsCheckpoint(stored_tensors(tmp_path)).read(Part("a", (4,)), torch.empty(4))


def test_a_directory_without_tensors_or_with_several_files_is_refused(tmp_path):
    with refused("holds 0 .safetensors files"):
        SafetensorsCheckpoint(stored_tensors(tmp_path))
    for name in ("a", "b"):
        save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with refused("holds 2 .safetensors files; model.safetensors or model.safetensors.index.json"):
        SafetensorsCheckpoint(stored_tensors(tmp_path))


def test_beside_model_safetensors_others_are_not_read(tmp_path):
    for name in ("consolidated", "model"):
        save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    assert dict(SafetensorsCheckpoint(stored_tensors(tmp_path)).shapes) == {"model": (1,)}


def test_model_safetensors_comes_before_an_index_of_an_earlier_save(tmp_path, caplog):
    save_file({"new": torch.ones(1)}, tmp_path / SINGLE_FILE)
    index = {"weight_map": {"old": "model-00001-of-00001.safetensors"}}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    assert list(stored_tensors(tmp_path)) == ["new"]
    assert caplog.messages == []
    save_file({"old": torch.ones(1)}, tmp_path / "model-00001-of-00001.safetensors")
    assert list(stored_tensors(tmp_path)) == ["new"]
    [told] = caplog.messages
    assert f"{SINGLE_FILE} is read, and not the 1 files of {INDEX_FILE}" in told


def test_gguf_files_beside_safetensors_are_told(tmp_path, caplog):
    caplog.set_level("INFO", "pagoda")
    save_file({"model": torch.ones(1)}, tmp_path / SINGLE_FILE)
    assert list(stored_tensors(tmp_path)) == ["model"]
    assert caplog.messages == []
    (tmp_path / "other.gguf").touch()
    assert list(stored_tensors(tmp_path)) == ["model"]
    [told] = caplog.messages
    assert "the safetensors are read, and not other.gguf beside them" in told


def test_all_tensors_of_the_largest_models_are_read_and_no_more(tmp_path):
    """384 experts in 60 layers have 69,120 matrices, and in float8 as many scales."""
    files: dict[str, str] = {}
    for shard in range(10):
        name, first = f"{shard}.safetensors", shard * 28_000
        tensors = {f"t{first + each}": entry("F32", [0], 0, 0) for each in range(28_000)}
        write_raw(tmp_path / name, tensors, 0)
        files[f"t{first}"] = name
        (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": files}))
        if len(files) == 5:
            assert len(stored_tensors(tmp_path)) == 140_000
    with refused(f"=280000: at most {MOST_TENSORS:,} tensors in all"):
        stored_tensors(tmp_path)


def test_a_file_that_the_index_names_must_be_there(tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"], max_shard_size="100KB", tokenizer=False)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with refused(f"lacks {shard.name}, which its index names"):
        SafetensorsCheckpoint(stored_tensors(tmp_path))


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}])
def test_an_index_without_a_map_is_refused(weight_map, tmp_path):
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    with refused(f"{INDEX_FILE} weight_map="):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "x"])
def test_an_index_names_files_of_its_own_directory(name, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "outside.safetensors")
    (inside / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    with refused(f"weight_map={name!r}: must be a .safetensors file in the same directory"):
        stored_tensors(inside)


def test_a_file_may_be_a_link_as_in_the_cache_of_the_hub(tmp_path):
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "blob")
    (snapshot / "a.safetensors").symlink_to("../blob")
    (snapshot / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "a.safetensors"}}))
    assert list(stored_tensors(snapshot)) == ["a"]


def test_a_tensor_is_in_one_file_alone(tmp_path):
    for name in ("a", "b"):
        save_file({"t": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    names = {"t": "a.safetensors", "u": "b.safetensors"}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": names}))
    with refused("b.safetensors t='t': another file holds it too"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_a_directory_of_pickles_says_how_to_convert_them(name, tmp_path):
    (tmp_path / name).touch()
    with refused(f"{name} is PyTorch's own form, which can run code when it is read. Convert it"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("share", [0.0001, 0.02, 0.5, 0.999])
@pytest.mark.parametrize("max_shard_size", ["1GB", "100KB"])
def test_a_truncated_file_is_refused_by_name(share, max_shard_size, tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"], max_shard_size=max_shard_size, tokenizer=False)
    path = sorted(tmp_path.glob("*.safetensors"))[-1]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    files = locate(str(tmp_path))
    spec = load_spec(files)
    with refused(f"{path.name}="):
        load_weights(files, spec, "float32")


@pytest.mark.parametrize("padding", range(8))
def test_tensors_may_begin_at_any_byte(padding, tmp_path):
    values = torch.arange(6, dtype=torch.float32)
    text = json.dumps({"a": entry("F32", [3, 2], 0, 24)}).encode() + b" " * padding
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + values.numpy().tobytes())
    target = torch.empty(3, 2)
    SafetensorsCheckpoint(stored_tensors(tmp_path)).read(Part("a", tuple(target.shape)), target)
    assert torch.equal(target.flatten(), values)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with refused("the file is empty"):
        SafetensorsCheckpoint(stored_tensors(tmp_path))


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ([1], "model.safetensors header=[1]: must be an object"),
        ({"a": {"dtype": "F32"}}, "is no valid header entry"),
        ({"a": 1}, "is no valid header entry"),
        ({"a": entry("F32", [2, 2], 0, 15)}, "its bytes do not match dtype and shape"),
        ({"a": entry("F32", [-2, -2], 0, 16)}, "is no valid header entry"),
        ({"a": entry("F32", [2, 2], -4, 12)}, "is no valid header entry"),
        ({"a": entry("F32", ["2", 2], 0, 16)}, "is no valid header entry"),
        ({"a": entry("F32", [2.0, 2.0], 0, 16)}, "is no valid header entry"),
        ({"a": entry("F33", [2, 2], 0, 16)}, "a dtype='F33': covered are"),
        ({"a\n": entry("F32", [2, 2], 0, 16)}, "must consist of characters that can be printed"),
        ({"a": entry("F32", [2, 2], 16, 32)}, "a='byte 16': must begin where the tensor before it"),
        ({"a": entry("F32", [2, 3], 0, 24)}, "is truncated: its header promises"),
        ({"a": entry("F32", [2], 0, 8)}, "goes on behind its last tensor"),
    ],
)
def test_a_damaged_header_is_refused(header, match, tmp_path):
    with refused(match):
        SafetensorsCheckpoint(stored_tensors(write_raw(tmp_path / "model.safetensors", header, 16)))


def test_a_header_that_is_not_json_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 4) + b"{{{{" + bytes(16))
    with refused("model.safetensors header='28 bytes': is not valid JSON"):
        SafetensorsCheckpoint(stored_tensors(tmp_path))


M, E = torch.arange(36 * 11).view(36, 11).float(), torch.arange(3 * 7 * 12).view(3, 7, 12).float()
PARTS = {
    "whole": (Part("m", (36, 11)), M),
    "every other row": (Part("m", (17, 11), None, 1, (36, 11), step=2), M[1:35:2]),
    "rows of heads": (
        Part("m", (4, 3, 11), whole=(36, 11), taken=HeadRows(9, 2, 3)),
        M.view(4, 9, 11)[:, 2:5],
    ),
    "rotated heads": (
        Part("m", (18, 11), RotatedHeads(9, 8), 9, (36, 11)),
        M[9:27].view(2, 9, 11)[:, [0, 2, 4, 6, 1, 3, 5, 7, 8]].flatten(0, 1),
    ),
    "turned": (Part("e", (5, 7), None, 12 + 1, (3, 7, 12), step=2, is_turned=True), E[1].T[1:10:2]),
    "numbers": (Part("v", (5,), None, 2, (11,), step=2), M[0, 2:11:2]),
}


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_a_part_is_read_and_its_pages_given_back(kind, chunk_bytes, tmp_path, monkeypatch):
    """In chunks of any size, and of the pages those alone in which its rows lie."""
    monkeypatch.setattr(checkpoint, "_CHUNK_BYTES", chunk_bytes)
    spans: list[tuple[int, int]] = []
    monkeypatch.setattr(checkpoint, "release_pages", lambda _, *span: spans.append(span))
    save_file({"m": M, "e": E, "v": M[0].clone()}, tmp_path / "model.safetensors")
    part, expected = PARTS[kind]
    tensor = stored_tensors(tmp_path)[part.name]
    source, target = SafetensorsCheckpoint({part.name: tensor}), torch.empty(part.shape)
    source.read(part, target)
    assert torch.equal(target, expected)
    places = expected.flatten().to(torch.int64)
    low, end = tensor.start + 4 * int(places.min()), tensor.start + 4 * int(places.max()) + 4
    if part.is_turned:
        low, end = tensor.start + 4 * 84, tensor.start + 8 * 84
    assert (spans[0][0], max(map(sum, spans))) == (low, end)
    if (rows := source.stored(part)) is not None:
        spans.clear()
        rows.release()
        assert spans == [(low, end - low)]
        assert rows.nbytes == 4 * expected.numel()
        assert torch.equal(
            torch.from_numpy(rows.blocks(0, len(expected))).view(torch.float32), expected
        )
