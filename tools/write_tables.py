"""Writes the tables of the documents that the code knows best: `make docs`.

A table stands between two comments that name it, and is replaced as a whole.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pagoda
from pagoda.cli.vllm_flags import vllm_flags_table
from pagoda.engine.sessions.desk import SessionDesk
from pagoda.engine.sessions.reports import ExportedSession, PresentSession, SavedSession
from pagoda.server.field_table import FIELD_ROWS
from pagoda.server.metric_rows import METRIC_ROWS
from pagoda.server.metrics import PREFIX
from python_reference import fields_of, methods_of

HELD = (
    *("EngineOptions", "SamplingParams", "StructuredOutputs"),
    *("RequestOutput", "CompletionOutput", "Logprob"),
)
OF_SESSIONS = (SavedSession, PresentSession, ExportedSession)
_TREATMENTS = ("done", "mapped", "ignored", "refused")
DOCS = Path(__file__).parent.parent / "docs"


def metrics_table() -> str:
    """What `/metrics` tells, a row a metric."""
    lines = ["| metric | kind | labels | |", "|---|---|---|---|"]
    for row in METRIC_ROWS:
        name = PREFIX + row.name + ("_total" if row.kind == "counter" else "")
        labels = " ".join(f"`{label}`" for label in sorted(row.labels))
        lines.append(f"| `{name}` | {row.kind} | {labels} | {row.help} |")
    return "\n".join(lines)


def fields_table() -> str:
    """What becomes of each field of a request, a row for those that have all else in common."""
    lines = ["| field | whose | | |", "|---|---|---|---|"]
    rows = sorted(FIELD_ROWS, key=lambda row: (_TREATMENTS.index(row.treatment), row.api))
    for (treatment, api, note, is_said), group in groupby(
        rows, key=lambda row: (row.treatment, row.api, row.note, row.is_said)
    ):
        names = ", ".join(f"`{row.name}`" for row in group)
        said = ", said" if treatment == "ignored" and is_said else ""
        lines.append(f"| {names} | {api} | {treatment}{said} | {note} |")
    return "\n".join(lines)


TABLES = {
    ("serving.md", "metrics"): metrics_table,
    ("serving.md", "fields"): fields_table,
    ("serving.md", "vLLM's flags"): vllm_flags_table,
    ("python.md", "LLM"): partial(methods_of, pagoda.LLM),
    ("python.md", "AsyncEngine"): partial(methods_of, pagoda.AsyncEngine, is_made=False),
    ("python.md", "SessionDesk"): partial(methods_of, SessionDesk, is_made=False),
    **{("python.md", kind.__name__): partial(fields_of, kind) for kind in OF_SESSIONS},
    **{("python.md", name): partial(fields_of, getattr(pagoda, name)) for name in HELD},
}
"""By document and name."""


def with_table(text: str, name: str, table: str) -> str:
    """The document with this table in place of the one that it has under the name."""
    pattern = rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)"
    written, count = re.subn(
        pattern, lambda match: match[1] + table + match[2], text, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"there are {count} places for the table {name}, not 1")
    return written


def main() -> None:
    for (document, name), table in TABLES.items():
        path = DOCS / document
        path.write_text(with_table(path.read_text("utf-8"), name, table()), "utf-8")


if __name__ == "__main__":
    main()
