"""Numbers in a body, also where a client writes them as text."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_REAL = re.compile(r"-?[0-9]{1,19}(\.[0-9]{0,19})?", re.ASCII)


def _whole(value: object) -> object:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _real(value: object) -> object:
    return float(value) if isinstance(value, str) and _REAL.fullmatch(value) else value


LaxInt = Annotated[int, BeforeValidator(_whole)]
"""5, 5.0 or "5"."""
LaxFloat = Annotated[float, BeforeValidator(_real)]
"""0.5 or "0.5"."""

LAX: dict[type, Any] = {int: LaxInt, float: LaxFloat, bool: bool}
"""How a body takes a value of this type."""
