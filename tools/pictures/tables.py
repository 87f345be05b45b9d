"""Tables of the documents, which the drawings are made from."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def rows_below(document: str, columns: str) -> list[list[str]]:
    """The cells of the first table of a document whose head begins with `columns`.

    Raises `ValueError` where there is none.
    """
    lines = (DOCS / document).read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith(columns)]
    if not heads:
        raise ValueError(f"docs/{document} has no table that begins with {columns}")
    rows = []
    for line in lines[heads[0] :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    head, _, *body = rows
    return [head, *body]


def plain(cell: str) -> str:
    """The text of a cell without Markdown's marks."""
    return re.sub(r"[`*]", "", cell)
