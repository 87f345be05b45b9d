"""What a step and a token of a prompt cost, fitted to what each short time held.

    time between two scrapes  ≈  a × steps  +  b × tokens of prompts computed

by least squares, with the standard error of b. Steps that hold prompts and steps that do not must
both have come up, in changing proportion, for it to say anything. Time in which the engine stood
still would be priced as steps are, so a request must have run at every scrape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagoda.doctor.window import Window

_LEAST = 8
"""Times between scrapes, of which two go into the fit."""
_CLEAR = 3.0
"""Standard errors that b must be away from nothing."""
_ALIKE = 1 - 1e-9
"""Squared cosine of steps and tokens from which on nothing tells them apart."""


@dataclass(frozen=True, slots=True)
class PromptTime:
    """Share of the working time that computing prompts took."""

    share: float
    error: float
    """Its standard error."""


def fitted_prompt_time(window: Window) -> PromptTime | None:
    """What the fit says; None where the window held too little to tell."""
    name = "iteration_tokens_total"
    if not window.has(name) or window.share_of_time("num_requests_running") != 1.0:
        return None
    steps, tokens = window.increases(f"{name}_count"), window.increases(f"{name}_sum")
    generated = window.increases("generation_tokens_total")
    rows = [
        (s, t - g, seconds)
        for s, t, g, seconds in zip(steps, tokens, generated, window.intervals_s, strict=True)
        if s > 0
    ]
    if len(rows) < _LEAST:
        return None
    held, times = np.array([row[:2] for row in rows]), np.array([row[2] for row in rows])
    normal = held.T @ held
    alike = normal[0, 1] ** 2 / (normal[0, 0] * normal[1, 1]) if normal[1, 1] > 0 else 1.0
    if alike > _ALIKE:
        return None
    cost = np.linalg.solve(normal, held.T @ times)
    variance = ((times - held @ cost) ** 2).sum() / (len(rows) - 2)
    error = float(np.sqrt(np.linalg.inv(normal)[1, 1] * variance))
    if cost[0] <= 0 or cost[1] <= _CLEAR * error:
        return None
    for_each = held[:, 1].sum() / times.sum()
    return PromptTime(min(float(cost[1] * for_each), 1.0), error * float(for_each))
