"""A run of the lab as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagoda.lab.passkey import PasskeyScore
from pagoda.lab.quality import Quality, Reading
from pagoda.lab.report import LabReport, MethodReport

_UNKNOWN = "–"
_FIRST = 1024
"""Where windows are longer, what comes before stands in a column of its own."""


def tables(report: LabReport) -> RenderableType:
    """Quality over bytes, then speed and passkeys, then what else is to be known."""
    return Group(
        _head(report),
        "",
        _quality_table(report),
        *_speed_and_passkeys(report),
        *(Text(note, style="dim") for note in _notes(report)),
    )


def _head(report: LabReport) -> Text:
    quality = report.full.quality
    told = "fewer than two windows" if quality is None else f"{quality.num_windows} windows"
    return Text(
        f"{report.model} in {report.dtype}; {report.text}: {told} of {report.window:,} tokens. "
        f"auto is the full cache, in {report.dtype}, which the others are compared with."
    )


def _quality_table(report: LabReport) -> Table:
    has_first = report.window > _FIRST
    table = _table(
        "bits a\nnumber",
        "bytes\na token",
        "perplexity",
        "\nchange",
        "95%\nof draws",
        *(["first\n1,024"] if has_first else []),
        "last\nhalf",
        "KL\nmean",
        "\n99%",
        "top-1\nagrees",
    )
    for each in report.methods:
        sizes = (f"{each.bits_per_number:.2f}", f"{each.bytes_per_token:,.0f}")
        table.add_row(str(each.method), *sizes, *_cells(each.quality, has_first))
    if report.noise is not None:
        name = f"auto, chunks of {report.noise_chunk}"
        table.add_row(name, "", "", *_cells(report.noise, has_first), style="dim")
    return table


def _cells(quality: Quality | None, has_first: bool) -> Iterator[str]:
    if quality is None:
        yield _UNKNOWN
        return
    change = quality.whole.change
    yield f"{quality.whole.perplexity:.3f}"
    yield _percent(quality.whole)
    yield f"{100 * change.low:+.1f}…{change.high:+.1%}"
    if has_first:
        yield _percent(quality.first)
    yield _percent(quality.last_half)
    yield f"{quality.kl_mean:.2g}"
    yield f"{quality.kl_p99:.2g}"
    yield f"{quality.top1:.1%}"


def _percent(reading: Reading) -> str:
    return f"{reading.change.mean:+.2%}"


def _speed_and_passkeys(report: LabReport) -> list[RenderableType]:
    """Nothing where neither was measured."""
    if not any(each.speed or each.passkey for each in report.methods):
        return []
    lengths = list(dict.fromkeys(score.length for score in report.full.passkey))
    depths = sorted({score.depth for score in report.full.passkey})
    shown = " ".join(f"{depth:.0%}" for depth in depths)
    table = _table(
        "prefill\ntokens/s",
        "decode\ntokens/s",
        *(f"passkeys, {length:,} tokens\nfound at {shown}" for length in lengths),
    )
    for each in report.methods:
        passkeys = (_found(each, length) for length in lengths)
        table.add_row(str(each.method), *_speed(each), *passkeys)
    return ["", table]


def _speed(report: MethodReport) -> tuple[str, str]:
    if report.speed is None:
        return _UNKNOWN, _UNKNOWN
    return f"{report.speed.prefill:,.0f}", f"{report.speed.decode:,.1f}"


def _found(report: MethodReport, length: int) -> str:
    """How many of how many, and at each depth, the shallowest first."""
    scores: Sequence[PasskeyScore] = [each for each in report.passkey if each.length == length]
    if not scores:
        return _UNKNOWN
    total = sum(each.num_found for each in scores)
    each_depth = sorted(scores, key=lambda score: score.depth)
    counts = " ".join(str(score.num_found) for score in each_depth)
    return f"{total} of {sum(each.num_trials for each in scores)}: {counts}"


def _notes(report: LabReport) -> Iterator[str]:
    yield ""
    yield from report.notes
    if report.noise is not None:
        yield (
            f"The last row of the first table is the noise floor: the full cache, read in chunks "
            f"of {report.noise_chunk} tokens."
        )


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\nkv cache dtype", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
