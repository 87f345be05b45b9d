"""Weights that stay as a GGUF file stores them: answers are those of the de-quantised model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import CASES, Case, build_model
from gguf_files import GGML, write_gguf
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError, ModelError
from pagoda.kernels.block_types import GGUF_TYPES
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from pagoda.models.gguf import GGUFFile
from pagoda.request import SamplingParams

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
PROMPTS = [list(range(5, 5 + length)) for length in (1, 3, 17, 40, 150)]


def wide(name: str = "llama-gqa", **config: object) -> Case:
    case = CASES[name]
    return Case(case.family, {**case.config, **WIDE, **config})


def every_type() -> dict[str, str]:
    """A tensor of each type, and two of the first ones."""
    names = [f"blk.{layer}.{name}.weight" for layer in range(2) for name in MATRICES]
    kinds = sorted(GGUF_TYPES)
    mixed = {name: kinds[number % len(kinds)] for number, name in enumerate(names)}
    return {**mixed, "token_embd.weight": "Q6_K", "output.weight": "Q4_K"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stored") / "mixed.gguf"
    return write_gguf(target, build_model(wide()), types=every_type())


def make(path: Path, quantization: str | None = None, **options: object) -> LLM:
    given = {"model": str(path), "quantization": quantization, "num_gpu_blocks_override": 64}
    whole = EngineOptions(**{**given, "max_model_len": 256, **options})  # type: ignore[arg-type]
    return LLM.from_engine(connect(load_model(whole), whole))


def answers(llm: LLM) -> list[tuple[list[int], list[object], list[object]]]:
    """Tokens, and the log-probabilities of prompts and answers."""
    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=3
    )
    found = llm.generate(PROMPTS, params, use_tqdm=False)
    return [
        (each.outputs[0].token_ids, each.outputs[0].logprobs, each.prompt_logprobs)
        for each in found
    ]


@pytest.fixture(scope="module")
def dequantised(path: Path) -> list[tuple[list[int], list[object], list[object]]]:
    return answers(make(path, "none"))


def test_not_a_bit_of_an_answer_is_other_than_of_the_de_quantised_model(path, dequantised):
    assert len({tuple(tokens) for tokens, _, _ in dequantised}) > 1
    assert answers(make(path)) == dequantised
    assert answers(make(path, max_num_batched_tokens=7, threads=1)) == dequantised


def load(path: Path, **options: object) -> Model:
    return load_model(EngineOptions(model=str(path), **options))  # type: ignore[arg-type]


def matrix_bytes(path: Path) -> int:
    """Of the tensors of a file that are no vectors."""
    tensors = GGUFFile(path).tensors.values()
    return sum(each.size_bytes for each in tensors if len(each.shape) == 2)


def test_they_take_as_many_bytes_as_in_the_file(path):
    model = load(path)
    vectors = (2 * 2 + 1) * model.spec.hidden_size * 2
    assert model.weights.size_bytes == matrix_bytes(path) + vectors
    assert load(path, quantization="none").weights.size_bytes > 2 * model.weights.size_bytes


def test_a_tied_output_head_is_there_once(tmp_path):
    model = build_model(wide("llama-tied"))
    path = write_gguf(tmp_path / "tied.gguf", model, quantisation=GGML.Q8_0)
    weights = load(path).weights
    assert weights.lm_head is weights.embedding
    assert answers(make(path)) == answers(make(path, "none"))


def test_parts_that_end_within_a_panel_are_de_quantised_together(tmp_path):
    model = build_model(wide("llama-mqa", head_dim=16))  # k has 16 rows
    path = write_gguf(tmp_path / "narrow.gguf", model, quantisation=GGML.Q8_0)
    layer = load(path).weights.layers[0]
    assert layer.qkv.nbytes == 2 * 96 * 256
    assert layer.o.nbytes == 256 * 64 // 32 * 34
    assert answers(make(path)) == answers(make(path, "none"))


@pytest.mark.parametrize("name", ["phi3", "glm4"])
def test_parts_of_one_tensor_stay_as_it_is_stored(name, tmp_path):
    path = write_gguf(tmp_path / "one.gguf", build_model(wide(name)), quantisation=GGML.Q8_0)
    layer = load(path).weights.layers[0]
    assert layer.qkv.nbytes == 2 * 256 * 256 // 32 * 34
    assert layer.gate.nbytes == layer.up.nbytes == 512 * 256 // 32 * 34
    assert answers(make(path)) == answers(make(path, "none"))


EXPERTS = {
    "mlp_only_layers": [], "norm_topk_prob": False,
    "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
}  # fmt: skip
OF_EXPERTS = {
    "ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q6_K", "ffn_down_exps": "Q8_0",
    "ffn_gate_shexp": "Q3_K", "ffn_up_shexp": "IQ4_XS", "ffn_down_shexp": "Q4_0",
}  # fmt: skip


def test_each_of_stacked_experts_stays_as_it_is_stored(tmp_path):
    path = tmp_path / "experts.gguf"
    types = {
        f"blk.{layer}.{name}.weight": OF_EXPERTS[name] for layer in (0, 1) for name in OF_EXPERTS
    }
    model = build_model(wide("qwen2-moe", **EXPERTS))
    write_gguf(path, model, quantisation=GGML.Q8_0, types=types)
    held = load(path)
    experts, tensors = held.weights.layers[1].experts, GGUFFile(path).tensors
    for name, matrices in (("gate", experts.gate), ("up", experts.up), ("down", experts.down)):
        assert len(matrices) == 6
        whole = tensors[f"blk.1.ffn_{name}_exps.weight"].size_bytes
        assert [each.nbytes for each in matrices] == [whole // 6] * 6
    assert held.weights.size_bytes == held.held.total_bytes
    assert set(OF_EXPERTS.values()) <= set(held.held.kept)
    assert answers(make(path)) == answers(make(path, "none"))


def test_experts_in_mxfp4_stay_as_they_are_stored(tmp_path):
    path = tmp_path / "mxfp4.gguf"
    model = build_model(wide("gpt-oss"))
    write_gguf(path, model, quantisation=GGML.MXFP4)
    held = load(path)
    assert held.weights.layers[0].experts.down[4].nbytes == 256 * 512 // 32 * 18
    assert held.held.kept == ("e2m1_bf16_g32",)
    assert answers(make(path)) == answers(make(path, "none"))


def test_plain_parts_lie_beside_those_that_are_kept(tmp_path):
    names = [f"blk.{layer}.{name}.weight" for layer in range(2) for name in ("attn_q", "ffn_gate")]
    path = tmp_path / "plain.gguf"
    write_gguf(path, build_model(wide()), quantisation=GGML.F16, types=dict.fromkeys(names, "Q5_K"))
    layer = load(path, dtype="bfloat16").weights.layers[0]
    assert layer.qkv.nbytes == 256 * 176 + 2 * 2 * 128 * 256
    assert (layer.gate.nbytes, layer.up.nbytes) == (512 * 176, 2 * 512 * 256)
    assert answers(make(path, dtype="bfloat16")) == answers(make(path, "none", dtype="bfloat16"))


def test_rows_beyond_whole_panels_are_no_columns_of_the_product(tmp_path):
    model = build_model(wide(vocab_size=295))
    path = write_gguf(tmp_path / "odd.gguf", model, quantisation=GGML.Q4_0)
    assert load(path).weights.lm_head.nbytes == 320 * 256 // 32 * 18
    assert answers(make(path)) == answers(make(path, "none"))


@pytest.mark.parametrize(
    ("kind", "options"), [(GGML.TQ2_0, {}), (GGML.Q8_0, {"dtype": "float32"}), (GGML.F16, {})]
)
def test_what_is_not_covered_is_de_quantised(kind, options, tmp_path):
    path = write_gguf(tmp_path / "other.gguf", build_model(wide()), quantisation=kind)
    weights = load(path, **options).weights
    assert weights.layers[0].o.nbytes == 256 * 256 * weights.dtype.itemsize
    assert answers(make(path, **options)) == answers(make(path, "none", **options))


def test_a_scale_that_is_not_finite_is_named(path, tmp_path):
    tensor = GGUFFile(path).tensors["blk.1.ffn_up.weight"]
    stored = STORED_TYPES[tensor.type.name]
    data = bytearray(path.read_bytes())
    half = tensor.offset + 3 * stored.block_bytes + stored.halves[-1]
    data[half : half + 2] = np.float16(np.inf).tobytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight='.*': its scales must be finite"):
        load(broken)


def test_progress_ends_with_all_bytes(path):
    told: list[tuple[int, int]] = []
    load_model(EngineOptions(model=str(path)), lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (told[-1][1], told[0][1])


def test_an_option_that_is_not_there_is_refused():
    with pytest.raises(InvalidOptionError, match="quantization='gguf': one of none, q8_0"):
        EngineOptions(quantization="gguf")


ROUNDED = {"activation_dtype": "int8"}


Answers = list[tuple[list[int], list[Any], list[Any]]]


def mean_change(exact: Answers, other: Answers) -> float:
    """Of the log-probabilities of the prompts' tokens."""
    changes = [
        first[token_id].logprob - second[token_id].logprob
        for (_, _, before), (_, _, after) in zip(exact, other, strict=True)
        for token_id, first, second in zip(PROMPTS[-1][1:], before[1:], after[1:], strict=False)
    ]
    return float(np.abs(changes).mean())


def test_rounded_activations_give_much_the_same_and_depend_on_no_batch(path, dequantised):
    rounded = answers(make(path, **ROUNDED))
    assert rounded != dequantised
    assert mean_change(dequantised, rounded) < 0.1
    assert answers(make(path, max_num_batched_tokens=7, threads=1, **ROUNDED)) == rounded
    llm = make(path, **ROUNDED)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    for _ in range(2):  # computed alone, then found in the cache
        alone = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in PROMPTS]
        tokens = [each.outputs[0].token_ids for each in alone]
        assert tokens == [tokens for tokens, _, _ in rounded]


def test_plain_weights_beside_stored_ones_take_what_is_not_rounded(tmp_path):
    names = [f"blk.{layer}.attn_q.weight" for layer in range(2)]
    model, path = build_model(wide()), tmp_path / "plain.gguf"
    write_gguf(path, model, quantisation=GGML.F16, types=dict.fromkeys(names, "Q8_0"))
    given = {"dtype": "bfloat16"}
    exact, rounded = (answers(make(path, **given, **more)) for more in ({}, ROUNDED))
    assert 0 < mean_change(exact, rounded) < 0.1


def test_nothing_is_rounded_where_nothing_stays_as_stored(path):
    told = r"activation_dtype='int8'.* none do; they are held as 0.00\d+ GiB, "
    for options in ({"quantization": "none"}, {"dtype": "float32"}):
        with pytest.raises(InvalidOptionError, match=told):
            load(path, **options, **ROUNDED)
    with pytest.raises(InvalidOptionError, match="activation_dtype='int4'"):
        EngineOptions(activation_dtype="int4")


def test_who_quantises_what_is_quantised_is_told(path, caplog):
    load(path, quantization="q4_k")
    assert "--quantization q4_k changes nothing" in caplog.text


def test_a_model_in_memory_may_be_run_either_way(path, dequantised):
    model = load(path, num_gpu_blocks_override=64, max_model_len=256)
    found = [
        answers(LLM.from_engine(connect(model, options)))
        for options in (
            EngineOptions(num_gpu_blocks_override=64, activation_dtype=name)
            for name in ("auto", "int8")
        )
    ]
    assert found[0] == dequantised
    assert found[1] == answers(make(path, **ROUNDED))
    plain = load(path, quantization="none")
    with pytest.raises(InvalidOptionError, match="activation_dtype='int8'"):
        connect(plain, EngineOptions(num_gpu_blocks_override=64, activation_dtype="int8"))


def test_an_embedding_that_is_only_looked_up_is_multiplied_with_nothing(tmp_path):
    path = tmp_path / "embedding.gguf"
    kinds = {"token_embd.weight": "Q8_0"}
    write_gguf(path, build_model(wide()), quantisation=GGML.F16, types=kinds)
    assert load(path, dtype="bfloat16").held.kept == ("Q8_0",)
    with pytest.raises(InvalidOptionError, match="activation_dtype='int8'"):
        load(path, dtype="bfloat16", **ROUNDED)


def test_the_log_tells_that_activations_are_rounded(path, caplog):
    with caplog.at_level("INFO", logger="pagoda"):
        load(path, **ROUNDED)
    assert "activations are rounded to int8" in caplog.text
    assert "--quantization none" not in caplog.text
