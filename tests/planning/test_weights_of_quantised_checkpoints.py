"""Plans of quantised checkpoints of safetensors are those of the engine, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import CASES, Case, case_config, write_checkpoint
from pagoda.cli.plan_model import find_facts
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions
from pagoda.errors import ModelError
from pagoda.models.config import ModelConfig
from pagoda.planning.plan import make_plan
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan
from quantised_checkpoints import edit_tensors, write_quantised

SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2}
PRESUMED = (
    "gptq", "gptq in order of activations", "awq", "W4A16", "W8A16 with zero points", "FP8",
    "fp8 in blocks", "nf4",
)  # fmt: skip
HELD = (*PRESUMED, "W4A16 of float32 with zero points")
"""No config tells that scales are of another dtype than the model's."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = CASES["qwen2"]
    case = Case(given.family, {**given.config, **SIZES})
    return write_checkpoint(tmp_path_factory.mktemp("plain") / "a", case, dtype=torch.bfloat16)


def planned(path: Path, **options: Any) -> Plan:
    return make_plan(find_facts(str(path)), PlanRequest(engine="pagoda", **options))


@pytest.mark.parametrize("name", HELD)
def test_a_plan_tells_the_bytes_that_the_engine_holds(
    name: str, plain: Path, tmp_path: Path
) -> None:
    path = write_quantised(tmp_path / "a", name, plain)
    model = load_model(EngineOptions(model=str(path), device="cpu"))
    plan = planned(path)
    assert plan.weights_bytes == model.weights.size_bytes == model.held.total_bytes
    assert plan.quantization == model.held.stored_as


@pytest.mark.parametrize(
    "asked", [{"dtype": "float32"}, {"quantization": "none"}, {"gpu": "H100"}], ids=str
)
def test_a_plan_without_stored_weights_is_of_plain_ones(
    asked: dict[str, Any], plain: Path, tmp_path: Path
) -> None:
    path = write_quantised(tmp_path / "a", "gptq", plain)
    plan, other = planned(path, **asked), planned(plain, **asked)
    assert (plan.weights_bytes, plan.quantization) == (other.weights_bytes, None)


def test_what_is_plain_beside_a_scheme_can_be_quantised(plain: Path, tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "a", "awq", plain)
    model = load_model(EngineOptions(model=str(path), device="cpu", quantization="q8_0"))
    assert (model.held.kept, model.held.quantised) == (("uint4_f16_g128",), ("Q8_0",))
    assert planned(path, quantization="q8_0").weights_bytes == model.weights.size_bytes
    assert model.weights.size_bytes < planned(path).weights_bytes


def test_a_config_may_leave_a_single_expert_plain() -> None:
    config = json.loads(case_config(CASES["mixtral"]).to_json_string())
    config |= {"architectures": ["MixtralForCausalLM"], "dtype": "bfloat16"}
    found = []
    for ignored in ([], ["layers.1.block_sparse_moe.experts.2."], ["layers.1.block_sparse_moe.ex"]):
        scheme = {"quant_method": "fp8", "modules_to_not_convert": ignored}
        facts = ModelFacts("own", "here", ModelConfig({**config, "quantization_config": scheme}))
        plan = make_plan(facts, PlanRequest(engine="pagoda", memory=2**34))
        found.append(plan.weights_bytes)
    none, one, layer = found
    assert layer - none == config["num_local_experts"] * (one - none) > 0


@pytest.mark.parametrize("name", PRESUMED)
def test_a_config_alone_tells_the_same(name: str, plain: Path, tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "a", name, plain)
    own, alone = planned(path), planned(path / "config.json")
    is_kept = alone.quantization is not None
    told = " ".join(alone.warnings)
    assert ("taken to be quantised as the config says" in told) is is_kept
    assert ("de-quantised when it is loaded" in told) is not is_kept
    assert "taken to be quantised as the config says" not in " ".join(own.warnings)
    assert (alone.weights_bytes, alone.quantization) == (own.weights_bytes, own.quantization)


def test_layers_that_stay_plain_are_presumed_plain(plain: Path, tmp_path: Path) -> None:
    ignored = ["model.layers.1"]
    path = write_quantised(tmp_path / "a", "awq", plain, modules_to_not_convert=ignored)
    (path / "model.safetensors").unlink()
    whole = write_quantised(tmp_path / "b", "awq", plain)
    saved = [planned(plain).weights_bytes - planned(each).weights_bytes for each in (path, whole)]
    assert 2 * saved[0] == saved[1] > 0


def test_the_scheme_is_told(plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_quantised(tmp_path / "a", "fp8 in blocks", plain)
    options = EngineOptions(model=str(path), device="cpu", num_gpu_blocks_override=64)
    with caplog.at_level("INFO", logger="pagoda"):
        held = AsyncEngine.load(options).held
    assert held is not None
    assert (held.scheme, held.kept) == ("fp8", ("e4m3_f32_g128",))
    assert planned(path).quantization == "fp8: e4m3_f32_g128"
    assert f"weights: {held}" in caplog.messages
    assert any("input_scale are left aside" in line for line in caplog.messages)


def test_files_that_the_engine_refuses_a_plan_refuses(plain: Path, tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "a", "gptq", plain)
    lost = "model.layers.1.mlp.up_proj.scales"
    edit_tensors(path, lambda tensors: {n: t for n, t in tensors.items() if n != lost})
    with pytest.raises(ModelError, match=f"{lost}=None: the files lack this tensor"):
        planned(path)
    assert make_plan(find_facts(str(path)), PlanRequest()).weights_bytes > 0
