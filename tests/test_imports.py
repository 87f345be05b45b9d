"""What importing a room loads, seen in fresh processes.

The floors test reads the source; this one asks the interpreter, so that what a third-party package
drags in counts too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"

HEAVY = ("torch", "triton", "numba", "transformers", "safetensors", "huggingface_hub")
WEB = ("fastapi", "starlette", "uvicorn", "pydantic", "typer", "rich")

# A room joins when its folder is there.
LIGHT_ROOMS = [
    room
    for room in (
        "cache",
        "scheduling",
        "sizing",
        "planning",
        "roofline",
        "doctor",
        "validation",
        "calculator",
        "replay",
    )
    if (SOURCE / "pagoda" / room).is_dir()
]


def loaded_by(statement: str, source: Path) -> set[str]:
    """The top-level packages that are loaded after `statement` in a fresh interpreter."""
    look = "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    return set(printed(f"{statement}\nimport sys\n{look}", source).split())


def printed(script: str, source: Path) -> str:
    """By a script in a fresh interpreter, which has loaded `sys`."""
    # -I keeps the surroundings out, so the source is put on the path by hand.
    prefix = f"import sys; sys.path.insert(0, {str(source)!r})\n"
    command = [sys.executable, "-I", "-c", prefix + script]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def every_module(room: str) -> str:
    """A statement that imports all modules of a room."""
    folder = SOURCE.joinpath(*room.split("."))
    names = [room, *(f"{room}.{path.stem}" for path in sorted(folder.glob("[!_]*.py")))]
    return "import " + ", ".join(names)


TOKENIZER = (
    "from pagoda.models.locate import locate; from pagoda.models.tokenizer import Tokenizer; "
    "assert Tokenizer(locate(None)).encode('Hello')"
)
MUST_NOT_LOAD = {
    "import pagoda": (*HEAVY, *WEB, "numpy"),
    "import pagoda.errors": (*HEAVY, *WEB, "numpy"),
    "import pagoda.request": (*HEAVY, *WEB, "numpy"),
    **{every_module(f"pagoda.{room}"): (*HEAVY, *WEB) for room in LIGHT_ROOMS},
    "import pagoda.models.config": (*HEAVY, *WEB),
    "import pagoda.models.registry": (*HEAVY, *WEB),
    "import pagoda.models.gguf_config": (*HEAVY, *WEB),
    "import pagoda.models.directory_config": (*HEAVY, *WEB),
    "import pagoda.cli.main": (*HEAVY, "fastapi", "uvicorn"),
    TOKENIZER: ("transformers",),
}
"""Of statements, those that may load least first."""


def test_an_import_loads_nothing_heavy() -> None:
    """All in one interpreter, which looks behind each of them."""
    looks = [
        f"{statement}\nfound[{statement!r}] = sorted({set(heavy)} & set(sys.modules))"
        for statement, heavy in MUST_NOT_LOAD.items()
    ]
    script = ["import json", "found = {}", *looks, "print(json.dumps(found))"]
    told = printed("\n".join(script), SOURCE)
    assert json.loads(told) == {statement: [] for statement in MUST_NOT_LOAD}


def rooms_loaded_by(statement: str) -> set[str]:
    """The rooms of Pagoda that are loaded after `statement` in a fresh interpreter."""
    told = (
        "import sys\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('pagoda.')}\n"
        "for room in rooms: sys.modules.setdefault('room_' + room, sys)"
    )
    packages = loaded_by(f"{statement}\n{told}", SOURCE)
    return {name.removeprefix("room_") for name in packages if name.startswith("room_")}


def test_an_engine_starts_without_the_planner() -> None:
    """It loads `sizing` alone of what the two share; `roofline` is for whoever measures."""
    devices = ", ".join(f"pagoda.engine.devices.{name}_backend" for name in ("cpu", "gpu"))
    assert rooms_loaded_by(f"import pagoda.engine.build, pagoda.engine.llm, {devices}") == {
        "byte_size", "cache", "cache_hint", "codecs", "engine", "errors", "execution", "kernels",
        "limits", "models", "request", "scheduling", "sizing", "storage", "structured", "tiers",
        "truncation",
    }  # fmt: skip


def test_a_planted_breach_is_caught(tmp_path: Path) -> None:
    """One in every light room, each a package of its own."""
    shutil.copytree(SOURCE / "pagoda", tmp_path / "pagoda")
    breaches = {room: f"heavy_{room}" for room in LIGHT_ROOMS}
    for room, name in breaches.items():
        (tmp_path / f"{name}.py").write_text("")
        with (tmp_path / "pagoda" / room / "__init__.py").open("a", encoding="utf-8") as module:
            module.write(f"\n\nimport {name}\n")
    found = loaded_by("import " + ", ".join(f"pagoda.{room}" for room in breaches), tmp_path)
    assert found >= set(breaches.values())
