"""What speaks to llama.cpp in the benchmarks, with a small model of our own in its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "workers"))

import llama_library
import run_llamacpp
from llama_library import STEP_TOKENS, Entry


class Counting:
    """Its next token is the last one and one more; it knows which tokens came before."""

    def __init__(self, *_: object) -> None:
        self.seen: dict[int, list[int]] = {}
        self.step_sizes: list[int] = []

    def clear(self) -> None:
        self.seen = {}

    def decode(self, entries: Sequence[Entry]) -> None:
        self.step_sizes.append(len(entries))
        for token, position, sequence, _ in entries:
            assert position == len(self.seen.setdefault(sequence, []))
            self.seen[sequence].append(token)
        self._rows = entries

    def best(self, row: int) -> int:
        token, _, _, is_wanted = self._rows[row]
        assert is_wanted
        return token + 1


def test_all_requests_go_on_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_llamacpp, "Llama", Counting)
    worker = run_llamacpp.LlamaCpp("some.gguf", str(tmp_path / "xllamacpp" / "library.so"))
    work = [(list(range(400)), 3), ([7], 1), (list(range(1000, 1300)), 2)]
    assert worker.run(work) == worker.run(work) == 6
    llama = worker._llama
    assert llama.seen == {
        0: [*range(400), 400, 401],
        1: [7],
        2: [*range(1000, 1300), 1300],
    }
    assert llama.step_sizes == 2 * [STEP_TOKENS, 701 - STEP_TOKENS, 2, 1]


def test_the_way_to_llama_cpp_is_said_where_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(llama_library.LlamaError, match=r"pip install .* xllamacpp==[\d.]+$"):
        llama_library.find(tmp_path)
    library = tmp_path / "llamacpp" / "lib" / "xllamacpp" / "xllamacpp.abi3.so"
    library.parent.mkdir(parents=True)
    library.write_text("not a library")
    (library.parent.parent / "xllamacpp-1.2.3.dist-info").mkdir()
    assert llama_library.find(tmp_path) == library
    assert llama_library.version(library) == "1.2.3"
    with pytest.raises(llama_library.LlamaError, match=r"is not the llama\.cpp of xllamacpp=="):
        llama_library.load(library)
