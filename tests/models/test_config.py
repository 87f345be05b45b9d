"""Typed access to a raw config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagoda.errors import ModelError
from pagoda.models.config import ModelConfig, read_directory_config
from pagoda.models.json_file import read_json


def refused(match: str):
    return pytest.raises(ModelError, match=re.escape(match))


@pytest.mark.parametrize("values", [{}, {"size": None}])
def test_a_missing_or_null_field_takes_the_default_or_is_named(values):
    config = ModelConfig(values)
    assert config.integer("size", default=3) == 3
    assert config.optional_integer("size") is None
    assert config.number("size", default=0.5) == 0.5
    assert config.boolean("size", default=True) is True
    assert config.string("size", default="a") == "a"
    assert config.items("size", int, length=2) is None
    assert config.section("size") is None
    for read in (config.integer, config.number, config.string):
        with refused("size=None: the model's config lacks this field"):
            read("size")


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, [1]])
def test_an_integer_is_whole_and_at_least_the_minimum(value):
    with refused(f"size={value!r}: must be a whole number of at least 1"):
        ModelConfig({"size": value}).integer("size")


def test_the_minimum_of_an_integer_may_be_lower():
    assert ModelConfig({"size": 0}).integer("size", minimum=0) == 0


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_a_number_is_finite_and_above_the_minimum(value):
    with refused("eps="):
        ModelConfig({"eps": value}).number("eps")


def test_a_number_may_be_written_as_an_integer():
    value = ModelConfig({"theta": 10000}).number("theta")
    assert value == 10000.0
    assert type(value) is float


@pytest.mark.parametrize("value", [0, "true", []])
def test_a_boolean_is_true_or_false(value):
    with refused("bias="):
        ModelConfig({"bias": value}).boolean("bias", default=False)


@pytest.mark.parametrize("value", [1, "", ["a"]])
def test_a_string_is_not_empty(value):
    with refused("kind="):
        ModelConfig({"kind": value}).string("kind")


def test_items_are_cut_to_the_layers_and_may_not_be_too_few():
    config = ModelConfig({"flags": [1, 0, 1]})
    assert config.items("flags", int, length=2) == (1, 0)
    with refused("flags=[1, 0, 1]: must have at least 4 items"):
        config.items("flags", int, length=4)


def test_a_pair_is_two_sizes() -> None:
    assert ModelConfig({"block": [128, 64]}).pair("block") == (128, 64)
    assert ModelConfig({"block": None}).pair("block") is None


@pytest.mark.parametrize(
    "value", [[128], [1, 2, 3], [128, 0], [True, 1], [1.0, 1], "11", 2, {"0": 1}, [1, 2**51]]
)
def test_what_is_no_pair_of_sizes_is_refused(value: object) -> None:
    with refused("block="):
        ModelConfig({"block": value}).pair("block")


@pytest.mark.parametrize("value", ["101", [1, "0"], [True], {"0": 1}])
def test_items_are_of_one_kind(value):
    with refused("must be a list of int"):
        ModelConfig({"flags": value}).items("flags", int, length=1)


def test_a_section_carries_its_name_into_errors():
    section = ModelConfig({"rope": {"factor": "two"}}).section("rope")
    assert section is not None
    with refused("rope.factor='two'"):
        section.number("factor")
    with refused("rope='yarn'"):
        ModelConfig({"rope": "yarn"}).section("rope")
    assert ModelConfig({"rope": {}}).section("rope") is None


def test_json_that_cannot_be_read_is_refused_by_the_files_name(tmp_path: Path):
    with refused("no.json="):
        read_json(tmp_path / "no.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"hidden_size": 64,')
    with refused("broken.json="):
        read_json(broken)
    listed = tmp_path / "listed.json"
    listed.write_text("[1]")
    with refused("listed.json=[1]: must be an object"):
        read_json(listed)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with refused("binary.json="):
        read_json(binary)


def test_a_directory_without_a_config_is_refused(tmp_path: Path):
    with refused("the directory holds no config.json"):
        read_directory_config(tmp_path)
    (tmp_path / "tiny.gguf").touch()
    with refused("holds no config.json; name the file itself: tiny.gguf"):
        read_directory_config(tmp_path)
