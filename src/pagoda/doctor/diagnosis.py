"""What the doctor says: answers to four questions, and what should change.

Diagnosis
├── Answer     bound · bandwidth · cache · next       each with its Evidence
└── Finding    something to change or to know          … and with Advice
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Confidence = Literal["high", "medium", "low"]
Question = Literal["bound", "bandwidth", "cache", "next"]
Severity = Literal["change", "note"]
Kind = Literal["flag", "prompts", "load", "software", "hardware"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One figure, and the metric or metrics it comes from."""

    metric: str
    """With the engine's prefix; what was told by the caller is called by its flag."""
    value: float
    unit: str
    """Empty for a count."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question."""

    question: Question
    verdict: str
    """One word, for programs."""
    summary: str
    confidence: Confidence
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do."""

    kind: Kind
    action: str
    """A sentence."""
    effect: str
    """What it would buy at best, and what it costs."""
    flag: str | None = None
    """The engine's flag that changes."""
    current: str | None = None
    proposed: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was found out."""

    code: str
    """One word, for programs."""
    severity: Severity
    summary: str
    confidence: Confidence
    advice: tuple[Advice, ...] = ()
    """The best first."""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything the doctor has to say about one window."""

    engine: str
    model_name: str
    engines: tuple[str, ...]
    """Replicas, all taken together."""
    duration_s: float
    num_scrapes: int
    num_restarts: int
    answers: tuple[Answer, ...]
    """In the order in which they are asked: bound, bandwidth, cache, next."""
    findings: tuple[Finding, ...]
    """What should change comes first."""
    advice: tuple[Advice, ...]
    """What to do next, the best first."""
    missing: tuple[str, ...]
    """Metrics that would have been used, and that the engine does not have."""

    @property
    def is_healthy(self) -> bool:
        """Nothing should change."""
        return all(finding.severity == "note" for finding in self.findings)

    def answer(self, question: Question) -> Answer:
        return next(answer for answer in self.answers if answer.question == question)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        shown = asdict(self)
        return {"healthy": self.is_healthy, **shown}
