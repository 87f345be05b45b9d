"""Tests of kernels once more, in a process that takes this CPU for another one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from llvmlite import binding

from kept_answers import KeptAnswers, versions

OWN = [str(Path(__file__).parents[2] / name) for name in ("src", "tests")]
RUN = f"""
import sys

import pytest

code = pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", *sys.argv[1:]])
files = [getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]]
print("\\0".join(["", *(name for name in files if name.startswith({(*OWN,)}))]))
sys.exit(code)
"""
"""Without what conftest.py loads and these tests do not need, Triton before all."""


def assert_passed(
    kept: KeptAnswers, begins: str, tests: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Assert that tests pass, run by a program that begins so, and with more in its environment.

    Where they passed before with the same code, packages and CPU, they would pass again, and are
    not run: every file of the checkout counts that the process has loaded.
    """
    command = (begins + RUN, *tests)

    def check() -> list[str]:
        run = subprocess.run(
            [sys.executable, "-c", *command],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        output, *files = run.stdout.rstrip("\n").split("\0")
        assert run.returncode == 0, output[-4000:] + run.stderr[-500:]
        assert output.count(".") >= len(tests)
        return files

    packages = versions("numba", "llvmlite", "numpy", "torch", "gguf", "pytest")
    cpu = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    name = hashlib.sha256(json.dumps(command).encode()).hexdigest()[:16]
    kept.check(f"kernels/{name}", (command, dict(environment), packages, cpu), check)
