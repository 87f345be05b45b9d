"""`quantization` makes of plain weights what a GGUF file with the same blocks holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from test_stored_weights import EXPERTS, answers, make, wide

from checkpoints import build_model, write_checkpoint, write_tokenizer
from gguf_files import STAY_PLAIN, stored_tensors, write_gguf
from pagoda.engine.build import Model, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError, ModelError
from pagoda.execution.cpu import quantised_rows
from pagoda.execution.cpu.quantised_rows import quantised
from pagoda.kernels.array import Array
from pagoda.kernels.block_types import row_bytes
from pagoda.kernels.cpu.quantise import quantise
from pagoda.models.stored_rows import StoredRows
from pagoda.sizing.quantised_weights import RECIPES

CASE = wide(intermediate_size=544, rms_norm_eps=2**-20)
"""Rows of down are no whole blocks of 256; the epsilon is what a GGUF file has, a float32."""
MATRICES = {
    "ffn_down": {"q4_k": "Q5_0", "q6_k": "Q8_0"},
    "output": {"q4_k": "Q6_K", "q4_0": "Q6_K"},
}
"""Of matrices that do not become what the name says."""


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    return build_model(CASE)


@pytest.fixture(scope="module")
def path(model: transformers.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    model.save_pretrained(folder)
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def held(path: Path) -> dict[str, Model]:
    """The model in memory, by the name that it was quantised by."""
    return {name: load(path, name) for name in RECIPES}


def write_blocks(target: Path, model: transformers.PreTrainedModel, quantization: str) -> Path:
    """The same model as a GGUF file, quantised beforehand."""
    blocks = {}
    for name, values in stored_tensors(model).items():
        if values.ndim > 1 and not name.endswith(STAY_PLAIN):
            kind = MATRICES.get(name.split(".")[-2], {}).get(quantization, quantization.upper())
            rows = made(kind, values.reshape(-1, values.shape[-1]))
            blocks[name] = (kind, rows.reshape(*values.shape[:-1], -1))
    return write_gguf(target, model, blocks=blocks)


def made(kind: str, numbers: Array) -> Array:
    """Blocks of a type."""
    rows = np.empty((len(numbers), row_bytes(kind, numbers.shape[1])), np.uint8)
    assert quantise(kind, np.ascontiguousarray(numbers), rows)
    return rows


def load(path: Path, quantization: str | None, **options: object) -> Model:
    given = {"model": str(path), "device": "cpu", "quantization": quantization, **options}
    return load_model(EngineOptions(**given))  # type: ignore[arg-type]


def panels(model: Model) -> list[bytes]:
    """The bytes of all matrices, in the order of the model."""
    weights = model.weights
    fields = ("qkv", "o", "gate", "up", "down")
    matrices = [getattr(layer, name) for layer in weights.layers for name in fields]
    found = [weights.embedding, *matrices, weights.lm_head]
    return [part.memory.tobytes() for matrix in found for part in matrix.parts]


@pytest.mark.parametrize("name", RECIPES)
def test_the_weights_are_those_of_a_file_with_the_same_blocks(model, held, name, tmp_path):
    file = load(write_blocks(tmp_path / "same.gguf", model, name), None)
    assert panels(held[name]) == panels(file)
    assert held[name].held.quantised == file.held.kept


def test_so_are_the_answers(model, path, tmp_path):
    file = write_blocks(tmp_path / "same.gguf", model, "q4_k")
    found = numbers(make(path, "q4_k"))
    assert found == numbers(make(file))
    assert found != numbers(make(path, "none", dtype="bfloat16"))


def test_so_are_those_of_experts_but_for_routers(tmp_path):
    model = build_model(wide("qwen2-moe", rms_norm_eps=2**-20, **EXPERTS))
    model.save_pretrained(tmp_path / "plain")
    path = write_tokenizer(tmp_path / "plain")
    file = write_blocks(tmp_path / "same.gguf", model, "q4_k")
    held = load(path, "q4_k")
    assert held.weights.size_bytes == held.held.total_bytes == load(file, None).held.total_bytes
    assert held.weights.layers[0].experts.router.nbytes == 2 * (6 + 1) * 256
    assert numbers(make(path, "q4_k")) == numbers(make(file))


def numbers(llm: LLM) -> list[list[object]]:
    """Tokens and log-probabilities, without text: tokenizers call unused tokens differently."""
    return [
        [
            tokens,
            *({token: each.logprob for token, each in (place or {}).items()} for place in prompt),
            *({token: each.logprob for token, each in place.items()} for place in said),
        ]
        for tokens, said, prompt in answers(llm)  # type: ignore[attr-defined]
    ]


def test_what_a_file_has_quantised_stays(model, held, tmp_path):
    """Other parts become what those of safetensors do: q and k, which the file has interleaved, in
    the order of the rotation."""
    types = {"blk.0.ffn_up.weight": "Q3_K", "blk.1.attn_v.weight": "Q4_1"}
    file = load(write_gguf(tmp_path / "mixed.gguf", model, types=types), "q4_0")
    told = "quantised to Q4_0 and Q6_K, Q3_K and Q4_1 as stored, F32 as bfloat16"
    assert str(file.held).endswith(told)
    pairs = zip(panels(file), panels(held["q4_0"]), strict=True)
    assert [one == other for one, other in pairs].count(False) == 2


def test_rows_that_no_block_divides_stay_plain(tmp_path):
    case = wide(hidden_size=240, intermediate_size=512, head_dim=16)
    path = write_checkpoint(tmp_path / "odd", case)
    model = load(path, "q4_k")
    layer = model.weights.layers[0]
    assert layer.gate.nbytes == 2 * 512 * 240
    assert layer.down.nbytes == 256 * row_bytes("Q4_K", 512)  # the last panel is filled up
    assert model.held.quantised == ("Q4_K", "Q5_0")  # o is 64 wide
    assert answers(make(path, "q4_k"))


def test_a_tied_output_head_is_there_once_in_six_bits(tmp_path):
    path = write_checkpoint(tmp_path / "tied", wide("llama-tied"))
    weights = load(path, "q4_0").weights
    assert weights.lm_head is weights.embedding
    assert weights.lm_head.nbytes == 288 * row_bytes("Q6_K", 256)


def test_a_tensor_that_cannot_be_quantised_is_named(model, tmp_path):
    state = {name: each.clone() for name, each in model.state_dict().items()}
    state["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    model.save_pretrained(tmp_path, state_dict=state)
    told = r"layers\.1\.mlp\.up_proj\.weight='F32': its numbers must be finite and at most 65,504"
    with pytest.raises(ModelError, match=told):
        load(write_tokenizer(tmp_path), "q4_k")


def plain_rows(type: str, rows: Array, log: list[object]) -> StoredRows:
    """Rows in memory that tell what is done with them."""

    def blocks(first: int, count: int) -> Array:
        log.append((first, count))
        return rows[first : first + count]

    return StoredRows(
        name="plain", type=type, shape=(len(rows), 256), nbytes=rows.nbytes,
        blocks=blocks, read=log.append, release=lambda: log.append("release"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("F64", torch.float64),
        ("F32", torch.float32),
        ("F16", torch.float16),
        ("BF16", torch.bfloat16),
    ],
)
def test_numbers_of_every_plain_type_are_read(name, dtype):
    tensor = torch.randn(40, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = quantised(plain_rows(name, tensor.view(torch.uint8).numpy(), []), "Q6_K")
    assert np.array_equal(rows.blocks(0, 40), made("Q6_K", tensor.float().numpy()))


@pytest.mark.parametrize("number", [np.nan, -np.inf, 1e6, 1e300])
def test_numbers_that_cannot_be_quantised_are_refused(number):
    rows = np.ones((3, 256))
    rows[1, 7] = number
    with pytest.raises(
        ModelError, match="plain='F64': its numbers must be finite and at most 65,504"
    ):
        quantised(plain_rows("F64", rows.view(np.uint8), []), "Q4_0").blocks(0, 3)


def test_progress_ends_with_all_bytes_of_the_files(model, path):
    told: list[tuple[int, int]] = []
    options = EngineOptions(model=str(path), device="cpu", quantization="q4_k")
    load_model(options, lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    sizes = (each.numel() * (4 if each.dim() == 2 else 2) for each in model.parameters())
    whole = sum(sizes)  # matrices as the file has them, vectors in bfloat16
    assert told[-1] == (whole, whole)


def test_a_few_rows_are_in_memory_at_a_time(monkeypatch):
    """Each is read once, and given back before the next are."""
    rows = np.random.default_rng(0).normal(size=(200, 256)).astype(np.float32)
    monkeypatch.setattr(quantised_rows, "_CHUNK_VALUES", 70 * 256)
    log: list[object] = []
    own = plain_rows("F32", rows.view(np.uint8), log)
    found = quantised(own, "Q4_K").blocks(32, 168)
    assert log == [step for part in [(32, 64), (96, 64), (160, 40)] for step in (part, "release")]
    assert np.array_equal(found, made("Q4_K", rows[32:]))
    assert quantised(own, "F32") is own


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quantization": "q3_k"}, "quantization='q3_k': one of none, q8_0, q6_k, q4_k, q4_0"),
        ({"quantization": 4}, "quantization=4: one of none"),
        ({"quantization": "awq"}, "what a checkpoint is quantised by is found in its files"),
        ({"quantization": "q4_0", "dtype": "float32"}, "leave --dtype float32 out"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_files_are_looked_for(options, told):
    with pytest.raises(InvalidOptionError, match=told):
        load_model(EngineOptions(model="/there/is/none", device="cpu", **options))
