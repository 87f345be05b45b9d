"""Means that fp8 leaves out of keys: found at the first start, kept, and left alone where scores
may not be moved."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from checkpoints import CASES, Case, write_checkpoint
from pagoda.codecs import CODECS
from pagoda.engine.build import Model, assemble, connect, load_model
from pagoda.engine.devices.layer_codecs import layer_codecs
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams
from pagoda.storage.cpu_storage import CPUStorage

pytestmark = pytest.mark.usefixtures("kept")

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6] * 4, [2, 7, 1, 8, 2, 8] * 5]
CALIBRATES = "calibrating fp8 for this model"
SHAPE = {"head_dim": 64, "num_hidden_layers": 2, "attention_bias": True}
"""Biases make means."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), Case("llama", SHAPE))


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    return load(checkpoint)


def load(checkpoint: Path) -> Model:
    return load_model(EngineOptions(model=str(checkpoint), device="cpu", dtype="float32"))


def options(name: str = "fp8", **more: object) -> EngineOptions:
    return EngineOptions(num_gpu_blocks_override=32, kv_cache_dtype=name, **more)  # type: ignore[arg-type]


def answers(model: Model, name: str = "fp8") -> list[list[tuple[int, float]]]:
    llm = LLM.from_engine(connect(model, options(name)))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
    choices = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    return [
        [
            (token, entry[token].logprob)
            for token, entry in zip(choice.token_ids, choice.logprobs or [], strict=True)
        ]
        for choice in choices
    ]


def stored(model: Model, **more: object) -> CPUStorage:
    storage = assemble(model, options(**more))[1].storage  # type: ignore[arg-type]
    assert isinstance(storage, CPUStorage)
    return storage


def test_what_was_found_is_kept_and_answers_alike(
    model: Model, checkpoint: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="pagoda"):
        first = answers(model)
        assert caplog.text.count(CALIBRATES) == 1
        (path,) = kept.iterdir()
        written = path.read_bytes()
        assert answers(load(checkpoint), "fp8_e4m3") == first
        assert stored(model, kv_cache_dtype_skip_layers=(0,)).centred_layers == (1,)
        assert caplog.text.count(CALIBRATES) == 1
    path.unlink()
    assert answers(model) == first
    assert path.read_bytes() == written
    assert answers(model, "e4m3/e4m3") != first


def test_a_file_that_is_damaged_or_of_another_shape_is_written_anew(
    model: Model, kept: Path, tmp_path: Path
) -> None:
    first = answers(model)
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    other = write_checkpoint(tmp_path / "other", Case("llama", {**SHAPE, "num_hidden_layers": 1}))
    answers(load(other))
    (others,) = set(kept.iterdir()) - {path}
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    for damaged in (whole[: len(whole) // 2], b"", bytes(flipped), others.read_bytes()):
        path.write_bytes(damaged)
        assert answers(model) == first
        assert path.read_bytes() == whole


def test_other_weights_have_means_of_their_own_and_never_share_a_block(
    model: Model, checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    weights = load_file(other / "model.safetensors")
    bias = weights["model.layers.1.self_attn.k_proj.bias"]
    bias[3] += 0.3  # a whole number of float8's steps would leave the mean alone
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    spaces = [stored(each).namespace for each in (model, load(other))]
    assert len(set(spaces)) == 2
    assert stored(model).namespace == spaces[0]
    assert stored(model, name="e4m3/e4m3").namespace not in spaces


def test_weights_alone_are_read_at_every_start(model: Model, kept: Path) -> None:
    bare = model.backend.hold(model.spec, model.weights, "float32")  # type: ignore[arg-type]
    storage = bare.size(options(), 64).start().storage
    assert storage.namespace == stored(model).namespace
    (path,) = kept.iterdir()  # of the model, which has a name
    path.unlink()
    bare.size(options(), 64).start()
    assert not list(kept.iterdir())


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fp8", {"kv_retention": "streaming:sinks=4,window=60"}),
        ("fp8", {"request_kv_retention": True}),
        ("fp8_e5m2", {}),
        ("turboquant_k8v4", {}),
        ("e4m3/e4m3", {}),
    ],
)
def test_keys_stay_as_they_are_where_scores_would_move_apart(
    model: Model, kept: Path, name: str, more: dict[str, object]
) -> None:
    assert stored(model, name=name, **more).centred_layers == ()
    assert not kept.exists()


def test_windows_without_sinks_see_no_difference(model: Model) -> None:
    told = assemble(model, options(kv_retention="window:64"))[0].stored
    assert told.centred_layers == (0, 1)
    assert stored(model, kv_retention="window:64").centred_layers == (0, 1)


def test_positions_past_the_models_length_have_other_means(model: Model) -> None:
    longer = replace(model, max_model_len=model.spec.max_position_embeddings + 16)
    assert stored(longer, kv_retention="window:64").centred_layers == ()


@pytest.mark.parametrize("family", ["gemma2", "gpt-oss"])
def test_scores_that_are_capped_or_meet_sinks_keep_their_keys(
    tmp_path: Path, kept: Path, family: str
) -> None:
    model = load(write_checkpoint(tmp_path / "model", CASES[family]))
    calibration = model.loaded.calibration(1)  # type: ignore[attr-defined]
    cache = model.spec.cache_spec(16, "fp8_e4m3")
    codecs = layer_codecs(cache, calibration, ignores_means=True)
    assert set(codecs) == {CODECS["fp8_e4m3"]}
    assert not kept.exists()
