"""What every scheme of quantised weights offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.quantised_matrix import QuantisedMatrix
from pagoda.models.schemes.stored_module import StoredModule


class Scheme(Protocol):
    """How a checkpoint says that its linear layers are stored."""

    @property
    def title(self) -> str:
        """As its makers write it."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Endings of a layer's tensors, behind its name and `separator`; `weight` may be a plain
        one."""
        ...

    @property
    def separator(self) -> str:
        """What stands between a layer's name and the ending."""
        ...

    @property
    def weight(self) -> str:
        """The ending of the plain tensor in their place, with what separates it."""
        ...

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names, or parts of names, of layers that are plain, as far as the config tells."""
        ...

    @property
    def left_aside(self) -> tuple[str, ...]:
        """Endings of tensors that are not needed where weights alone are quantised."""
        ...

    def presumed(self, columns: int, dtype: str) -> Coding:
        """Of a layer with rows of so many numbers, by the config alone; `dtype` is the model's."""
        ...

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """A layer's weight. Raises `ModelError` for tensors that do not go together."""
        ...


def group_size(section: ModelConfig) -> int | None:
    """Numbers of a row that share a scale; None: all of it. Raises `ModelError`."""
    size = section.optional_integer("group_size", minimum=-1, absent=128)
    if size == 0:
        raise section.error("group_size", size, "must be at least 1, or -1 for whole rows")
    return None if size == -1 else size


def names(section: ModelConfig, *fields: str) -> tuple[str, ...]:
    """The names that lists of a section hold, those that are missing left out."""
    found: list[str] = []
    for field in fields:
        section.items(field, str, length=0)  # refuses what is no list of names
        found += section.values.get(field) or ()
    return tuple(found)


def require_one_of(
    section: ModelConfig, name: str, value: object, covered: Sequence[object]
) -> None:
    """Refuse a field's value that is not covered, naming those that are."""
    if value not in covered:
        raise section.unsupported(name, value, f"covered are {', '.join(map(str, covered))}")
