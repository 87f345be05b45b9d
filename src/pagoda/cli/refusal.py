"""A refusal as the command line tells it: by the flag that was typed, not the field it sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.errors import ModelError, RefusedError, shorten

_FIELD = re.compile(r"(?<![\w/.'\"-])[a-z]+(?:_[a-z0-9]+)+(?![\w/.'\"-]\w)")
"""As fields of several words are written in the middle of a sentence, not in what was given."""


def refusal(error: RefusedError, flags: Mapping[str, str]) -> str:
    """The error's line with flags for fields, `flags` being those of the command that ran.

    Fields of a `ModelError` are those of the model's config, and stay.
    """
    if isinstance(error, ModelError):
        return str(error)
    name = flags.get(error.field, error.field)
    is_alone = name != error.field and (error.value is None or error.value is True)
    given = name if is_alone else f"{name}={shorten(error.value)}"
    limit = _FIELD.sub(lambda found: flags.get(found[0], found[0]), error.limit)
    return str(error).replace(error.line, f"{given}: {limit}")


def flags_of(command: Any, arguments: Sequence[str]) -> dict[str, str]:
    """The flags of what `arguments` begin with among a command's own, by their fields."""
    for name in arguments:
        own = getattr(command, "commands", {}).get(name)
        if own is None:
            break
        command = own
    options = (each for each in command.params if each.param_type_name == "option")
    return {each.name: each.opts[0] for each in options if each.name is not None}
