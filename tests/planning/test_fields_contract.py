"""One reader of a config: whatever field is missing, the engine, both plans and transformers agree.

Every family × every field taken away or null: from the configs of `CASES` as transformers saves
them, from the rows of the planner's table whose family Pagoda runs, and from GGUF files. A test
fails with the model, the field and both figures.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from asked_fields import Config, Field, each_missing, fields_of, named, nulled, without
from checkpoints import (
    CASES,
    SIZES,
    Case,
    build_model,
    case_config,
    corrections,
    empty_model,
    num_kv_heads,
    write_checkpoint,
)
from family_agreement import transformers_config
from gguf_files import ARCHITECTURES as ARCHITECTURES_IN_GGUF
from gguf_files import stored_tensors, write_gguf
from gguf_model_keys import model_keys
from latent_cases import LATENT_FAMILIES
from pagoda.cache.layers import SlidingWindowLayerSpec
from pagoda.cli.plan_model import find_facts
from pagoda.errors import ModelError, RefusedError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.gguf_architectures import GGUF_ARCHITECTURES
from pagoda.models.load import load_spec
from pagoda.models.locate import locate
from pagoda.models.registry import ARCHITECTURES, decoder_spec
from pagoda.planning.architecture import (
    Architecture,
    read_architecture,
    read_architecture_in_pagoda,
)
from pagoda.planning.plan import make_plan
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.subject import Subject, read_subject
from pagoda.planning.tables import model_rows
from parameter_count import parameters
from tower_count import tower_parameters

Figures = dict[str, Any]

NAMES = {
    family.model_type: name
    for name, family in ARCHITECTURES.items()
    if family.model_type not in LATENT_FAMILIES
}
"""Families that keep heads; latents are kept by each engine in its own way."""


def rows_of(architectures: Collection[str]) -> list[str]:
    """Those of the planner's table."""
    rows = model_rows().items()
    return sorted(name for name, row in rows if row["config"]["architectures"][0] in architectures)


NAMED = rows_of(NAMES.values())
OF_LATENTS = rows_of(ARCHITECTURES.keys() - NAMES.values())
NOT_RUN = {
    "CohereLabs/c4ai-command-r-plus": "use_qk_norm",
    "CohereLabs/c4ai-command-r-plus-08-2024": "use_qk_norm",
    "mistralai/Ministral-3-14B-Reasoning-2512": "text_config.model_type",
    "mistralai/Ministral-3-3B-Reasoning-2512": "text_config.model_type",
}
"""Rows of covered architectures with a feature that is not, and the field that says so."""
ROWS = [name for name in NAMED if name not in NOT_RUN]
NOT_OF_THE_SHAPE = ("max_position_embeddings", "rope_parameters.", "rope_scaling.", "architectures")
"""Fields without which Pagoda's engine refuses a config, and a plan for vLLM asks or goes on."""


def saved(case: str) -> Config:
    """The config of a case as transformers writes it."""
    config = case_config(CASES[case])
    config.architectures = [NAMES[CASES[case].family]]
    values: Config = json.loads(config.to_json_string())
    return {**values, "dtype": "float16"}


def of_decoder(spec: DecoderSpec) -> Figures:
    """What the engine builds its cache and takes its weights by."""
    layers = [layer.attention for layer in spec.layers]
    return {
        "KV heads": [layer.num_kv_heads for layer in layers],
        "head sizes": [layer.head_dim for layer in layers],
        "windows": [layer.sliding_window for layer in layers],
        "query heads": layers[0].num_heads,
        "embedding": spec.vocab_size * spec.hidden_size,
        "tied": spec.tie_word_embeddings,
        "dtype": spec.dtype,
        "longest": spec.max_position_embeddings,
    }


def of_plan(subject: Subject) -> Figures:
    """The same of a plan."""
    layers = subject.model.cached_layers
    vectors = [layer.vectors for layer in layers]
    parts = subject.weights.parameters
    return {
        "KV heads": [kept.num_kv_heads for kept in vectors if kept],
        "head sizes": [kept.head_size for kept in vectors if kept],
        "windows": [
            layer.length if isinstance(layer, SlidingWindowLayerSpec) else None for layer in layers
        ],
        "query heads": subject.model.num_heads,
        "embedding": parts.embedding,
        "tied": parts.head == 0,
        "dtype": subject.model.dtype,
        "longest": subject.made_for,
    }


def by_engine(config: Config) -> Figures:
    try:
        return of_decoder(decoder_spec(ModelConfig(config)))
    except RefusedError as error:
        return {"refused": error.field, "is a feature": isinstance(error, UnsupportedModelError)}


@cache
def request_of(engine: str) -> PlanRequest:
    """A plan for Pagoda says itself how long; one for vLLM is told, for it may have to ask."""
    return PlanRequest(engine=engine, max_model_len=None if engine == "pagoda" else 16)


def by_plan(facts: ModelFacts, engine: str) -> Figures:
    try:
        return of_plan(read_subject(facts, request_of(engine), None))
    except RefusedError as error:
        return {"refused": error.field, "is a feature": isinstance(error, UnsupportedModelError)}


READERS = {"pagoda": read_architecture_in_pagoda, "vllm": read_architecture}


@dataclass
class KnownPlans:
    """Plans of plain weights by what was read of a config, for thousands that are read alike."""

    of: dict[tuple[str, Architecture], Figures] = field(default_factory=dict)

    def __call__(self, facts: ModelFacts, engine: str) -> Figures:
        """As `by_plan`."""
        try:
            model = READERS[engine](facts.config)
        except RefusedError:
            return by_plan(facts, engine)
        if model.decoder is None:  # weights are counted by fields
            return by_plan(facts, engine)
        key = engine, model
        if key not in self.of:
            self.of[key] = by_plan(facts, engine)
        return dict(self.of[key])


def by_transformers(config: Config) -> Figures:
    whole = transformers_config(config)
    own, tied = whole.get_text_config(), whole.tie_word_embeddings
    num_layers = own.num_hidden_layers
    types = getattr(own, "layer_types", None) or [None] * num_layers
    window = getattr(own, "sliding_window", None)
    head_dim = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return {
        "KV heads": [num_kv_heads(own)] * num_layers,
        "head sizes": [head_dim] * num_layers,
        "windows": [None if kind == "full_attention" else window for kind in types],
        "query heads": own.num_attention_heads,
        "embedding": own.vocab_size * own.hidden_size,
        "tied": tied,
    }


def differences(engine: Figures, other: Figures, who: str) -> list[str]:
    """Where the other one says something else than the engine."""
    keys = engine.keys() & other.keys() or {"refused"}
    return [
        f"{key}: engine {engine.get(key, 'runs it')}, {who} {other.get(key, 'takes it')}"
        for key in sorted(keys)
        if engine.get(key) != other.get(key)
    ]


def _own_field(engine: Figures) -> str:
    """What the engine refuses, of the language model; "" where it refuses nothing."""
    return str(engine.get("refused", "")).removeprefix("text_config.")


def disagreements(
    config: Config, plan: Callable[[ModelFacts, str], Figures] = by_plan
) -> list[str]:
    """What the two plans say otherwise than the engine."""
    facts = ModelFacts("any", "here", ModelConfig(config))
    engine = by_engine(config)
    found = differences(engine, plan(facts, "pagoda"), "plan for Pagoda")
    if engine.get("is a feature") or _own_field(engine).startswith(NOT_OF_THE_SHAPE):
        return found
    in_vllm = plan(facts, "vllm")
    for figures in (engine, in_vllm):
        figures.pop("longest", None)
        if "dtype" in figures:  # which vLLM runs in place of float32
            figures["dtype"] = figures["dtype"].replace("float32", "bfloat16")
    return found + differences(engine, in_vllm, "plan for vLLM")


def table_config(name: str) -> Config:
    return dict(model_rows()[name]["config"])


def form_of(value: Any) -> Any:
    """What two configs have alike that differ in numbers alone, or in how many layers they list."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(sorted(set(value)))
    if isinstance(value, dict):
        return tuple(sorted((name, form_of(inner)) for name, inner in value.items()))
    return value if isinstance(value, str | bool) else type(value).__name__


def num_layers(name: str) -> int:
    config = table_config(name)
    return int(config.get("text_config", config)["num_hidden_layers"])


def states_head_size(name: str) -> bool:
    """A head's size is another than that of an even part of the hidden state."""
    config = table_config(name)
    config = config.get("text_config", config)
    head_size, num_heads = config.get("head_dim"), config.get("num_attention_heads")
    return head_size is not None and head_size * num_heads != config["hidden_size"]


_BY_SIZE = sorted(ROWS, key=lambda name: (states_head_size(name), -num_layers(name)))
FORMS = sorted({form_of(table_config(name)): name for name in _BY_SIZE}.values())
"""Of rows that differ in numbers alone, one that states its heads' size, with few layers."""
CONFIGS_READ = [*CASES, *FORMS]


def config_of(name: str) -> Config:
    return saved(name) if name in CASES else table_config(name)


@cache
def without_each(name: str) -> tuple[list[Field], list[str]]:
    """The fields that engine or plans ask for, and what the plans say otherwise without each."""
    config = config_of(name)
    each, _ = each_missing(config, fields_of(config), disagreements)
    found = [f"without {named([field])}: {said}" for field in each for said in each[field]]
    return list(each), found


def test_every_family_is_among_them() -> None:
    assert {CASES[name].family for name in CASES} == set(NAMES)
    assert {table_config(name)["model_type"] for name in ROWS} <= set(NAMES)
    assert len(ROWS) > 45


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_row_with_a_feature_that_is_not_covered_is_planned_for_vllm_alone(name: str) -> None:
    config = table_config(name)
    assert by_engine(config) == {"refused": NOT_RUN[name], "is a feature": True}
    facts = ModelFacts(name, "here", ModelConfig(config))
    assert by_plan(facts, "pagoda") == by_engine(config)
    subject = read_subject(facts, PlanRequest(), None)
    assert subject.model.assumed == ()
    assert subject.weights.parameters.total == pytest.approx(parameters(config), rel=1e-3)


@pytest.mark.parametrize("name", CONFIGS_READ)
def test_engine_and_plans_agree_without_any_field(name: str) -> None:
    config = config_of(name)
    asked, found = without_each(name)
    others = [field for field in fields_of(config) if field not in asked]
    changed = {
        "as it is": config,
        **{f"with a null {named([field])}": nulled(config, field) for field in asked},
        f"without {named(others)}": without(config, *others),
        f"with a null {named(others)}": nulled(config, *others),
    }
    found = found + [f"{how}: {said}" for how in changed for said in disagreements(changed[how])]
    assert found == []


@pytest.mark.parametrize("family", NAMES)
def test_engine_and_plans_agree_without_any_two_fields(family: str) -> None:
    name = [case for case in CASES if CASES[case].family == family][-1]
    config, plan = saved(name), KnownPlans()
    asked, _ = without_each(name)
    found = [
        f"{name} without {named(pair)}: {said}"
        for pair in itertools.combinations(asked, 2)
        for said in disagreements(without(config, *pair), plan)
    ]
    assert found == []


def missing_for_transformers(name: str, config: Config) -> Iterator[tuple[Field, ...]]:
    """Fields to leave out of its config, but for those of positions and the one that names a class.

    Older configs have no `layer_types`, from which the windows follow first: with and without
    them. Other fields of the small models `tests/models/test_registry.py` leaves out.
    """
    text = ("text_config",) if "text_config" in config else ()
    types = (*text, "layer_types")
    asked, _ = without_each(name)
    fields = [
        each for each in fields_of(config) if each != ("model_type",) and len(each) <= len(text) + 1
    ]
    others = tuple(each for each in fields if each not in asked)
    for lacked in ((), others, *((each,) for each in fields if each in asked)):
        if name not in CASES:
            yield lacked
        if types in fields and types not in lacked:
            yield (*lacked, types)


@pytest.mark.parametrize("name", CONFIGS_READ)
def test_the_engine_takes_what_transformers_takes_for_a_field(name: str) -> None:
    config = config_of(name)
    found: list[str] = []
    for lacked in missing_for_transformers(name, config):
        lacking = without(config, *lacked)
        engine = by_engine(lacking)
        if "refused" in engine:
            continue
        try:
            theirs = by_transformers(lacking)
        except ZeroDivisionError:  # EXAONE 4 without windows has to have layer_types there
            continue
        said = f"{name} without {named(lacked)}"
        found += [f"{said}: {each}" for each in differences(engine, theirs, "transformers")]
    assert found == []


@pytest.mark.parametrize("name", CASES)
def test_a_plan_counts_the_weights_of_transformers_model(name: str) -> None:
    config = saved(name)
    model = empty_model(transformers_config(config))
    seeing = ("model.vision_tower.", "model.multi_modal_projector.")
    stored = [*model.named_parameters(), *corrections(model)]
    num_stored = sum(
        weight.numel() for weight_name, weight in stored if not weight_name.startswith(seeing)
    )
    facts = ModelFacts(name, "here", ModelConfig(config))
    for engine in ("pagoda", "vllm"):
        subject = read_subject(facts, request_of(engine), None)
        assert subject.weights.parameters.total == num_stored, engine


@pytest.mark.parametrize("name", OF_LATENTS)
def test_pagodas_plan_counts_the_weights_of_latents_to_the_last_one(name: str) -> None:
    facts = ModelFacts(name, "here", ModelConfig(table_config(name)))
    counted = read_subject(facts, PlanRequest(engine="pagoda"), None).weights.parameters
    assert counted.total == parameters(table_config(name))


@pytest.mark.parametrize("name", ROWS)
def test_a_plan_counts_the_weights_of_the_table(name: str) -> None:
    """To the last one, though nobody told it the sum; and all else is the engine's."""
    config = table_config(name)
    assert disagreements(config) == []
    facts = ModelFacts(name, "here", ModelConfig(config))
    for engine in ("pagoda", "vllm"):
        counted = read_subject(facts, request_of(engine), None).weights.parameters
        assert counted.total == parameters(config)
        assert counted.total + tower_parameters(config) == model_rows()[name]["parameters"]


# What was different before there was one reader.


@pytest.mark.parametrize(("family", "kv_heads"), [("mistral", 8), ("smollm3", 4), ("qwen2", 32)])
@pytest.mark.parametrize("engine", ["pagoda", "vllm"])
def test_kv_heads_that_a_config_does_not_name(family: str, kv_heads: int, engine: str) -> None:
    sizes = {**SIZES, "num_attention_heads": 32, "model_type": family, "dtype": "float32"}
    sizes.pop("num_key_value_heads")
    config = {**sizes, "architectures": [NAMES[family]]}
    figures = by_plan(ModelFacts(family, "here", ModelConfig(config)), engine)
    assert set(figures["KV heads"]) == {kv_heads}


def test_yarn_without_a_factor_is_as_long_as_the_engine_says() -> None:
    config = saved("llama-yarn")
    del config["rope_parameters"]["factor"]
    figures = by_plan(ModelFacts("yarn", "here", ModelConfig(config)), "pagoda")
    assert figures["longest"] == decoder_spec(ModelConfig(config)).max_position_embeddings == 256


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"architectures": ["GPTJForCausalLM"]}, "architectures"),
        ({"architectures": None, "model_type": "gptj"}, "model_type"),
        ({"architectures": None, "model_type": None}, "architectures"),
        ({"quantization_config": {"quant_method": "nvfp4"}}, "quantization_config.quant_method"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "axial"}}, "rope_parameters.rope_type"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "layer_types"),
        ({"dtype": "float8_e4m3fn"}, "dtype"),
        ({"head_dim": 15}, "head_dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ],
)
def test_what_the_engine_refuses_a_plan_for_it_refuses(change: Config, field: str) -> None:
    config = ModelConfig({**saved("llama-gqa"), **change})
    with pytest.raises(ModelError) as by_engine:
        decoder_spec(config)
    with pytest.raises(ModelError) as by_plan:
        make_plan(ModelFacts("odd", "here", config), PlanRequest(engine="pagoda"))
    assert by_plan.value.field == by_engine.value.field == field
    assert str(by_plan.value) == str(by_engine.value)


@pytest.mark.parametrize(
    "change",
    [
        {"quantization_config": {"quant_method": "nvfp4"}},
        {"hidden_act": "relu"},
        {"rope_parameters": {"rope_type": "longrope"}},
    ],
)
def test_what_other_engines_run_is_planned_for_them_by_the_same_reader(change: Config) -> None:
    config = {**saved("mistral"), **change}
    config.pop("num_key_value_heads")
    config["num_attention_heads"] = 16
    figures = by_plan(ModelFacts("other", "here", ModelConfig(config)), "vllm")
    assert set(figures["KV heads"]) == {8}


# Files.

GGUF_CASES = (
    "cohere", "cohere2", "ernie4_5", "ernie4_5-moe", "exaone4", "falcon-grouped", "gemma", "gemma2",
    "gemma3", "glm", "glm4", "glm4-moe", "gpt-oss", "gpt_neox", "granite", "granite-moe",
    "llama-gqa", "mistral-window", "mixtral-window", "olmo", "olmo2", "olmo3", "olmoe", "phi",
    "phi3-long", "qwen2", "qwen2-moe", "qwen3", "qwen3-moe", "seed_oss", "smollm3", "stablelm",
    "starcoder2",
)  # fmt: skip
GGUF_KEYS = (
    "attention.head_count_kv", "attention.key_length", "attention.sliding_window", "rope.freq_base",
    "feed_forward_length", "context_length", "attention.layer_norm_rms_epsilon", "output.weight",
    "expert_count", "expert_used_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "expert_shared_count", "leading_dense_block_count",
    "nextn_predict_layers",
)  # fmt: skip
NOT_SAID: Mapping[str, Config] = {
    "glm": {"head_dim": 16},
    "qwen2-moe": {"mlp_only_layers": []},
    "qwen3-moe": {"decoder_sparse_step": 1},
}
"""What the converter takes for granted."""
GGUF_PARTNERS = {
    "attention.key_length": ("attention.value_length",),
    "rope.freq_base": ("rope.freq_base_swa",),
}
"""Keys that contradict what is taken for a missing one."""


def refusal(read: Callable[[str], object], path: Path) -> str | None:
    """What a reader says of a file that it refuses."""
    try:
        read(str(path))
    except ModelError as error:
        return str(error)
    return None


def agree_on_a_file(path: Path) -> None:
    """The engine's spec of a file and both plans."""
    facts = find_facts(str(path))
    engine = of_decoder(load_spec(locate(str(path))))
    assert differences(engine, by_plan(facts, "pagoda"), "plan for Pagoda") == []
    in_vllm = {**by_plan(facts, "vllm"), "longest": engine["longest"]}
    assert differences(engine, in_vllm, "plan for vLLM") == []


def called_otherwise(file: bytes, architecture: str, *keys: str) -> bytes:
    """A GGUF file that lacks these keys: it has them under names that nobody asks for."""
    for key in keys:
        name = f"{architecture}.{key}".encode()
        length = struct.pack("<Q", len(name))
        file = file.replace(length + name, length + name[:-1] + b"?")
    return file


@pytest.mark.parametrize("case", GGUF_CASES)
def test_the_engine_and_plans_agree_on_gguf_files(case: str, tmp_path: Path) -> None:
    model = build_model(Case(CASES[case].family, {**CASES[case].config, **NOT_SAID.get(case, {})}))
    window = {"attention.sliding_window": CASES[case].config.get("sliding_window")}
    written = {**model_keys(model.config), **window, **stored_tensors(model)}
    architecture = ARCHITECTURES_IN_GGUF[model.config.model_type]
    whole = write_gguf(tmp_path / "whole.gguf", model, metadata=window).read_bytes()
    for key in ("nothing", *(key for key in GGUF_KEYS if written.get(key) is not None)):
        path = tmp_path / f"{key}.gguf"
        if key.endswith(".weight"):
            write_gguf(path, model, metadata=window, without=(key,))
        else:
            lacked = key, *GGUF_PARTNERS.get(key, ())
            path.write_bytes(called_otherwise(whole, architecture, *lacked))
        refused = refusal(lambda file: load_spec(locate(file)), path)
        assert refusal(find_facts, path) == refused
        if refused is None:
            agree_on_a_file(path)


def test_a_feature_of_a_gguf_file_is_refused_by_name_for_pagoda_alone(tmp_path: Path) -> None:
    model = build_model(CASES["mixtral"])
    path = write_gguf(tmp_path / "experts.gguf", model, metadata={"expert_gating_func": 2})
    with pytest.raises(UnsupportedModelError) as by_engine:
        load_spec(locate(str(path)))
    facts = find_facts(str(path))
    assert by_engine.value.field == "llama.expert_gating_func"
    assert by_plan(facts, "pagoda")["refused"] == "llama.expert_gating_func"
    subject = read_subject(facts, PlanRequest(), None)
    assert subject.model.model_type == "mixtral"
    assert subject.weights.parameters.layers[0].num_experts == 4


def test_every_covered_kind_of_gguf_file_is_among_them() -> None:
    families = {CASES[case].family for case in GGUF_CASES}
    covered = {ARCHITECTURES[row.name].model_type for row in GGUF_ARCHITECTURES.values()}
    assert covered - LATENT_FAMILIES <= families


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_dtype_that_the_config_leaves_to_the_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", CASES["llama-gqa"], dtype=dtype)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    del config["dtype"]
    path.write_text(json.dumps(config))
    spec = load_spec(locate(str(directory)))
    figures = by_plan(find_facts(str(directory)), "pagoda")
    assert figures["dtype"] == spec.dtype == str(dtype).removeprefix("torch.")
    (directory / "model.safetensors").unlink()
    told = make_plan(find_facts(str(directory)), PlanRequest(engine="pagoda", memory=2**34))
    assert "the config names no dtype: taken for float32" in told.warnings


def test_a_dtype_in_the_section_of_the_text_is_named() -> None:
    config = json.loads(case_config(CASES["gemma3-seeing"]).to_json_string())
    config = without(config, ("dtype",), ("text_config", "dtype"))
    request = PlanRequest(engine="pagoda", memory=2**34)
    for dtype, told in (("bfloat16", False), (None, True)):
        own = {**config, "text_config": {**config["text_config"], "dtype": dtype}}
        plan = make_plan(ModelFacts("own", "here", ModelConfig(own)), request)
        assert plan.dtype == (dtype or "float32")
        assert any("names no dtype" in warning for warning in plan.warnings) is told
