"""A body that may name the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, model_validator

from pagoda.server.body import Body, Text
from pagoda.server.errors import UnknownModelError


class ModelBody(Body):
    """What every body has."""

    model: Text | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, given: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """Empties the object that was sent, which the web framework holds to the request's end."""
        body = check(given)
        if isinstance(given, dict):
            given.clear()
        return body

    def check(self, served_models: Sequence[str]) -> None:
        """Raises `InvalidRequestError` for what types alone cannot tell.

        That is an `UnknownModelError` where the model is asked for by none of its names.
        """
        self.refuse_uncovered()
        if self.model is not None and self.model not in served_models:
            raise UnknownModelError(self.model, served_models)
