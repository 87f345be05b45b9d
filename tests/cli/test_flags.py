"""Every option of the engine is a flag of every command, with the engine's own default."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from limit_values import another
from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.flags import JSON_NAMES, JSON_OBJECT, WHOLE, Flag, Kind
from pagoda.cli.main import run
from pagoda.cli.sampling_flags import SAMPLING_FLAGS
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.request import SamplingParams
from server.fake_engine import FakeEngine

GIVEN = {
    "model": "some/model",
    "revision": "v1.0",
    "device": "cpu",
    "dtype": "float32",
    "quantization": "none",
    "activation_dtype": "int8",
    "kv_cache_dtype": "float32",
    "kv_cache_dtype_skip_layers": ("0", "2-3", "sliding_window"),
    "max_model_len": 128,
    "block_size": 16,
    "kv_cache_memory_bytes": 2 * 2**30,
    "gpu_memory_utilization": 0.5,
    "num_gpu_blocks_override": 77,
    "enable_prefix_caching": False,
    "kv_retention": "window:64",
    "request_kv_retention": True,
    "eviction_policy": "slru",
    "special_tokens_in_chats": True,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 3,
    "scheduling_policy": "priority",
    "long_prefill_token_threshold": 8,
    "seed": 5,
    "threads": 1,
    "kv_tier": ("disk:/data/blocks,size=1GiB", "s3://bucket/blocks"),
    "kv_tier_key_file": "key",
    "kv_offloading_size": 1.5,
    "kv_offloading_backend": "native",
    "enforce_eager": True,
    "cudagraph_capture_sizes": (1, 2, 4),
    "served_model_name": ("mine", "yours"),
}


def arguments_for(values: dict[str, object]) -> list[str]:
    arguments = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            arguments.append(flag.replace("--", "--no-", 1))
        elif name == "kv_cache_memory_bytes":
            arguments += [flag, "2GiB"]
        elif value is True:
            arguments.append(flag)
        elif isinstance(value, tuple):
            first, *others = map(str, value)
            arguments += [flag, first, flag, ",".join(others)]
        else:
            arguments += [flag, str(value)]
    return arguments


def test_every_option_of_the_engine_has_a_flag() -> None:
    """But for quotas, which are for a server with keys and a flag of its own."""
    names = {field.name for field in dataclasses.fields(EngineOptions)} - {"tenant_quotas"}
    assert sorted(flag.name for flag in ENGINE_FLAGS.flags) == sorted(names)
    assert sorted(GIVEN) == sorted(names)


def test_sampling_flags_are_fields_of_sampling_params() -> None:
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    assert {flag.name for flag in SAMPLING_FLAGS.flags} <= names


def test_defaults_are_the_classs_own() -> None:
    values = {parameter.name: parameter.default for parameter in ENGINE_FLAGS.parameters()}
    assert ENGINE_FLAGS.take(values) == EngineOptions()
    assert values == {}
    values = {parameter.name: parameter.default for parameter in SAMPLING_FLAGS.parameters()}
    assert SAMPLING_FLAGS.take(values) == SamplingParams()


@pytest.mark.parametrize(
    "name", [each.name for each in dataclasses.fields(SamplingParams) if "flag" in each.metadata]
)
def test_a_flag_sets_its_field_of_sampling_params(name: str) -> None:
    values = {parameter.name: parameter.default for parameter in SAMPLING_FLAGS.parameters()}
    value = another(name)
    values[name] = value if isinstance(value, bool) else str(value)
    assert getattr(SAMPLING_FLAGS.take(values), name) == value
    [flag] = [flag for flag in SAMPLING_FLAGS.flags if flag.name == name]
    assert flag.help.endswith(".")


def test_flags_become_the_engines_options(engine: FakeEngine) -> None:
    assert run(["generate", "hello", *arguments_for(GIVEN)]) == 0
    assert dataclasses.asdict(engine.options) == GIVEN | {"tenant_quotas": None}


def test_the_parameters_are_what_typer_needs() -> None:
    kinds = {parameter.kind for parameter in ENGINE_FLAGS.parameters()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_a_command_may_say_more_about_a_flag() -> None:
    group = ENGINE_FLAGS.plus(Flag("seed", WHOLE, "Something else."), Flag("n", WHOLE, "New."))
    assert [flag.name for flag in group.flags] == [*(f.name for f in ENGINE_FLAGS.flags), "n"]
    (seed,) = [flag for flag in group.flags if flag.name == "seed"]
    assert seed.help == "Something else."


@pytest.mark.parametrize("kind", [JSON_NAMES, JSON_OBJECT])
def test_json_that_is_nested_too_deeply_is_refused(kind: Kind) -> None:
    with pytest.raises(InvalidOptionError, match="must be a JSON"):
        kind.read("field", "[" * 100_000)


@pytest.mark.parametrize("command", ["serve", "chat", "generate", "bench"])
def test_help_shows_every_flag_in_full(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out
    for name in GIVEN:
        assert "--" + name.replace("_", "-") in text
