"""Formats that are calibrated for a model: found at the first start, kept, and found again."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from checkpoints import Case, write_checkpoint
from pagoda.engine.build import Model, assemble, connect, load_model
from pagoda.engine.devices import calibration
from pagoda.engine.devices.calibration import Calibration
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.request import SamplingParams

pytestmark = pytest.mark.usefixtures("kept")

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6] * 4, [2, 7, 1, 8, 2, 8] * 5]
CALIBRATES = "calibrating int4 for this model"
WHOLE_TEXT = calibration._text
"""As engines read it, who are not given its beginning alone as in tests."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"head_dim": 64, "num_hidden_layers": 2}
    return write_checkpoint(tmp_path_factory.mktemp("model"), Case("llama", sizes))


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    return load(checkpoint)


def load(checkpoint: Path, dtype: str = "float32") -> Model:
    return load_model(EngineOptions(model=str(checkpoint), device="cpu", dtype=dtype))


def answers(model: Model, name: str = "int4", **more: object) -> list[list[int]]:
    options = EngineOptions(
        device="cpu",
        num_gpu_blocks_override=32,
        kv_cache_dtype=name,
        **more,  # type: ignore[arg-type]
    )
    llm = LLM.from_engine(connect(model, options))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    return [list(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, params)]


@dataclass(frozen=True)
class Found:
    """What the first start with int4 has left, and what it answered."""

    name: str
    content: bytes
    answers: list[list[int]]


@pytest.fixture(scope="module")
def found(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Found:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        first = answers(model)
    (path,) = (home / "pagoda" / "calibrations").iterdir()
    return Found(path.name, path.read_bytes(), first)


@pytest.fixture
def path(found: Found, kept: Path) -> Path:
    """That file, where this test's calibrations are kept."""
    kept.mkdir(parents=True)
    path = kept / found.name
    path.write_bytes(found.content)
    return path


def test_what_was_found_is_kept_and_answers_alike(
    model: Model,
    checkpoint: Path,
    found: Found,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with caplog.at_level("INFO", logger="pagoda"):
        assert answers(load(checkpoint)) == found.answers
        answers(model, kv_cache_dtype_skip_layers=(0,))
        assert CALIBRATES not in caplog.text
        path.unlink()
        begun = list[str]()
        monkeypatch.setattr(calibration, "told_if_slow", lambda *_: nullcontext(begun.append))
        assert answers(model) == found.answers
        assert caplog.text.count(CALIBRATES) == 1
        assert begun == ["window 1 of 1", "layer 1 of 2", "layer 2 of 2"]
    assert path.read_bytes() == found.content


@pytest.mark.usefixtures("path")
def test_another_format_and_another_dtype_are_found_anew(
    model: Model, checkpoint: Path, kept: Path
) -> None:
    answers(model, "int2")
    answers(load(checkpoint, "bfloat16"))
    assert len(list(kept.iterdir())) == 3


def test_a_file_that_is_damaged_is_written_anew(model: Model, found: Found, path: Path) -> None:
    """Whatever the damage: see `test_calibrated`."""
    path.write_bytes(found.content[: len(found.content) // 2])
    assert answers(model) == found.answers
    assert path.read_bytes() == found.content


def test_without_a_place_to_keep_it_the_engine_starts_all_the_same(
    model: Model, found: Found, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.parent.write_text("a file where the directory would be")
    assert answers(model) == found.answers
    assert "the calibration is not kept" in caplog.text


def test_weights_alone_cannot_be_calibrated_for(model: Model) -> None:
    bare = model.backend.hold(model.spec, model.weights, "float32")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match=r"int4.*tokenizer"):
        bare.size(EngineOptions(num_gpu_blocks_override=8, kv_cache_dtype="int4"), 64).start()


@pytest.mark.usefixtures("path")
def test_other_weights_of_the_same_shape_have_codecs_of_their_own(
    checkpoint: Path, kept: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    weights = load_file(other / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3] += 1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    answers(load(other))
    assert len(list(kept.iterdir())) == 2


def test_a_disk_that_is_full_costs_the_next_start_alone(
    model: Model, kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", refuse)
    answers(model)
    assert "no space left" in caplog.text
    assert list(kept.iterdir()) == []


def test_without_a_home_nothing_is_kept(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", refuse)
    answers(model)
    assert "there is no home directory" in caplog.text


FEW_TOKENS = {"vocab_size": 100, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (FEW_TOKENS, r"the tokenizer makes token \d+: the model has 100"),
        ({"max_position_embeddings": 1}, "tokenizer leaves nothing"),
    ],
)
def test_a_text_that_the_model_cannot_read_is_refused(
    tmp_path: Path, sizes: dict[str, int], told: str
) -> None:
    whole = {"head_dim": 64, "num_hidden_layers": 1, **sizes}
    model = load(write_checkpoint(tmp_path / "model", Case("llama", whole)))
    own = Calibration(model.spec, model.weights, model.loaded.files, 1)
    if "max_position_embeddings" in sizes:
        own = replace(own, spec=replace(model.spec, max_position_embeddings=0))
    with pytest.raises(InvalidOptionError, match=told):
        own.codecs("int4")


def test_the_text_fills_all_windows_of_any_model(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_text", WHOLE_TEXT)
    long = replace(model.spec, max_position_embeddings=10**6)
    for spec, size, count in ((model.spec, 256, 64), (long, 2048, 8)):
        own = Calibration(spec, model.weights, model.loaded.files, 1)
        assert [len(window) for window in own.windows("kv_cache_dtype", "int4")] == [size] * count


def test_what_was_kept_of_eight_windows_counts_where_there_are_eight(model: Model) -> None:
    """As all models once had, also of few tokens."""
    counts = []
    for positions in (256, 2047, 2048, 4096):
        spec = replace(model.spec, max_position_embeddings=positions)
        own = Calibration(spec, model.weights, model.loaded.files, 1)
        counts.append(own.path_of("int4", f"5{own.reading}") == own.path_of("int4", "5"))
    assert counts == [False, False, True, True]


@pytest.mark.usefixtures("path")
def test_blocks_of_one_calibration_are_never_those_of_another(model: Model) -> None:
    def namespace(name: str, skipped: tuple[int, ...]) -> str:
        options = EngineOptions(
            num_gpu_blocks_override=32, kv_cache_dtype=name, kv_cache_dtype_skip_layers=skipped
        )
        return assemble(model, options)[1].storage.namespace

    spaces = {
        namespace(name, skipped) for name in ("auto", "int4", "int3") for skipped in ((), (1,))
    }
    assert len(spaces) == 5  # auto is the same however much of it is left out
    assert namespace("int4", ()) in spaces
