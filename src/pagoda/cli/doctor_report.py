"""A diagnosis as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pagoda.doctor import Advice, Answer, Diagnosis, Evidence, Finding
from pagoda.doctor.wording import count, gigabytes, percent, seconds

_QUESTIONS = {
    "bound": "What bounds it?",
    "bandwidth": "How near to the memory's bandwidth?",
    "cache": "What is the cache doing?",
    "next": "What next?",
}
_NAMES = {"pagoda": "Pagoda", "vllm": "vLLM"}
_INDENT = 3


def report(url: str, diagnosis: Diagnosis) -> RenderableType:
    """The four answers, what was found, and what is not known."""
    parts: list[RenderableType] = [_head(url, diagnosis)]
    for number, answer in enumerate(diagnosis.answers, start=1):
        parts += ["", *_answer(number, answer)]
        if answer.question == "cache":
            parts += [part for finding in diagnosis.findings for part in _finding(finding)]
        if answer.question == "next":
            parts += _others(diagnosis.advice)
    if diagnosis.missing:
        told = f"Not told by this server: {', '.join(diagnosis.missing)}."
        parts += ["", Text(told, style="dim")]
    return Group(*parts)


def _head(url: str, diagnosis: Diagnosis) -> Text:
    replicas = len(diagnosis.engines)
    together = f", {replicas} engines together" if replicas > 1 else ""
    return Text(
        f"{url}: {_NAMES[diagnosis.engine]}, {diagnosis.model_name}{together}; "
        f"{diagnosis.num_scrapes} readings in {seconds(diagnosis.duration_s)}"
    )


def _answer(number: int, answer: Answer) -> Iterator[RenderableType]:
    verdict = answer.verdict.replace("_", " ")
    head = Text(f"{number}. {_QUESTIONS[answer.question]} ")
    yield head.append(verdict, style="bold").append(f"  (confidence: {answer.confidence})", "dim")
    yield _indented(Text(answer.summary))
    yield from _evidence(answer.evidence)


def _finding(finding: Finding) -> Iterator[RenderableType]:
    style, word = ("bold red", "change") if finding.severity == "change" else ("yellow", "note")
    text = Text(f"{word}: ", style=style)
    text.append(f"{finding.code.replace('_', ' ')}  ", style="bold")
    text.append(f"(confidence: {finding.confidence})\n", style="dim")
    yield _indented(text.append(finding.summary, style="default not bold"))
    yield from _evidence(finding.evidence)


def _others(advice: Sequence[Advice]) -> Iterator[RenderableType]:
    for other in advice[1:]:
        text = Text("or: ", style="bold")
        yield _indented(text.append(f"{other.action} {other.effect}", style="not bold"))


def _evidence(evidence: Sequence[Evidence]) -> Iterator[RenderableType]:
    if not evidence:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for one in evidence:
        told = Text(one.meaning).append(f"  {one.metric}", style="dim")
        table.add_row(_figure(one), told)
    yield Padding(table, (0, 0, 0, 2 * _INDENT))


def _figure(evidence: Evidence) -> str:
    match evidence.unit:
        case "share":
            return percent(evidence.value)
        case "s":
            return seconds(evidence.value)
        case "bytes":
            return gigabytes(evidence.value)
        case "bytes/s":
            return f"{gigabytes(evidence.value)}/s"
        case unit:
            return f"{count(evidence.value)} {unit}".rstrip()


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, _INDENT))
