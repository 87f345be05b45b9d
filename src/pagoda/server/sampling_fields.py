"""The sampling parameters among the fields of a body."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, create_model

from pagoda.request import SAMPLING_LIMITS
from pagoda.server.numbers import LAX

B = TypeVar("B", bound=BaseModel)

_ASKED_OTHERWISE = ("logprobs", "prompt_alone")
"""Each route has its own fields for these."""

SAMPLING_FIELDS = tuple(name for name in SAMPLING_LIMITS if name not in _ASKED_OTHERWISE)
"""The numbers and switches of `SamplingParams` that a body has under their own names."""


def with_sampling_fields(body: type[B]) -> type[B]:
    """`body` with a field for each of `SAMPLING_FIELDS` that it does not declare itself.

    Absent or null, a field is None.
    """
    added: dict[str, Any] = {
        name: (LAX[SAMPLING_LIMITS[name].kind] | None, None)
        for name in SAMPLING_FIELDS
        if name not in body.model_fields
    }
    return create_model(
        body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **added
    )
