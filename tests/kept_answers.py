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
        digest = _digest(rests_on)
        kept = self._cache.get(f"answers/{name}", {})
        if kept.get("asked") == digest:
            return kept["answer"]
        answer = ask()
        self._cache.set(f"answers/{name}", {"asked": digest, "answer": answer})
        return answer

    def check(self, name: str, rests_on: Iterable[object], check: Callable[[], list[str]]) -> None:
        """Check something, unless it was found right with the same files.

        check: says which files it has read; what it raises is never kept.
        """
        self.get_by_files(name, rests_on, lambda: (None, check()))

    def get_by_files(
        self, name: str, rests_on: Iterable[object], ask: Callable[[], tuple[Any, Iterable[str]]]
    ) -> Any:
        """As `get`, of an answer that rests on files too, which are named beside it."""
        rests_on = tuple(rests_on)
        kept = self._cache.get(f"checks/{name}", {})
        files = list(map(Path, kept.get("files", ())))
        if files and all(map(Path.exists, files)):
            digest = _digest((*rests_on, fingerprint_of(files)))
            if kept.get("checked") == digest:
                return kept.get("answer")
        answer, named = ask()
        files = sorted(map(Path, named))
        digest = _digest((*rests_on, fingerprint_of(files)))
        found = {"checked": digest, "files": list(map(str, files)), "answer": answer}
        self._cache.set(f"checks/{name}", found)
        return answer


def _digest(rests_on: Iterable[object]) -> str:
    return hashlib.sha256(json.dumps([sys.version, *rests_on]).encode()).hexdigest()


def versions(*packages: str) -> list[str]:
    """Those that are installed."""
    return [f"{name} {version(name)}" for name in packages]
