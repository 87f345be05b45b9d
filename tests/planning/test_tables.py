"""The planner's tables of facts: whole, and agreeing with arithmetic that is not the planner's."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import Any

import pytest

from parameter_count import experts_at_rest, kv_bytes_per_token, parameters, text_config
from parameter_parts import experts
from tower_count import tower_parameters

TABLES = resources.files("pagoda.planning") / "tables"
MODELS: Mapping[str, Any] = json.loads((TABLES / "models.json").read_text())
ACCELERATORS: Mapping[str, Any] = json.loads((TABLES / "accelerators.json").read_text())
MODEL_FIELDS = {
    "source",
    "confidence",
    "released",
    "parameters",
    "active_parameters",
    "weights_bytes",
    "config",
}
MODEL_EXTRAS = {"recalled_fields", "aliases"}
ACCELERATOR_FIELDS = {
    "source",
    "vendor",
    "capability",
    "memory_gib",
    "catalogue_gb",
    "bandwidth_gb_s",
    "bf16_tflops",
    "fp8_tflops",
    "memory_confidence",
    "aliases",
}
WITH_EXPERTS = sorted(k for k, row in MODELS.items() if experts(text_config(row["config"])).count)
MIXED = sorted(k for k, row in MODELS.items() if row["weights_bytes"] is not None)
TOWERS_NOT_COUNTED = {
    "google/gemma-3n-E2B-it": 983_281_504,
    "google/gemma-3n-E4B-it": 983_281_504,
    "google/gemma-4-E2B-it": 304_824_608,
    "google/gemma-4-E4B-it": 304_824_608,
}
"""The towers that `tower_parameters` does not know, Gemma 3n's both and the audio tower of Gemma 4:
two models of different text have the same ones, which one count cannot fake."""


def plain(name: str) -> str:
    """A name as it is looked up."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def has_field(row: Mapping[str, Any], path: str) -> bool:
    """Whether a dotted path names a field of the row or of its config."""
    value = row if path in row else row["config"]
    for name in path.split("."):
        if name not in value:
            return False
        value = value[name]
    return True


def uncounted(name: str) -> int:
    """What a checkpoint has beyond the text model and the towers that are counted here."""
    config = MODELS[name]["config"]
    audio = config.get("audio_config")
    if audio is None:
        return TOWERS_NOT_COUNTED.get(name, 0)
    text = config["text_config"]
    projection = audio["output_proj_dims"] * text["hidden_size"]
    scale_of_every_layer = text["num_hidden_layers"]
    return TOWERS_NOT_COUNTED[name] + projection + scale_of_every_layer


def test_the_tables_cover_what_people_ask_for() -> None:
    assert len(MODELS) >= 65
    assert len(ACCELERATORS) >= 28
    asked = {"H100", "H200", "B200", "A100", "L40S", "L4", "RTX 3090", "RTX 5090", "MI300X", "CPU"}
    names = {plain(n) for key, row in ACCELERATORS.items() for n in (key, *row["aliases"])}
    assert {plain(name) for name in asked} <= names


def test_a_model_row_is_whole() -> None:
    for name, row in MODELS.items():
        assert set(row) - MODEL_EXTRAS == MODEL_FIELDS, name
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", name), name
        assert row["source"].strip(), name
        assert row["confidence"] in {"read", "recalled"}, name
        assert re.fullmatch(r"20[12]\d-(0[1-9]|1[0-2])", row["released"]), name
        assert 0 < row["active_parameters"] <= row["parameters"], name
        recalled = row.get("recalled_fields", [])
        assert [path for path in recalled if not has_field(row, path)] == [], name
        assert row["config"]["architectures"][0].isidentifier(), name


def test_a_config_says_what_every_layer_is() -> None:
    for name in MODELS:
        c = text_config(MODELS[name]["config"])
        layers = c["num_hidden_layers"]
        per_layer = [c[key] for key in ("layer_types", "hybrid_override_pattern") if key in c]
        assert [len(kinds) for kinds in per_layer if len(kinds) != layers] == [], name
        assert len(c["family"].mixers(c)) == layers, name
        assert len(c["family"].feed_forwards(c)) == layers, name
        heads = c.get("num_attention_heads", 1)
        assert heads % c.get("num_key_value_heads", 1) == 0, name


def test_the_parameters_follow_from_the_config() -> None:
    """To the last one: a wrong width, depth, number of heads or tied head cannot hide."""
    for name, row in MODELS.items():
        counted = parameters(row["config"]) + tower_parameters(row["config"])
        assert counted + uncounted(name) == row["parameters"], name


def test_a_token_visits_all_but_the_experts_not_chosen() -> None:
    for name in WITH_EXPERTS:
        row = MODELS[name]
        assert row["active_parameters"] == row["parameters"] - experts_at_rest(row["config"]), name


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 12.9),
        ("Qwen/Qwen3-30B-A3B", 3.3),
        ("Qwen/Qwen3-235B-A22B", 22.2),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 35.5),
        ("ai21labs/AI21-Jamba-Mini-1.6", 12.1),
        ("ai21labs/AI21-Jamba-Large-1.6", 94.1),
        ("MiniMaxAI/MiniMax-M1-80k", 48.4),
    ],
)
def test_the_active_parameters_are_those_that_publishers_state(name: str, billions: float) -> None:
    """Some count neither embeddings nor the head; here are the ones that count all."""
    assert MODELS[name]["active_parameters"] == pytest.approx(billions * 1e9, rel=0.02)


BITS_OF_QUANTISED = {"mxfp4": 4 + 8 / 32, "fp8": 8 + 32 / 128**2, "compressed-tensors": 4 + 16 / 32}
"""Bits of a value with its share of a scale, which 32, 128 × 128 or 32 values have together."""


def test_mixed_weights_lie_between_their_kinds() -> None:
    """The routed experts are quantised, not their biases; FP8 checkpoints quantise more."""
    for name in MIXED:
        row = MODELS[name]
        method = row["config"]["quantization_config"]["quant_method"]
        quantised = BITS_OF_QUANTISED[method] / 8
        chosen = experts(text_config(row["config"]))
        routed = experts_at_rest(row["config"]) * chosen.count / (chosen.count - chosen.chosen)
        most = routed * quantised + (row["parameters"] - routed) * 2
        least = row["parameters"] * quantised
        assert least < row["weights_bytes"] < 1.001 * most, name


def test_only_quantised_checkpoints_have_weights_of_mixed_kinds() -> None:
    quantised = {k for k, row in MODELS.items() if "quantization_config" in row["config"]}
    assert set(MIXED) == quantised


def test_published_sizes_of_mixed_checkpoints() -> None:
    """The totals in the checkpoints' own indexes."""
    assert MODELS["openai/gpt-oss-20b"]["weights_bytes"] == 13_761_264_768
    assert MODELS["moonshotai/Kimi-K2-Thinking"]["weights_bytes"] == pytest.approx(594e9, rel=0.005)


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("meta-llama/Llama-2-7b-hf", 512),
        ("meta-llama/Llama-2-70b-hf", 320),
        ("meta-llama/Llama-3.1-8B-Instruct", 128),
        ("meta-llama/Llama-3.1-405B-Instruct", 504),
        ("Qwen/Qwen2.5-0.5B-Instruct", 12),
        ("Qwen/Qwen2-7B-Instruct", 56),
        ("Qwen/Qwen3-8B", 144),
        ("mistralai/Mistral-7B-Instruct-v0.3", 128),
        ("tiiuae/falcon-7b", 8),
        ("facebook/opt-13b", 800),
        ("microsoft/Phi-3-mini-4k-instruct", 384),
    ],
)
def test_well_known_bytes_of_a_token(name: str, kib: int) -> None:
    """OPT-13B's 800 KB is the vLLM paper's example, arXiv:2309.06180 section 3."""
    assert kv_bytes_per_token(MODELS[name]["config"]) == kib * 1024


def test_names_of_models_are_told_apart() -> None:
    names = Counter(
        n.lower() for key, row in MODELS.items() for n in (key, *row.get("aliases", []))
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_an_accelerator_row_is_whole() -> None:
    for name, row in ACCELERATORS.items():
        assert set(row) - {"recalled_fields", "has_one_memory"} == ACCELERATOR_FIELDS, name
        assert row["source"].startswith("memory: "), name
        assert "; rates: " in row["source"], name
        assert row["vendor"] in {"nvidia", "amd", "intel", "apple", "cpu"}, name
        assert (row["capability"] is None) == (row["vendor"] != "nvidia"), name
        assert row["memory_confidence"] in {"read", "derived"}, name
        assert set(row.get("recalled_fields", [])) <= ACCELERATOR_FIELDS, name


def test_an_accelerator_is_possible() -> None:
    """A driver shows no more than is built in, and only shared memory much less."""
    for name, row in ACCELERATORS.items():
        assert row["memory_gib"] <= row["catalogue_gb"], name
        shared = row["vendor"] == "apple" or name == "STRIX-HALO"
        assert row["memory_gib"] >= row["catalogue_gb"] * (0.7 if shared else 0.9), name
        assert 50 < row["bandwidth_gb_s"] <= 8000, name
        assert row["bf16_tflops"] > 0, name
        assert row["fp8_tflops"] is None or row["fp8_tflops"] >= row["bf16_tflops"], name


def test_names_of_accelerators_are_told_apart() -> None:
    owners: dict[str, set[str]] = {}
    for key, row in ACCELERATORS.items():
        for name in (key, *row["aliases"]):
            owners.setdefault(plain(name), set()).add(key)
    assert {name: keys for name, keys in owners.items() if len(keys) > 1} == {}


def test_a_newer_device_of_a_line_is_no_slower() -> None:
    for line in (
        ["V100-32GB", "A100-40GB", "A100-80GB", "H100", "H200", "B200", "B300"],
        ["RTX-3090", "RTX-4090", "RTX-5090"],
        ["MI210", "MI300X", "MI325X", "MI355X"],
    ):
        bandwidths = [ACCELERATORS[name]["bandwidth_gb_s"] for name in line]
        assert bandwidths == sorted(bandwidths)
