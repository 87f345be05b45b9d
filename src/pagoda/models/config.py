"""A model's configuration: one raw mapping, whichever kind of file it was read from.

The names are those of a Hugging Face `config.json`, in the form of transformers 4 (`rope_theta`,
`rope_scaling`) or 5 (`rope_parameters`); the metadata of a GGUF file is put under the same names
(`pagoda.models.gguf_config`). Values are checked when they are asked for, so that a wrong config
is refused by the name of the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.json_file import read_json

CONFIG_FILE = "config.json"
_LARGEST = 2**50
"""No size of a model comes near; sums and products of larger ones would leave the floats."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Typed access to a raw configuration.

    A field that is missing or null takes the default; a required one is then a `ModelError` that
    names the field, as is any value of another type or out of range.
    """

    values: Mapping[str, Any]
    prefix: str = ""
    """Stands before a field's name in errors, e.g. `rope_parameters.`."""

    def integer(self, name: str, *, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; required where there is no default."""
        value = self.optional_integer(name, minimum=minimum)
        if value is None:
            value = default
        if value is None:
            raise self.missing(name)
        return value

    def optional_integer(
        self, name: str, *, minimum: int = 1, absent: int | None = None
    ) -> int | None:
        """A whole number of at least `minimum`; None where the field is null, `absent` if missing.

        To tell the two apart matters where a family's default is a number but null means none.
        """
        value = self.values.get(name, absent)
        if value is None:
            return None
        if type(value) is not int or value < minimum:
            raise self.error(name, value, f"must be a whole number of at least {minimum}")
        if value > _LARGEST:
            raise self.error(name, value, f"must be at most {_LARGEST}")
        return value

    def number(self, name: str, *, default: float | None = None, minimum: float = 0.0) -> float:
        """A finite number above `minimum`; required where there is no default."""
        value = self.optional_number(name, minimum=minimum)
        if value is None:
            value = default
        if value is None:
            raise self.missing(name)
        return value

    def optional_number(self, name: str, *, minimum: float = 0.0) -> float | None:
        """A finite number above `minimum`, or None where the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return None
        # compared before it is made a float, for which it may be too large
        if type(value) not in (int, float) or not minimum < value < math.inf:
            raise self.error(name, value, f"must be a number above {minimum:g}")
        if type(value) is int and value > _LARGEST:
            raise self.error(name, value, f"must be at most {_LARGEST}")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.error(name, value, "must be true or false")
        return value

    def string(self, name: str, *, default: str | None = None) -> str:
        """A string that is not empty; required where there is no default."""
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.missing(name)
        if type(value) is not str or not value:
            raise self.error(name, value, "must be a string")
        return value

    def items(self, name: str, kind: type, *, length: int) -> tuple[Any, ...] | None:
        """The first `length` items of a list of `kind`, or None where it is missing or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) not in (list, tuple) or any(type(item) is not kind for item in value):
            raise self.error(name, value, f"must be a list of {kind.__name__}")
        if len(value) < length:
            raise self.error(name, value, f"must have at least {length} items, one for each layer")
        return tuple(value[:length])

    def pair(self, name: str) -> tuple[int, int] | None:
        """Two whole numbers of at least 1, or None where the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return None
        is_pair = type(value) in (list, tuple) and len(value) == 2
        if not is_pair or any(type(size) is not int or size < 1 for size in value):
            raise self.error(name, value, "must be two whole numbers of at least 1")
        if max(value) > _LARGEST:
            raise self.error(name, value, f"must be at most {_LARGEST}")
        return value[0], value[1]

    def section(self, name: str) -> ModelConfig | None:
        """A mapping inside this one, or None where it is missing, null or empty."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(name, value, "must be an object with named fields")
        if not value:
            return None
        return ModelConfig(value, f"{self.prefix}{name}.")

    def error(self, name: str, value: object, limit: str) -> ModelError:
        """The refusal of one field's value."""
        return ModelError(f"{self.prefix}{name}", value, limit)

    def unsupported(self, name: str, value: object, limit: str) -> UnsupportedModelError:
        """The refusal of a value that makes sense and is not covered."""
        return UnsupportedModelError(f"{self.prefix}{name}", value, limit)

    def missing(self, name: str) -> ModelError:
        """The refusal of a config that lacks a field."""
        return self.error(name, None, "the model's config lacks this field, which is needed")


def read_directory_config(directory: Path) -> ModelConfig:
    """The config of a model directory in the Hugging Face form."""
    path = directory / CONFIG_FILE
    if not path.is_file():
        found = ", ".join(sorted(file.name for file in directory.glob("*.gguf")))
        advice = f"; name the file itself: {found}" if found else ""
        raise ModelError("model", str(directory), f"the directory holds no {CONFIG_FILE}{advice}")
    return ModelConfig(read_json(path))
