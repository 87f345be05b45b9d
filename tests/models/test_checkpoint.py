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
from pagoda.models.directory_config import read_config_beside_weights
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.stored_tensors import INDEX_FILE


def refused(match: str):
    return pytest.raises(ModelError, match=re.escape(match))


def write_raw(path: Path, header: Any, size_bytes: int) -> Path:
    """A safetensors file with any header and so many bytes after it."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size_bytes))
    return path.parent


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
    source = SafetensorsCheckpoint(tmp_path)
    assert dict(source.shapes) == {"matrix": (37, 11), "vector": (13,)}
    for name, tensor in tensors.items():
        target = torch.empty(tensor.shape, dtype=torch.float32)
        source.read(name, target)
        assert torch.equal(target, tensor.to(torch.float32))
        rotary = torch.empty_like(target)
        source.read_rotary(name, rotary, head_dim=2)
        assert torch.equal(rotary, target)


def test_the_only_file_may_have_any_name(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "weights.safetensors")
    assert dict(SafetensorsCheckpoint(tmp_path).shapes) == {"a": (2,)}


def test_the_dtype_of_a_tensor_is_that_of_the_file(tmp_path):
    name = HUGGING_FACE_NAMES.embedding
    save_file({name: torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert read_config_beside_weights(tmp_path).values == {"dtype": "bfloat16"}
    config.write_text('{"torch_dtype": "float16"}')
    assert read_config_beside_weights(tmp_path).values == {"torch_dtype": "float16"}
    save_file({"b": torch.ones(2)}, tmp_path / "model.safetensors")
    config.write_text("{}")
    assert read_config_beside_weights(tmp_path).values == {}


def test_a_dtype_that_is_not_covered_is_named(tmp_path):
    save_file({"a": torch.ones(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match="a='I8': covered are F64, F32, F16, BF16"):
        SafetensorsCheckpoint(tmp_path).read("a", torch.empty(4))


def test_a_directory_without_tensors_or_with_several_files_is_refused(tmp_path):
    with refused("holds 0 .safetensors files"):
        SafetensorsCheckpoint(tmp_path)
    for name in ("a", "b"):
        save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with refused("holds 2 .safetensors files; model.safetensors or model.safetensors.index.json"):
        SafetensorsCheckpoint(tmp_path)


def test_beside_model_safetensors_others_are_not_read(tmp_path):
    for name in ("consolidated", "model"):
        save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    assert dict(SafetensorsCheckpoint(tmp_path).shapes) == {"model": (1,)}


def test_a_file_that_the_index_names_must_be_there(tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"], max_shard_size="100KB", tokenizer=False)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with refused(f"lacks {shard.name}, which its index names"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}])
def test_an_index_without_a_map_is_refused(weight_map, tmp_path):
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    with refused(f"{INDEX_FILE} weight_map="):
        SafetensorsCheckpoint(tmp_path)


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
    SafetensorsCheckpoint(tmp_path).read("a", target)
    assert torch.equal(target.flatten(), values)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with refused("the file is empty"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ([1], "its header is damaged: not an object"),
        ({"a": {"dtype": "F32"}}, "is no valid header entry"),
        ({"a": 1}, "is no valid header entry"),
        ({"a": entry("F32", [2, 2], 0, 15)}, "its bytes do not match dtype and shape"),
        ({"a": entry("F32", [-2, 2], 0, 16)}, "its bytes do not match dtype and shape"),
        ({"a": entry("F32", [2, 2], -4, 12)}, "its bytes do not match dtype and shape"),
        ({"a": entry("F32", ["2", 2], 0, 16)}, "is no valid header entry"),
        ({"a": entry("F32", [2, 2], 16, 32)}, "is truncated: its header promises"),
    ],
)
def test_a_damaged_header_is_refused(header, match, tmp_path):
    with refused(match):
        SafetensorsCheckpoint(write_raw(tmp_path / "model.safetensors", header, 16))


def test_a_header_that_is_not_json_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 4) + b"{{{{" + bytes(16))
    with refused("its header is damaged: not valid JSON"):
        SafetensorsCheckpoint(tmp_path)
