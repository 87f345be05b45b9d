"""GGUF files: metadata, tensors of every quantisation, damage."""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import CASES, build_model
from gguf_files import GGML, quantisable, stored_tensors, write_gguf
from hostile_files import array, entry, header, string, tensor
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models import gguf_checkpoint
from pagoda.models.gguf import GGUFFile
from pagoda.models.gguf_checkpoint import GGUFCheckpoint
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.mapped import map_file
from pagoda.models.part import Part
from pagoda.models.tokenizer import Tokenizer
from pagoda.planning.gguf_fields import read_gguf

CASE = quantisable(CASES["llama-gqa"])
FAMILIES = ["llama-gqa", "llama-attention-bias", "llama-tied", "qwen2", "qwen3-bias", "smollm3"]


def refused(match: str):
    return pytest.raises(ModelError, match=re.escape(match))


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", build_model(CASE))


def test_metadata_and_tensors_are_read_as_the_official_reader_does(path):
    own, official = GGUFFile(path), gguf.GGUFReader(path)
    fields = {
        name: field.contents()
        for name, field in official.fields.items()
        if not name.startswith("GGUF.")
    }
    assert dict(own.metadata) == fields
    assert set(own.tensors) == {stored.name for stored in official.tensors}
    for stored in official.tensors:
        found = own.tensors[stored.name]
        assert found.shape == tuple(stored.shape.tolist())[::-1]
        assert found.type == stored.tensor_type
        assert found.offset == stored.data_offset
        assert found.size_bytes == stored.n_bytes


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_loads_to_the_weights_it_was_made_of(name, tmp_path):
    model = build_model(CASES[name])
    model.save_pretrained(tmp_path)
    files = locate(str(write_gguf(tmp_path / "tiny.gguf", model)))
    spec, reference = load_spec(files), locate(str(tmp_path))
    weights = load_weights(files, spec, "float32")
    expected = load_weights(reference, load_spec(reference), "float32")
    assert spec.layers == load_spec(reference).layers
    assert spec.tie_word_embeddings == (weights.lm_head is weights.embedding)
    assert torch.equal(weights.embedding, expected.embedding)
    assert torch.equal(weights.lm_head, expected.lm_head)
    assert torch.equal(weights.final_norm, expected.final_norm)
    for own, other in zip(weights.layers, expected.layers, strict=True):
        for field in own.__dataclass_fields__:
            left, right = getattr(own, field), getattr(other, field)
            assert (left is None) == (right is None)
            assert left is None or torch.equal(left, right)


QUANTISATIONS = [GGML.F16, GGML.BF16, GGML.Q4_0, GGML.Q4_1, GGML.Q5_0, GGML.Q5_1, GGML.Q8_0]


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
@pytest.mark.parametrize("chunk_values", [64, 1000, 1 << 20])
def test_every_quantisation_is_undone_in_chunks_of_any_size(
    quantisation, chunk_values, tmp_path, monkeypatch
):
    monkeypatch.setattr(gguf_checkpoint, "_CHUNK_VALUES", chunk_values)
    model = build_model(replace(CASE, config={**CASE.config, "num_hidden_layers": 2}))
    files = locate(str(write_gguf(tmp_path / "q.gguf", model, quantisation=quantisation)))
    weights = load_weights(files, load_spec(files), "float32")
    state = model.state_dict()
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        expected = {
            "qkv": [f"self_attn.{name}_proj" for name in "qkv"],
            "o": ["self_attn.o_proj"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }
        for field, modules in expected.items():
            # a row is quantised by itself, so the order of rows does not matter
            rows = [roundtrip(state[f"{prefix}{name}.weight"], quantisation) for name in modules]
            assert torch.equal(getattr(layer, field), torch.cat(rows))
    assert torch.equal(
        weights.embedding, roundtrip(state["model.embed_tokens.weight"], quantisation)
    )


def roundtrip(weight: torch.Tensor, quantisation: gguf.GGMLQuantizationType) -> torch.Tensor:
    """What is left of a weight that was quantised."""
    stored = gguf.quants.quantize(weight.numpy(), quantisation)
    return torch.from_numpy(gguf.quants.dequantize(stored, quantisation).copy())


@pytest.mark.parametrize(
    ("quantisation", "dtype"),
    [
        (GGML.F32, "float32"),
        (GGML.F16, "float16"),
        (GGML.BF16, "bfloat16"),
        (GGML.Q4_1, "bfloat16"),
    ],
)
def test_the_dtype_is_that_of_the_matrices_or_bfloat16(quantisation, dtype, tmp_path):
    path = write_gguf(tmp_path / "q.gguf", build_model(CASE), quantisation=quantisation)
    assert load_spec(locate(str(path))).dtype == dtype


def test_a_quantisation_that_cannot_be_undone_is_named(tmp_path):
    path = tmp_path / "q.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a", np.zeros((2, 40), dtype=np.uint8), raw_dtype=GGML.Q8_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = GGUFCheckpoint(GGUFFile(path))
    with pytest.raises(UnsupportedModelError, match="a='Q8_1': this quantisation is not covered"):
        source.read(Part("a", (2, 32)), torch.empty(2, 32))


WHOLE = "whole numbers are no weights: floats and quantised types are covered"
QUANTISED = "this quantisation is not covered"


@pytest.mark.parametrize(
    ("kind", "row_bytes", "limit"),
    [
        ("Q1_0", 18, QUANTISED),
        ("Q8_1", 160, QUANTISED),
        ("I8", 128, WHOLE),
        ("I16", 256, WHOLE),
        ("I32", 512, WHOLE),
        ("I64", 1024, WHOLE),
    ],
)
def test_a_type_that_is_not_read_is_told_by_the_header_alone(kind, row_bytes, limit, tmp_path):
    name = "blk.1.ffn_down.weight"
    blocks = {name: (kind, np.zeros((64, row_bytes), np.uint8))}
    files = locate(str(write_gguf(tmp_path / "q.gguf", build_model(CASE), blocks=blocks)))
    with pytest.raises(UnsupportedModelError) as refused:
        load_spec(files)
    assert str(refused.value) == f"{name}={kind!r}: {limit}"
    assert str(read_gguf(files.gguf).refused_by_pagoda) == str(refused.value)


def test_numbers_of_float64_are_read(path, tmp_path):
    model = build_model(CASE)
    wide = {name: ("F64", each.astype(np.float64)) for name, each in stored_tensors(model).items()}
    files = locate(str(write_gguf(tmp_path / "wide.gguf", model, blocks=wide)))
    assert {tensor.type for tensor in files.gguf.tensors.values()} == {GGML.F64}
    plain, spec = locate(str(path)), load_spec(files)
    assert spec == load_spec(plain)
    for dtype in ("float32", "bfloat16"):
        weights = load_weights(files, spec, dtype)
        expected = load_weights(plain, spec, dtype)
        assert torch.equal(weights.embedding, expected.embedding)
        assert torch.equal(weights.final_norm, expected.final_norm)
        for own, other in zip(weights.layers, expected.layers, strict=True):
            pairs = zip(own.tensors(), other.tensors(), strict=True)
            assert all(torch.equal(left, right) for left, right in pairs)


def test_a_number_of_float64_that_is_too_large_is_refused(tmp_path):
    name = "blk.1.ffn_down.weight"
    blocks = {name: ("F64", np.full((64, 128), 1e300))}
    files = locate(str(write_gguf(tmp_path / "q.gguf", build_model(CASE), blocks=blocks)))
    with refused(f"{name}=None: its numbers must be finite as float32"):
        load_weights(files, load_spec(files), "float32")


def test_a_file_is_mapped_once_for_config_tokenizer_and_weights(tmp_path, monkeypatch):
    mapped: list[Path] = []

    def counted(path: Path) -> mmap.mmap:
        mapped.append(path)
        return map_file(path)

    monkeypatch.setattr("pagoda.models.gguf.map_file", counted)
    path = write_gguf(tmp_path / "q.gguf", build_model(CASE))
    files = locate(str(path))
    load_weights(files, load_spec(files), "float32")
    Tokenizer(files)
    assert mapped == [path]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "the file is empty"),
        (b"GG", "is truncated: its metadata goes on past byte 2"),
        (b"PK\x03\x04" + bytes(40), "does not start with GGUF"),
        (header(version=1), "tiny.gguf version=1: covered are (2, 3)"),
        (header(num_entries=1 << 60), "number of metadata entries=1152921504606846976: at most"),
        (header(num_tensors=1 << 60), "number of tensors=1152921504606846976: at most 4,096"),
        (header(num_entries=1) + struct.pack("<Q", 1 << 62), "is truncated"),
        (header(num_entries=1) + entry("k", 99, b""), "k is of the unknown type 99"),
        (header(num_entries=1) + array("k", 4, 1 << 61, b""), "at most 1,048,576 numbers"),
        (header(num_entries=1) + array("k", 8, 1 << 61, b""), "at most 800,000 strings"),
        (header(num_entries=1) + array("k", 9, 1, b"") * 9999, "arrays hold no arrays"),
        (header(num_entries=1) + entry(b"\xff", 0, b"\0"), "must be text in UTF-8"),
        (header(num_entries=1) + entry("k\n", 0, b"\0"), "characters that can be printed"),
        (header(num_entries=2) + entry("k", 0, b"\0") * 2, "metadata key='k': is there twice"),
        (header(num_tensors=1) + tensor([32, 2]), "is truncated: tensor t ends at byte"),
        (header(num_tensors=1) + tensor([1 << 40, 1 << 40]), "is truncated: tensor t ends"),
        (header(num_tensors=1) + tensor([33, 2], 8) + bytes(999), "not whole blocks of Q8_0"),
        (header(num_tensors=1) + tensor([]) + bytes(999), "t='0 dimensions': must have 1 to 4"),
        (header(num_tensors=1) + tensor([8] * 5) + bytes(999), "t='5 dimensions'"),
        (header(num_tensors=1) + tensor([8, 0]) + bytes(999), "must hold numbers in every"),
        (header(num_tensors=1) + tensor([32, 2], 999) + bytes(999), "t type=999"),
        (header(num_tensors=1) + tensor([8], offset=4) + bytes(999), "must be a multiple of"),
        (header(num_tensors=2) + tensor([8]) * 2 + bytes(999), "tensor='t': is there twice"),
        (
            header(num_tensors=2) + tensor([16]) + tensor([8], offset=32, name="u") + bytes(999),
            "overlaps with t, which ends at byte",
        ),
        (
            header(1, 1) + entry("general.alignment", 4, struct.pack("<I", 48)) + tensor([8]),
            "general.alignment=48: must be a power of two",
        ),
    ],
)
def test_a_damaged_file_is_refused(data, match, tmp_path):
    damaged = tmp_path / "tiny.gguf"
    damaged.write_bytes(data)
    with refused(match):
        GGUFFile(damaged)


def test_values_are_decoded_when_they_are_looked_up(tmp_path):
    found = tmp_path / "tiny.gguf"
    text = entry("broken", 8, string(b"\xff")) + entry("sound", 8, string("text"))
    found.write_bytes(header(num_entries=2) + text)
    metadata = GGUFFile(found).metadata
    assert list(metadata) == ["broken", "sound"]
    assert metadata["sound"] == "text"
    with refused("broken=b'\\xff': must be text in UTF-8"):
        metadata["broken"]


@given(st.floats(0, 1, exclude_max=True))
def test_a_file_truncated_anywhere_is_refused_by_name(path, share):
    data = path.read_bytes()
    cut = path.with_name("cut.gguf")
    cut.write_bytes(data[: int(len(data) * share)])
    with refused("cut.gguf"):
        GGUFFile(cut)
