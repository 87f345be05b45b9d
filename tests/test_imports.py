"""What importing a room loads, seen in fresh processes.

The floors test reads the source; this one asks the interpreter, so that what a third-party package
drags in counts too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

HEAVY = ("torch", "triton", "numba", "transformers", "safetensors", "huggingface_hub")
WEB = ("fastapi", "starlette", "uvicorn", "pydantic", "typer", "rich")

MUST_NOT_LOAD = {
    "pagoda": (*HEAVY, *WEB, "numpy"),
    "pagoda.errors": (*HEAVY, *WEB, "numpy"),
    "pagoda.request": (*HEAVY, *WEB, "numpy"),
    "pagoda.cache": (*HEAVY, *WEB),
    "pagoda.models.config": (*HEAVY, *WEB),
    "pagoda.models.registry": (*HEAVY, *WEB),
    "pagoda.models.gguf_config": (*HEAVY, *WEB),
    "pagoda.models.directory_config": (*HEAVY, *WEB),
    "pagoda.cli.main": (*HEAVY, "fastapi", "uvicorn"),
}

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
    script = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    # -I keeps the surroundings out, so the source is put on the path by hand.
    prefix = f"import sys; sys.path.insert(0, {str(source)!r})\n"
    command = [sys.executable, "-I", "-c", prefix + script]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return set(result.stdout.split())


def every_module(room: str) -> str:
    """A statement that imports all modules of a room."""
    folder = SOURCE.joinpath(*room.split("."))
    names = [room, *(f"{room}.{path.stem}" for path in sorted(folder.glob("[!_]*.py")))]
    return "import " + ", ".join(names)


@pytest.mark.parametrize("heavy", sorted(set(MUST_NOT_LOAD.values())))
def test_an_import_loads_nothing_heavy(heavy: tuple[str, ...]) -> None:
    """Modules that must not load the same, together; where they do, each says if it is to blame."""
    modules = [module for module, names in MUST_NOT_LOAD.items() if names == heavy]
    if loaded_by("import " + ", ".join(modules), SOURCE) & set(heavy):
        loaded = {module: loaded_by(f"import {module}", SOURCE) & set(heavy) for module in modules}
        assert {module: names for module, names in loaded.items() if names} == {}
        raise AssertionError(f"{modules} together load what none does alone")


def test_no_module_of_a_light_room_loads_anything_heavy() -> None:
    """All of them in one interpreter; where one does, each room says whether it is to blame."""
    rooms = [f"pagoda.{room}" for room in LIGHT_ROOMS]
    if loaded_by("\n".join(map(every_module, rooms)), SOURCE) & {*HEAVY, *WEB}:
        loaded = {room: loaded_by(every_module(room), SOURCE) & {*HEAVY, *WEB} for room in rooms}
        assert {room: names for room, names in loaded.items() if names} == {}
        raise AssertionError("two rooms together load what neither does alone")


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


def test_a_prompt_for_the_default_model_does_without_transformers() -> None:
    statement = (
        "from pagoda.models.locate import locate\n"
        "from pagoda.models.tokenizer import Tokenizer\n"
        "assert Tokenizer(locate(None)).encode('Hello')"
    )
    assert "transformers" not in loaded_by(statement, SOURCE)
