"""MXFP4: numbers are those that transformers and the gguf package read, and stay as stored."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from checkpoints import CASES, Case, write_checkpoint
from pagoda.cli.plan_model import find_facts
from pagoda.engine.build import load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import ModelError
from pagoda.models.gguf import GGUFFile
from pagoda.models.gguf_checkpoint import GGUFCheckpoint
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.part import Part
from pagoda.planning.plan import make_plan
from pagoda.planning.request import PlanRequest
from pagoda.request import SamplingParams
from pagoda.sizing.capacity import format_gib
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


def test_a_plan_tells_what_a_device_holds_of_them(tmp_path: Path) -> None:
    """On GPUs plain numbers, by a line; on CPUs what is stored. A config alone tells the same."""
    directory = write(tmp_path, packed=True)
    files = locate(str(directory))
    whole = load_weights(files, load_spec(files), "bfloat16").size_bytes
    kept = load_model(EngineOptions(model=str(directory), device="cpu")).held
    for path in (directory, directory / "config.json"):
        on_gpu, on_cpu = (
            make_plan(find_facts(str(path)), PlanRequest(engine="pagoda", gpu=gpu))
            for gpu in ("H100", "DESKTOP-DDR5")
        )
        assert (on_gpu.weights_bytes, on_gpu.quantization) == (whole, None)
        told = f"{format_gib(whole)} GiB, MXFP4: e2m1_bf16_g32 as bfloat16"
        words = "what is quantised in the checkpoint is de-quantised when it is loaded"
        assert f"{words}: {told}" in on_gpu.warnings
        assert "as the config says" not in " ".join(on_gpu.warnings)
        assert (on_cpu.weights_bytes, on_cpu.quantization) == (kept.total_bytes, kept.stored_as)
        assert words not in " ".join(on_cpu.warnings)


def test_experts_stay_as_they_are_stored(tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    answers = []
    for packed in (True, False):
        directory = write(tmp_path / str(packed), packed=packed)
        llm = LLM(str(directory), dtype="bfloat16", max_model_len=64)
        answers.append([each.outputs[0] for each in llm.generate([[5, 6, 7]], greedy)])
    assert [each.token_ids for each in answers[0]] == [each.token_ids for each in answers[1]]
    assert [each.logprobs for each in answers[0]] == [each.logprobs for each in answers[1]]


def gguf_file(path: Path, exponents: np.ndarray) -> GGUFFile:
    """A matrix in MXFP4, [exponents / 2, 64], of random codes."""
    shape = (len(exponents), 16)
    codes = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    blocks = np.concatenate([exponents.astype(np.uint8)[:, None], codes], axis=1)
    writer = gguf.GGUFWriter(path, "gpt-oss")
    kind = gguf.GGMLQuantizationType.MXFP4
    writer.add_tensor("some", blocks.reshape(len(exponents) // 2, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def test_every_number_of_a_gguf_file_is_that_of_the_gguf_package(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "some.gguf", np.arange(28, 228))
    stored = GGUFCheckpoint(file).stored(Part("some", (50, 64), first_row=32, whole=(100, 64)))
    assert stored is not None
    assert stored.type == file.types["some"] == "e2m1_bf16_g32"
    blocks = stored.blocks(0, 50).reshape(100, 18)
    scales = blocks[:, :2].copy().view(np.uint16).astype(np.uint32) << 16
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([sizes, -sizes])
    codes = np.stack([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=-1).reshape(100, 32)
    found = (table[codes] * scales.view(np.float32)).reshape(50, 64)
    assert np.array_equal(found, file.read_rows("some", slice(32, 82)))


@pytest.mark.parametrize("exponent", [228, 255])
def test_a_scale_of_a_gguf_file_that_is_too_large_is_refused(exponent: int, tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "some.gguf", np.array([127] * 63 + [exponent]))
    stored = GGUFCheckpoint(file).stored(Part("some", (32, 64)))
    assert stored is not None
    with pytest.raises(ModelError, match=r"some=.*: a scale must be finite, and 0"):
        stored.blocks(0, 32)


def test_a_scale_that_is_no_number_is_refused_by_name(tmp_path: Path) -> None:
    files = locate(str(write(tmp_path / "a", packed=True, scale=255)))
    with pytest.raises(ModelError) as refusal:
        load_weights(files, load_spec(files), "bfloat16")
    assert refusal.value.field.endswith("gate_up_proj_scales")
    assert "must be finite" in refusal.value.limit
