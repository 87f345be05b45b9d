"""Which tests pytest-xdist gives to the same process, and which it begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

DEFAULT_MODEL = (
    "engine/test_promises.py",
    "server/test_under_load.py",
    "server/test_structured.py",
    "server/test_tool_calls.py",
    "server/test_server_model.py",
    "server/test_real_clients.py",
    "models/test_default_model.py",
)
"""Files that load the default model: one process has it in memory at a time."""

LONG = (
    "server/test_mutations.py",
    "test_gpu_benchmark.py",
    "execution/test_gpu_executor.py",
    "kernels/gpu/test_prefill_attention.py",
    "kernels/gpu/test_compile_ahead.py",
    "kernels/test_plain_form.py",
    "server/test_serve_process.py",
    "calculator/test_calculator_in_browser.py",
    "server/test_page_in_browser.py",
    "kernels/gpu/test_decode_attention.py",
    "test_examples.py",
)
"""Files whose tests take longest: begun early, they leave no process alone at the end."""

_FOLDER = Path(__file__).parent
_PLACES = {
    f"tests/{name}": place
    for place, names in enumerate((DEFAULT_MODEL, *((name,) for name in LONG)))
    for name in names
}


class ByFile(LoadScopeScheduling):
    """The tests of a file stay together, so that its fixtures are made once."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by `place_of`, not by the number of tests
        gone = [name for name in (*DEFAULT_MODEL, *LONG) if not (_FOLDER / name).exists()]
        assert not gone, f"tests/by_file.py names files that are not there: {gone}"

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "default model" if place_of(file) == 0 else file


def place_of(nodeid: str) -> int:
    """By which files are put in order: the default model's first, then the long ones."""
    return _PLACES.get(nodeid.partition("::")[0], len(_PLACES))
