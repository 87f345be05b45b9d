"""Experts in MXFP4: numbers are those that transformers reads, and stay as they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from checkpoints import CASES, Case, write_checkpoint
from pagoda.engine.llm import LLM
from pagoda.errors import ModelError
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.request import SamplingParams
from quantised_checkpoints import edit_config, edit_tensors

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SECTION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}
STACKED = ("gate_up_proj", "down_proj")


def blocks_of(plain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ones for a plain tensor [experts, in, out]."""
    generator = torch.Generator().manual_seed(plain.numel())
    experts, columns, rows = plain.shape
    shape = (experts, rows, columns // 32)
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(118, 124, shape, generator=generator).to(torch.uint8)
    scales[0, 0, 0] = 0
    return blocks, scales


def write(directory: Path, *, packed: bool, scale: int | None = None) -> Path:
    """A gpt-oss with random experts, in MXFP4 or as the numbers that these are."""
    given = CASES["gpt-oss"]
    case = Case(given.family, {**given.config, **SIZES})
    write_checkpoint(directory, case, dtype=torch.bfloat16)

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {}
        for name, tensor in tensors.items():
            if not name.endswith(STACKED):
                found[name] = tensor
                continue
            blocks, scales = blocks_of(tensor)
            if scale is not None:
                scales[-1, -1, -1] = scale
            if packed:
                found |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            else:
                found[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        return found

    edit_tensors(directory, edit)
    if packed:
        edit_config(directory, quantization_config=SECTION)
    return directory


def test_every_number_is_that_of_transformers(tmp_path: Path) -> None:
    packed, plain = (
        locate(str(write(tmp_path / str(kind), packed=kind))) for kind in (True, False)
    )
    ours, theirs = (load_weights(files, load_spec(files), "bfloat16") for files in (packed, plain))
    for own, other in zip(ours.layers, theirs.layers, strict=True):
        assert own.experts is not None
        assert other.experts is not None
        for name in ("gate", "up", "down"):
            pairs = zip(getattr(own.experts, name), getattr(other.experts, name), strict=True)
            # what is below 2^-100, of the scale 0, is taken for 0
            assert all(torch.allclose(one, two, rtol=0, atol=6 * 2.0**-100) for one, two in pairs)


def test_experts_stay_as_they_are_stored(tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    answers = []
    for packed in (True, False):
        directory = write(tmp_path / str(packed), packed=packed)
        llm = LLM(str(directory), dtype="bfloat16", max_model_len=64)
        answers.append([each.outputs[0] for each in llm.generate([[5, 6, 7]], greedy)])
    assert [each.token_ids for each in answers[0]] == [each.token_ids for each in answers[1]]
    assert [each.logprobs for each in answers[0]] == [each.logprobs for each in answers[1]]


def test_a_scale_that_is_no_number_is_refused_by_name(tmp_path: Path) -> None:
    files = locate(str(write(tmp_path / "a", packed=True, scale=255)))
    with pytest.raises(ModelError) as refusal:
        load_weights(files, load_spec(files), "bfloat16")
    assert refusal.value.field.endswith("gate_up_proj")
    assert "scales must be finite" in refusal.value.limit
