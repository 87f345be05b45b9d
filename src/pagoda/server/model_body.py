"""A body that may name the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from pydantic import model_validator

from pagoda.server.body import Body, Text
from pagoda.server.errors import UnknownModelError
from pagoda.server.inner_body import MOST_UNKNOWN


class ModelBody(Body):
    """What every body has."""

    model: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown(cls, given: Any) -> Any:
        """But for the first few names: to check many fields takes longer than to leave them out."""
        if not isinstance(given, dict):
            return given
        known = cls.model_fields.keys() | cls.looked_at
        unknown = islice((name for name in given if name not in known), MOST_UNKNOWN)
        kept = {name: value for name, value in given.items() if name in known}
        return kept | dict.fromkeys(unknown)

    def check(self, served_models: Sequence[str]) -> None:
        """Raises `InvalidRequestError` for what types alone cannot tell.

        That is an `UnknownModelError` where the model is asked for by none of its names.
        """
        self.refuse_uncovered()
        if self.model is not None and self.model not in served_models:
            raise UnknownModelError(self.model, served_models)
