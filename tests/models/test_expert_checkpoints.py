"""What checkpoints with experts hold beside matrices: corrections, and layers that are not run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import CASES, build_model, write_checkpoint
from pagoda.errors import ModelError
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.registry import weight_names
from pagoda.models.weight_parts import DecoderParts
from pagoda.sizing.held_weights import hold

CASE = CASES["glm4-moe"]


def test_corrections_stay_in_float32_and_are_counted_so(tmp_path: Path) -> None:
    files = locate(str(write_checkpoint(tmp_path, CASE, tokenizer=False)))
    spec = load_spec(files)
    weights = load_weights(files, spec, "bfloat16")
    buffers = dict(build_model(CASE).named_buffers())
    for index in (1, 2, 3):
        experts = weights.layers[index].experts
        assert experts is not None
        assert experts.router.dtype == torch.bfloat16
        stored = buffers[f"model.layers.{index}.mlp.gate.e_score_correction_bias"]
        assert torch.equal(experts.correction, stored)
        assert not torch.equal(stored.bfloat16().float(), stored)
    parts = DecoderParts.of(spec, weight_names(spec.architecture, files.kind, ()))
    assert hold(parts, "bfloat16").total_bytes == weights.size_bytes


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """As many as the config tells; any other tensor that nothing reads is refused."""
    write_checkpoint(tmp_path, CASE, tokenizer=False)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    stored["model.layers.4.eh_proj.weight"] = torch.zeros(64, 128)
    stored["model.layers.4.mlp.experts.0.up_proj.weight"] = torch.zeros(24, 64)
    save_file(stored, file, {"format": "pt"})
    files = locate(str(tmp_path))
    spec = load_spec(files)
    assert spec.num_predicting_layers == 1
    load_weights(files, spec, "float32")
    with pytest.raises(ModelError, match=r"model\.layers\.4\.eh_proj\.weight.*no such tensor"):
        load_weights(files, replace(spec, num_predicting_layers=0), "float32")
    stored["model.layers.5.eh_proj.weight"] = torch.zeros(64, 128)
    save_file(stored, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.5\.eh_proj\.weight.*no such tensor"):
        load_weights(locate(str(tmp_path)), spec, "float32")
