"""Engines over a tiny random model; they share its weights."""

from __future__ import annotations

# First of all: this may be loaded before anything else is.
import triton_device  # noqa: F401  # isort: skip

from collections.abc import Callable
from pathlib import Path

import pytest
from ahead import let_run_ahead
from samplers import SUBJECTS, Subject

from checkpoints import CASES, write_checkpoint
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions

MAX_MODEL_LEN = 128
MakeLLM = Callable[..., LLM]


@pytest.fixture(scope="session", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each of the samplers."""
    return SUBJECTS[request.param]


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama of four small layers over bytes, in float32."""
    return str(write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"]))


@pytest.fixture(scope="session")
def tiny_model(tiny_directory: str) -> Model:
    """The same in memory."""
    return load_model(EngineOptions(model=tiny_directory, max_model_len=MAX_MODEL_LEN))


@pytest.fixture(scope="session", params=["in step", "ahead"])
def make_llm(tiny_model: Model, request: pytest.FixtureRequest) -> MakeLLM:
    """A new engine over the tiny model; keyword arguments are engine options."""

    def make(**options: object) -> LLM:
        defaults: dict[str, object] = {"num_gpu_blocks_override": 256, "block_size": 4}
        engine = connect(tiny_model, EngineOptions(**(defaults | options)))  # type: ignore[arg-type]
        return LLM.from_engine(let_run_ahead(engine) if request.param == "ahead" else engine)

    return make


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test's calibrations are kept, and nobody else's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pagoda" / "calibrations"
