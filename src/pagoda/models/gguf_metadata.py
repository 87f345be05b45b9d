"""The keys of a GGUF file's metadata that stand under its architecture's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.gguf import GGUFFile


@dataclass(frozen=True, slots=True)
class ArchitectureKeys:
    """Keys named without the architecture."""

    prefix: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, file: GGUFFile) -> ArchitectureKeys:
        """Those of a file."""
        return cls(f"{file.metadata['general.architecture']}.", file.metadata)

    def name(self, key: str) -> str:
        """The whole key."""
        return self.prefix + key

    def raw(self, key: str, default: Any = None) -> Any:
        """A value as it is there, `default` where it is not."""
        return self.values.get(self.name(key), default)

    def get(self, key: str, default: Any = None) -> Any:
        """A value; a list, one for each layer, is taken where all layers have the same."""
        value = self.raw(key, default)
        if type(value) is not list:
            return value
        if len(set(value)) != 1:
            raise self.unsupported(key, value, "layers that differ in this are not covered")
        return value[0]

    def needed(self, key: str) -> Any:
        """A value that has to be there."""
        value = self.get(key)
        if value is None:
            raise self.error(key, None, "the file's metadata lacks this key, which is needed")
        return value

    def require(self, wanted: Mapping[str, Any]) -> None:
        """Refuse a feature that is in use: a value, or a list's, other than the one that is wanted.

        A key that is missing says nothing.
        """
        for key, neutral in wanted.items():
            value = self.raw(key)
            if value is None:
                continue
            items = value if type(value) is list else [value]
            if any(item != neutral for item in items):
                raise self.unsupported(key, value, "this feature is not covered")

    def error(self, key: str, value: object, limit: str) -> ModelError:
        """The refusal of one key's value."""
        return ModelError(self.name(key), value, limit)

    def unsupported(self, key: str, value: object, limit: str) -> UnsupportedModelError:
        """The refusal of a value that makes sense and is not covered."""
        return UnsupportedModelError(self.name(key), value, limit)
