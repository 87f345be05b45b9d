"""How long a step takes: a model of time, in place of a device."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from pagoda.errors import InvalidOptionError
from pagoda.planning.step_floor import StepFloor
from pagoda.scheduling import StepPlan


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step does, added up over its sequences."""

    num_sequences: int
    num_tokens: int
    """That are computed."""
    num_sampled: int
    """Sequences that draw a token."""
    num_context_tokens: int
    """Whose K and V are there when it is done, of all its sequences."""
    num_pairs: int
    """Of a token that is computed and one that it sees, itself too."""

    @classmethod
    def of(cls, plan: StepPlan) -> StepWork:
        num_tokens = num_sampled = num_context = num_pairs = 0
        for one in plan.sequences:
            start, stop = one.start, one.stop
            num_tokens += stop - start
            num_sampled += one.samples
            num_context += stop
            num_pairs += (stop - start) * (start + stop + 1) // 2
        return cls(len(plan.sequences), num_tokens, num_sampled, num_context, num_pairs)


class StepCost(Protocol):
    """From what a step does to the seconds that it takes."""

    def seconds(self, work: StepWork) -> float: ...


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds for each thing that a step does:

    step + token × tokens + draw × drawn tokens + context × context tokens + pair × pairs
    """

    step: float
    token: float
    context: float = 0.0
    pair: float = 0.0
    draw: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0:
                raise InvalidOptionError(f"step_cost {name}", value, "must be at least 0 seconds")
        if self.step + self.token <= 0:
            limit = "a step of one token must take some time"
            raise InvalidOptionError("step_cost", asdict(self), limit)

    def seconds(self, work: StepWork) -> float:
        return (
            self.step
            + self.token * work.num_tokens
            + self.draw * work.num_sampled
            + self.context * work.num_context_tokens
            + self.pair * work.num_pairs
        )


USUAL_COST = LinearCost(step=0.0075, token=0.00067, context=6.3e-7, pair=1.3e-7)
"""What `pagoda bench` found of SmolLM2-135M on two cores; see docs/replay.md."""


def parse_linear_cost(text: str) -> LinearCost:
    """From "step=0.004,token=4e-4", or a file of JSON with the same names.

    Raises `InvalidOptionError`.
    """
    names = [each.name for each in fields(LinearCost)]
    limit = f"seconds as {'=…,'.join(names)}=…, or a file of JSON with these names"
    given = _of_file(Path(text)) if "=" not in text else _of_text(text)
    if given is None or not given or not set(names) >= given.keys():
        raise InvalidOptionError("step_cost", text, limit)
    rest = dict.fromkeys(names, 0.0)
    return LinearCost(**{**rest, **given})  # type: ignore[arg-type]


def _of_text(text: str) -> dict[str, object] | None:
    parts = (part.partition("=") for part in text.split(","))
    try:
        return {name.strip(): float(value) for name, _, value in parts}
    except ValueError:
        return None


def _of_file(path: Path) -> dict[str, object] | None:
    try:
        given = json.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOptionError("step_cost", str(path), f"cannot be read: {reason}") from error
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


@dataclass(frozen=True, slots=True)
class FloorCost:
    """The least time of each step on a named machine: nothing is faster."""

    floor: StepFloor

    def seconds(self, work: StepWork) -> float:
        return self.floor.seconds(
            num_tokens=work.num_tokens,
            num_sampled=work.num_sampled,
            num_context_tokens=work.num_context_tokens,
            num_pairs=work.num_pairs,
        )
