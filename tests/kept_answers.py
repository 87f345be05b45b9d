"""Answers that take seconds and follow from files and versions alone, kept from run to run."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pagoda.kernels.cpu.fingerprint import fingerprint_of


class KeptAnswers:
    """Beside pytest's other notes, with all that each rests on: anything else, and it is asked
    anew, as in a clean clone."""

    def __init__(self, config: pytest.Config) -> None:
        assert config.cache is not None
        self._cache = config.cache

    def get(self, name: str, rests_on: Iterable[object], ask: Callable[[], Any]) -> Any:
        """The answer to one question, of plain values. What `ask` raises is never kept."""
        asked = json.dumps([sys.version, *rests_on])
        digest = hashlib.sha256(asked.encode()).hexdigest()
        kept = self._cache.get(f"answers/{name}", {})
        if kept.get("asked") == digest:
            return kept["answer"]
        answer = ask()
        self._cache.set(f"answers/{name}", {"asked": digest, "answer": answer})
        return answer


def versions(*packages: str) -> list[str]:
    """Those that are installed."""
    return [f"{name} {version(name)}" for name in packages]


def content_of(*folders: Path) -> str:
    """What stands for every file of Python's below some folders."""
    return fingerprint_of(sorted(path for folder in folders for path in folder.rglob("*.py")))
