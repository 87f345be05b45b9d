"""Rooms import only downwards.

`ROOMS` is the one place that says which room may use which; the design document tells the same in
words. The syntax trees of the whole package are walked: imports inside functions and those for type
checkers count too. A second check finds circles among modules, and leaves out only what a function
imports when it is called.
"""

from __future__ import annotations

import ast
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = "pagoda"


@dataclass(frozen=True)
class Room:
    """One part of the package: its floor, and what it may use above floor 0, which is open to all.

    `uses` holds rooms or single modules ("cache.spec"), with `ALL_BELOW` for every lower floor.
    `third_party`: None allows any distribution but the `banned` ones; else only those named.
    """

    floor: int
    uses: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()
    third_party: tuple[str, ...] | None = None


ALL_BELOW = "all below"
NO_TORCH = ("torch", "triton", "numba", "transformers", "safetensors")

ROOMS = {
    "errors": Room(0, third_party=()),
    "byte_size": Room(0, uses=("errors",), third_party=()),
    "structured": Room(0, uses=("errors",), third_party=()),
    "limits": Room(0, uses=("errors",), third_party=()),
    "truncation": Room(0, uses=("errors", "limits"), third_party=()),
    "cache_hint": Room(0, uses=("errors",), third_party=()),
    "request": Room(
        0, uses=("cache_hint", "errors", "limits", "structured", "truncation"), third_party=()
    ),
    "cache": Room(1, third_party=("numpy",)),
    "kernels": Room(1),
    "codecs": Room(2, uses=("cache.own_format", "cache.ports", "kernels")),
    "retention": Room(2, uses=("cache.ports", "kernels")),
    "tiers": Room(2, banned=NO_TORCH),
    "storage": Room(
        2,
        uses=(
            "cache.attention_layer",
            "cache.latent",
            "cache.own_format",
            "cache.spec",
            "codecs",
            "kernels",
        ),
    ),
    "models": Room(
        2,
        uses=(
            "cache.attention_layer",
            "cache.latent",
            "cache.layers",
            "cache.spec",
            "cache.window",
            "kernels.block_types",
        ),
    ),
    "scheduling": Room(3, uses=("cache", "sizing"), banned=NO_TORCH),
    "execution": Room(
        3,
        uses=(
            "cache.slots",
            "cache.window",
            "codecs",
            "kernels",
            "storage",
            "models",
            "sizing",
        ),
    ),
    "sizing": Room(
        2,
        uses=(
            "cache",
            "kernels.block_types",
            "kernels.gpu.expert_tiles",
            "kernels.gpu.parts",
            "kernels.page_layout",
            "kernels.vector_code",
            "models.decoder",
        ),
        banned=NO_TORCH,
    ),
    "planning": Room(
        3,
        uses=(
            "cache",
            "sizing",
            "models.config",
            "models.decoder",
            "models.registry",
            "models.gguf",
            "models.gguf_config",
            "models.names",
            "models.part",
            "models.quantization",
            "models.weight_parts",
            "tiers.credentials",
            "tiers.duration",
            "tiers.gate",
            "tiers.kinds",
            "tiers.tier_option",
        ),
        banned=NO_TORCH,
    ),
    "roofline": Room(3, uses=("cache", "models.decoder"), banned=NO_TORCH),
    "doctor": Room(3, uses=("sizing.measured_cost",), banned=NO_TORCH),
    "validation": Room(4, uses=("cache", "models.config", "sizing", "planning"), banned=NO_TORCH),
    "calculator": Room(4, uses=("cache", "models.config", "sizing", "planning"), banned=NO_TORCH),
    # Neither the planner nor the doctor: what engine and planner share is in `sizing`.
    "engine": Room(
        4,
        uses=(
            "cache",
            "kernels",
            "codecs",
            "retention",
            "tiers",
            "storage",
            "models",
            "sizing",
            "scheduling",
            "execution",
            "roofline",
        ),
    ),
    "replay": Room(
        4, uses=("cache", "sizing", "scheduling", "planning", "roofline"), banned=NO_TORCH
    ),
    "lab": Room(
        4, uses=("cache", "models.tokenizer", "storage", "tiers", "sizing", "roofline", "engine")
    ),
    "server": Room(5, uses=(ALL_BELOW,)),
    "cluster": Room(5, uses=(ALL_BELOW,)),
    # `pagoda serve` starts the server.
    "cli": Room(5, uses=(ALL_BELOW, "server")),
}


@dataclass(frozen=True)
class Import:
    """One import statement: the module it stands in and the one it names, both dotted."""

    importer: str
    target: str
    line: int
    at_load: bool
    """It runs when the module is loaded: neither in a function nor for type checkers alone."""
    in_function: bool


@dataclass(frozen=True)
class Breach:
    """An import that the table forbids."""

    importer: str
    line: int
    reason: str


class _ImportFinder(ast.NodeVisitor):
    def __init__(self, module: str, modules: frozenset[str]) -> None:
        self.module = module
        self.modules = modules
        self.imports: list[Import] = []
        self._functions, self._checkers = 0, 0
        """How many of them, and of the parts for type checkers alone, are around a place."""

    def _add(self, target: str, line: int) -> None:
        at_load = not self._functions and not self._checkers
        self.imports.append(Import(self.module, target, line, at_load, self._functions > 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            self._add(submodule if submodule in self.modules else base, node.lineno)
            if base == PACKAGE and submodule not in self.modules and alias.name != "__version__":
                self._add(f"{PACKAGE}.__init__", node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in ("import_module", "__import__") and self.module != PACKAGE:
            first = node.args[0] if node.args else None
            literal = isinstance(first, ast.Constant) and isinstance(first.value, str)
            self._add(first.value if literal else "<computed>", node.lineno)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)
            return
        self._checkers += 1
        for child in node.body:
            self.visit(child)
        self._checkers -= 1
        for child in node.orelse:
            self.visit(child)


def module_name(path: Path, source: Path) -> str:
    parts = list(path.relative_to(source).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: Path) -> list[Import]:
    """Every import in the package under `source`."""
    paths = {module_name(path, source): path for path in sorted(source.glob(f"{PACKAGE}/**/*.py"))}
    modules = frozenset(paths)
    texts = {module: path.read_text("utf-8") for module, path in paths.items()}
    return [each for name in texts for each in _imports_in(name, texts[name], modules)]


@cache
def _imports_in(module: str, text: str, modules: frozenset[str]) -> list[Import]:
    """Those of one module; most of a copy of the package are those of the package."""
    finder = _ImportFinder(module, modules)
    finder.visit(ast.parse(text, filename=module))
    return finder.imports


def breaches(source: Path) -> list[Breach]:
    """What the package under `source` imports against the table of rooms."""
    found = []
    for item in imports_of(source):
        reason = why_forbidden(item)
        if reason:
            found.append(Breach(item.importer, item.line, reason))
    return found


def why_forbidden(item: Import) -> str | None:
    """The reason why an import is a breach, or None."""
    if item.importer == PACKAGE:
        return "the package loads its public names lazily" if item.at_load and _ours(item) else None
    name = _room_of(item.importer)
    room = ROOMS.get(name)
    if room is None:
        return f"{name} is in no row of the table"
    if item.target.startswith((".", "<")):
        return f"{item.target}: imports are absolute and written out"
    if not _ours(item):
        return _why_foreign_is_forbidden(name, room, item.target)
    if item.target == PACKAGE:
        return None
    target = _room_of(item.target)
    if target == name or _may_use(room, item.target):
        return None
    return f"{name} (floor {room.floor}) must not use {item.target}"


def _ours(item: Import) -> bool:
    return item.target.split(".")[0] == PACKAGE


def _room_of(module: str) -> str:
    name = [*module.split("."), ""][1]
    return "cli" if name == "__main__" else name


def _may_use(room: Room, target: str) -> bool:
    target_room = ROOMS.get(_room_of(target))
    if target_room is None:
        return False
    if target_room.floor == 0 and room.floor > 0:
        return True
    if ALL_BELOW in room.uses and target_room.floor < room.floor:
        return True
    allowed = [f"{PACKAGE}.{use}" for use in room.uses]
    return any(target == name or target.startswith(f"{name}.") for name in allowed)


def _why_foreign_is_forbidden(name: str, room: Room, target: str) -> str | None:
    distribution = target.split(".")[0]
    if distribution in sys.stdlib_module_names:
        return None
    if distribution in room.banned:
        return f"{name} must do without {distribution}"
    if room.third_party is not None and distribution not in room.third_party:
        allowed = " + ".join(("stdlib", *room.third_party))
        return f"{name} is {allowed}, not {distribution}"
    return None


def circle(source: Path) -> list[str]:
    """Modules that import one another in a ring, be it for type checkers; empty where none do."""
    edges: dict[str, list[str]] = {}
    for item in imports_of(source):
        if not item.in_function and _ours(item) and item.target != item.importer:
            edges.setdefault(item.importer, []).append(item.target)
    done: set[str] = set()
    for start in sorted(edges):
        ring = _ring_from(start, edges, done, [])
        if ring:
            return ring
    return []


def _ring_from(
    module: str, edges: dict[str, list[str]], done: set[str], path: list[str]
) -> list[str]:
    if module in path:
        return [*path[path.index(module) :], module]
    if module in done:
        return []
    for target in edges.get(module, []):
        ring = _ring_from(target, edges, done, [*path, module])
        if ring:
            return ring
    done.add(module)
    return []


def _written(source: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = source / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return source


@pytest.fixture
def real_copy(tmp_path: Path) -> Path:
    """A copy of the real package, to plant breaches in."""
    shutil.copytree(SOURCE / PACKAGE, tmp_path / PACKAGE)
    return tmp_path


def test_no_room_imports_upwards() -> None:
    assert breaches(SOURCE) == []


def test_no_circle_among_modules() -> None:
    assert circle(SOURCE) == []


def test_every_folder_is_in_the_table() -> None:
    folders = {path.parent.name for path in SOURCE.glob(f"{PACKAGE}/*/*.py")}
    modules = {path.stem for path in SOURCE.glob(f"{PACKAGE}/*.py")} - {"__init__", "__main__"}
    assert (folders | modules) - set(ROOMS) == set()


def test_uses_name_rooms_of_lower_floors_or_the_same() -> None:
    for room in ROOMS.values():
        for use in room.uses:
            if use != ALL_BELOW:
                assert ROOMS[use.split(".")[0]].floor <= room.floor


PLANTED = {
    "upwards": ("cache/spec.py", "from pagoda.engine import llm", "must not use pagoda.engine"),
    "inside a function": (
        "cache/spec.py",
        "def late():\n    import pagoda.server.app",
        "must not use pagoda.server.app",
    ),
    "for type checkers": (
        "kernels/paged.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pagoda.storage.kv import A",
        "must not use pagoda.storage.kv",
    ),
    "sideways": ("server/app.py", "import pagoda.cli.main", "must not use pagoda.cli.main"),
    "a room but not all of it": (
        "models/llama.py",
        "from pagoda.cache.pool import BlockPool",
        "models (floor 2) must not use pagoda.cache.pool",
    ),
    "a neighbour that is not listed": (
        "planning/planner.py",
        "from pagoda.models.weights import LayerWeights",
        "must not use pagoda.models.weights",
    ),
    "torch in the cache": ("cache/pool.py", "import torch", "cache is stdlib + numpy, not torch"),
    "torch in the scheduler": (
        "scheduling/step.py",
        "def late():\n    from torch import nn",
        "scheduling must do without torch",
    ),
    "the planner in the engine": (
        "engine/build.py",
        "def late():\n    from pagoda.planning import plan",
        "engine (floor 4) must not use pagoda.planning",
    ),
    "numpy on floor 0": ("errors.py", "import numpy as np", "errors is stdlib, not numpy"),
    "the package itself": ("engine/llm.py", "from pagoda import LLM", "pagoda.__init__"),
    "relative": ("engine/llm.py", "from . import sampler", "absolute"),
    "hidden in a string": (
        "cache/pool.py",
        "import importlib\nimportlib.import_module('pagoda.engine.llm')",
        "must not use pagoda.engine.llm",
    ),
    "computed": ("cache/pool.py", "name = 'to' + 'rch'\n__import__(name)", "written out"),
    "a room without a row": ("attic/box.py", "import os", "attic is in no row of the table"),
    "eager public names": ("__init__.py", "from pagoda.engine.llm import LLM", "lazily"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_breach_is_found(name: str, tmp_path: Path) -> None:
    path, text, reason = PLANTED[name]
    [breach] = breaches(_written(tmp_path, {path: text}))
    assert reason in breach.reason


@pytest.mark.parametrize("name", ["upwards", "inside a function", "torch in the cache"])
def test_a_breach_planted_in_the_real_package_is_found(name: str, real_copy: Path) -> None:
    path, text, reason = PLANTED[name]
    with (real_copy / PACKAGE / path).open("a", encoding="utf-8") as module:
        module.write(f"\n\n{text}\n")
    own = breaches(SOURCE)
    [breach] = [breach for breach in breaches(real_copy) if breach not in own]
    assert reason in breach.reason


def test_what_the_table_allows_passes(tmp_path: Path) -> None:
    source = _written(
        tmp_path,
        {
            "cache/__init__.py": "",
            "cache/pool.py": "import collections\nimport numpy\nfrom pagoda import errors",
            "errors.py": "",
            "storage/kv.py": "import torch\nfrom pagoda.cache import spec",
            "cache/spec.py": "from pagoda import __version__",
            "cli/main.py": "from pagoda.server.app import create_app",
            "lab/quality.py": "from pagoda.engine.llm import LLM",
        },
    )
    assert breaches(source) == []


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    files = {
        "cache/a.py": "from pagoda.cache.b import B",
        "cache/b.py": "from pagoda.cache import c",
        "cache/c.py": "if TYPE_CHECKING:\n    import pagoda.cache.a",
    }
    assert circle(_written(tmp_path, files)) == [
        "pagoda.cache.a",
        "pagoda.cache.b",
        "pagoda.cache.c",
        "pagoda.cache.a",
    ]


def test_a_circle_cut_by_a_function_is_none(tmp_path: Path) -> None:
    files = {
        "cache/a.py": "from pagoda.cache.b import B",
        "cache/b.py": "def late():\n    from pagoda.cache.a import A",
    }
    assert circle(_written(tmp_path, files)) == []
