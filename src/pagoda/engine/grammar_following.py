"""Grammars before a step: which tokens every constrained sequence may say next."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from pagoda.engine.choice import Choice
from pagoda.engine.grammar import MatchError
from pagoda.engine.mask_workers import MaskWorkers
from pagoda.errors import PagodaError
from pagoda.scheduling import InHand

logger = logging.getLogger("pagoda")

Refused = dict[str, PagodaError]


def follow_grammars(choices: Collection[Choice], workers: MaskWorkers, in_hand: InHand) -> Refused:
    """Read the newest tokens of `choices` and work out the masks that the sampler takes. Each is
    `in_hand` meanwhile.

    Returns why requests must end whose grammar cannot be followed any further, by their ids.
    """
    refused: Refused = {}
    due = []
    for choice in _going_on(choices, refused, in_hand):
        with _noted(choice, refused):
            matcher = choice.read_grammar()
            if matcher is not None:
                due.append(matcher)
    workers.work_out(due)
    for choice in _going_on(choices, refused, in_hand):
        with _noted(choice, refused):
            choice.follow_grammar()
    return refused


def _going_on(choices: Collection[Choice], refused: Refused, in_hand: InHand) -> Iterator[Choice]:
    for choice in choices:
        request_id = choice.sequence.request.request_id
        if choice.sequence.ending is None and request_id not in refused:
            in_hand.request_id = request_id
            yield choice
            in_hand.request_id = None


@contextmanager
def _noted(choice: Choice, refused: Refused) -> Iterator[None]:
    """A grammar that cannot be followed any further ends its request."""
    request = choice.sequence.request
    try:
        yield
    except MatchError as error:
        wanted = request.sampling.structured_outputs
        assert wanted is not None, "a grammar that nobody asked for"
        logger.warning("request %s is ended: %s", request.request_id, error)
        limit = f"cannot be followed any further: {error}"
        refused[request.request_id] = wanted.refuse(limit)
