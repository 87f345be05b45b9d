"""Fields that are not sent when they say nothing."""

from __future__ import annotations

from typing import Any

from pydantic import Field


def left_out() -> Any:
    """The default of a field that is not sent when it is None."""
    return Field(default=None, exclude_if=lambda value: value is None)
