"""The public names, pinned: a name joins or leaves only on purpose."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest

import pagoda

PUBLIC = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "EngineOptions",
    "Logprob",
    "PagodaError",
    "RefusedError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]


def test_public_names_are_pinned() -> None:
    assert pagoda.__all__ == PUBLIC
    assert dir(pagoda) == sorted(PUBLIC)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "__version__"])
def test_a_public_name_is_a_class_with_a_docstring(name: str) -> None:
    member = getattr(pagoda, name)
    assert inspect.isclass(member)
    assert member.__name__ == name
    assert inspect.getdoc(member)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pagoda' has no attribute 'Pagoda'"):
        _ = pagoda.Pagoda


def test_the_version_is_written_in_one_place() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "pagoda.__version__"}
    assert pagoda.__version__.count(".") == 2
