"""The lowest versions that `pyproject.toml` allows, as constraints for pip.

    python tools/lowest_versions.py >lowest.txt

PyTorch and Triton are left to `requirements.lock`: an older PyTorch is gigabytes of CUDA to fetch.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_TO_THE_LOCK = ("torch", "triton")

_BOUNDED = re.compile(r"([\w-]+)>=([\d.]+)")


def lowest_versions() -> dict[str, str]:
    """Name and lowest version of each dependency. Raises `ValueError` for one without a bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = {}
    for dependency in project["dependencies"]:
        bounded = _BOUNDED.fullmatch(dependency)
        if bounded is None:
            raise ValueError(f"{dependency}: wants a lower bound, such as {dependency}>=1.0")
        lowest[bounded[1]] = bounded[2]
    return lowest


def locked_versions() -> dict[str, str]:
    """Name and version of each line of `requirements.lock`."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def constraints() -> list[str]:
    """One line for each dependency."""
    locked = locked_versions()
    lowest = lowest_versions() | {name: locked[name] for name in LEFT_TO_THE_LOCK}
    return [f"{name}=={version}" for name, version in sorted(lowest.items())]


if __name__ == "__main__":
    print("\n".join(constraints()))
