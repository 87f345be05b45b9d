"""Configs that lack fields, and which fields a reader asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from pagoda.models.config import ModelConfig

T = TypeVar("T")
Config = dict[str, Any]
Field = tuple[str, ...]
"""Its name, behind those of the sections that it is in."""


class NotedFields(dict[str, Any]):
    """A config, or a section of one, that notes under which names it is asked for fields."""

    def __init__(self, values: Mapping[str, Any], names: set[str]) -> None:
        super().__init__(values)
        self._names = names

    def get(self, name: str, default: object = None) -> Any:
        self._names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self._names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._names.add(str(name))
        return super().__contains__(name)


@contextmanager
def noted_fields() -> Iterator[set[str]]:
    """The names of fields that any config is asked for, whatever it has."""
    names: set[str] = set()
    make = ModelConfig.__init__

    def make_noted(own: ModelConfig, values: Mapping[str, Any], prefix: str = "") -> None:
        make(own, NotedFields(values, names), prefix)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelConfig, "__init__", make_noted)
        yield names


def fields_of(config: Mapping[str, Any]) -> list[Field]:
    """The fields of a config and of the sections in it, but not of what sees."""
    found: list[Field] = []
    for name, value in config.items():
        found.append((name,))
        if isinstance(value, dict) and name != "vision_config":
            found += [(name, *inner) for inner in fields_of(value)]
    return found


def named(fields: Iterable[Field]) -> str:
    return " and ".join(".".join(field) for field in fields)


def without(config: Config, *fields: Field) -> Config:
    """A config without these fields, which shares all other sections with the one given."""
    for name, *inner in fields:
        if not inner:
            config = {own: value for own, value in config.items() if own != name}
        elif config.get(name):
            config = {**config, name: without(config[name], tuple(inner))}
    return config


def nulled(config: Config, *fields: Field) -> Config:
    """A config with null in these fields, likewise."""
    for name, *inner in fields:
        if not inner:
            config = {**config, name: None}
        elif config.get(name):
            config = {**config, name: nulled(config[name], tuple(inner))}
    return config


def each_missing(
    config: Config, fields: Sequence[Field], read: Callable[[Config], T]
) -> tuple[dict[Field, T], list[Field]]:
    """What is read where one field is missing, for each of these that is asked for, in the whole
    config or where another is missing; and the others.

    Nobody can tell whether any of the others is there.
    """
    found: dict[Field, T] = {}
    with noted_fields() as asked:
        read(config)
        while left := [each for each in fields if each[-1] in asked and each not in found]:
            for field in left:
                found[field] = read(without(config, field))
    return found, [field for field in fields if field not in found]
