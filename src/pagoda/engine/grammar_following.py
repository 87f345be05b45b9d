"""Grammars before a step: which tokens every constrained sequence may say next."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pagoda.engine.choice import Choice
from pagoda.engine.grammar import MatchError
from pagoda.errors import PagodaError

logger = logging.getLogger("pagoda")


def follow_grammars(choices: Iterable[Choice]) -> dict[str, PagodaError]:
    """Read the newest tokens of `choices` and work out the masks that the sampler takes.

    Returns why requests must end whose grammar cannot be followed any further, by their ids.
    """
    refused: dict[str, PagodaError] = {}
    for choice in choices:
        request = choice.sequence.request
        if choice.sequence.ending is None and request.request_id not in refused:
            try:
                choice.follow_grammar()
            except MatchError as error:
                wanted = request.sampling.structured_outputs
                assert wanted is not None, "a grammar that nobody asked for"
                logger.warning("request %s is ended: %s", request.request_id, error)
                limit = f"cannot be followed any further: {error}"
                refused[request.request_id] = wanted.refuse(limit)
    return refused
