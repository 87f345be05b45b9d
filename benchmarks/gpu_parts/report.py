"""The tables of a run as Markdown, from its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gpu_parts.results import Row

Cell = Callable[[Row], Any]
Columns = dict[str, Cell]


def markdown(content: Row) -> str:
    """All that a run has found so far; sections without figures are left out."""
    rows = _best_ways([row for job in content["jobs"].values() for row in job["rows"]])
    sections = [_about(content)]
    for title, wanted, columns in TABLES:
        found = [row for row in rows if wanted(row)]
        if found:
            sections.append(f"### {title}\n\n{table(columns, found)}")
    peers = list(_ratios(rows))
    if peers:
        sections.append("### Beside transformers\n\n" + table(_RATIOS, peers))
    sections += _notes(content)
    return "\n\n".join(sections)


def table(columns: Columns, rows: Iterable[Row]) -> str:
    """One line for each row."""
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[str(cell(row)) for cell in columns.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _about(content: Row) -> str:
    about, limits = content["about"], content.get("limits")
    versions = ", ".join(
        f"{name} {version}" for name, version in about["versions"].items() if version
    )
    text = f"{about.get('device', 'No device')}, {about.get('dtype', 'no dtype')}; {versions}."
    if limits is not None:
        text += (
            f" Memory copies at {limits['copy_bandwidth'] / 1e9:,.0f} GB/s, read and written; "
            f"matrix products run at {limits['product_rate'] / 1e12:,.0f} TFLOP/s."
        )
    return text


def _notes(content: Row) -> list[str]:
    """What failed, and what was left out."""
    sections = []
    for title, kind, cause in (("Failed", "failures", "error"), ("Left out", "left_out", "reason")):
        lines = [
            f"- {name}: {each['what']}: {each[cause]}"
            for name, job in content["jobs"].items()
            for each in job[kind]
        ]
        if lines:
            sections.append(f"### {title}\n\n" + "\n".join(lines))
    return sections


def _ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Ratios of every workload that both Pagoda and another engine have run."""
    timed = [row for row in rows if row.get("kind") == "workload"]
    own = {(row["model"], row["workload"]): row for row in timed if row["engine"] == "pagoda"}
    for row in timed:
        mine = own.get((row["model"], row["workload"]))
        if row["engine"] != "pagoda" and mine is not None:
            yield {**row, "ratio": mine["best_seconds"] / row["best_seconds"]}


def _best_ways(rows: Sequence[Row]) -> list[Row]:
    """The fastest of the ways in which an engine did the same."""
    best: dict[tuple[str, ...], Row] = {}
    kept: list[Row] = []
    for row in rows:
        if "bound" not in row:
            kept.append(row)
            continue
        key = (row["kernel"], row["case"], row["engine"])
        if key not in best or row["median_seconds"] < best[key]["median_seconds"]:
            best[key] = row
    return [*best.values(), *kept]


def _percent(name: str) -> Cell:
    return lambda row: f"{row[name]:.0%}"


def _microseconds(name: str) -> Cell:
    return lambda row: f"{row[name] * 1e6:,.1f}"


def _seconds(name: str) -> Cell:
    return lambda row: f"{row[name]:.2f}"


def _whole(name: str) -> Cell:
    return lambda row: f"{row[name]:,.0f}"


def _plain(name: str) -> Cell:
    return lambda row: row[name]


def _has(name: str) -> Callable[[Row], bool]:
    return lambda row: name in row


def _is(kind: str) -> Callable[[Row], bool]:
    return lambda row: row.get("kind") == kind


def _rate(row: Row) -> str:
    """GB/s where memory is the bound, else TFLOP/s."""
    if row["bound"] == "product":
        return f"{row['operations'] / row['median_seconds'] / 1e12:,.0f} TFLOP/s"
    return f"{row['bytes'] / row['median_seconds'] / 1e9:,.0f} GB/s"


_RATIOS: Columns = {
    "model": _plain("model"),
    "workload": _plain("workload"),
    "engine": _plain("engine"),
    "seconds": _seconds("best_seconds"),
    "tokens/s": _whole("tokens_per_second"),
    "pagoda ÷ it": _seconds("ratio"),
}

TABLES: tuple[tuple[str, Callable[[Row], bool], Columns], ...] = (
    (
        "Kernels",
        _has("bound"),
        {
            "kernel": _plain("kernel"),
            "case": _plain("case"),
            "engine": lambda row: f"{row['engine']}, {row['way']}" if row["way"] else row["engine"],
            "median, µs": _microseconds("median_seconds"),
            "best, µs": _microseconds("best_seconds"),
            "rate": _rate,
            "of the limit": _percent("share"),
            "relative error": lambda row: (
                f"{row['relative_error']:.1e}" if "relative_error" in row else "–"
            ),
        },
    ),
    (
        "Against float64",
        _has("largest_relative_error"),
        {
            "kernel": _plain("kernel"),
            "dtype": _plain("dtype"),
            "shapes": _plain("num_shapes"),
            "largest relative error": lambda row: f"{row['largest_relative_error']:.1e}",
        },
    ),
    (
        "One stream",
        _is("stream"),
        {
            "model": _plain("model"),
            "tokens/s": lambda row: f"{row['tokens_per_second']:,.1f}",
            "step, ms": lambda row: f"{row['step_seconds'] * 1e3:.2f}",
            "of weights ÷ bandwidth": _percent("share"),
        },
    ),
    (
        "Batches",
        _is("batch"),
        {
            "model": _plain("model"),
            "sequences": _plain("batch"),
            "context": _plain("context"),
            "tokens/s": _whole("tokens_per_second"),
            "step, ms": lambda row: f"{row['step_seconds'] * 1e3:.2f}",
            "of the limit": _percent("share"),
        },
    ),
    (
        "Workloads",
        lambda row: _is("workload")(row) and row["engine"] == "pagoda",
        {
            "model": _plain("model"),
            "workload": _plain("workload"),
            "tokens in": _whole("prompt_tokens"),
            "tokens out": _whole("output_tokens"),
            "seconds": _seconds("best_seconds"),
            "tokens/s": _whole("tokens_per_second"),
            "roofline, s": _seconds("roofline_seconds"),
            "of the limit": _percent("share"),
        },
    ),
    (
        "The same answers",
        _is("promise"),
        {
            "model": _plain("model"),
            "dtype": _plain("dtype"),
            "against a batched miss with graphs": _plain("way"),
            "answers that differ": lambda row: f"{row['different_answers']} of {row['answers']}",
            "tokens that differ": lambda row: f"{row['different_tokens']} of {row['tokens']}",
        },
    ),
)
"""Title, the rows that belong there, and the columns."""
