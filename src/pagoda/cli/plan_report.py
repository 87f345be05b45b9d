"""What `pagoda plan` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.state import StateLayerSpec
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.cli.plan_tiers import print_tiers
from pagoda.planning.memory import MemoryPart
from pagoda.planning.result import Alternative, Plan, PoolFigures
from pagoda.sizing.capacity import GIB
from pagoda.sizing.kept_windows import in_layers
from pagoda.validation.verdict import Verdict, VerdictKind, count

_MARKS = {VerdictKind.HIT: "hit", VerdictKind.MISS: "MISS", VerdictKind.UNKNOWN: "unknown"}
_WORDS = {VerdictKind.MISS: "missed", VerdictKind.UNKNOWN: "could not be known"}
_BAR_WIDTH = 76
_ALL_TOKENS = (AttentionLayerSpec.kind, LatentLayerSpec.kind)
_COLOURS = {
    "weights": "blue",
    "activations": "magenta",
    "runtime": "yellow",
    "CUDA graphs": "cyan",
    "left by utilization": "bright_black",
    "KV cache": "green",
}
_LETTERS = {
    "weights": "W",
    "activations": "A",
    "runtime": "R",
    "CUDA graphs": "G",
    "left by utilization": ".",
    "KV cache": "K",
}


def print_plan(plan: Plan, console: Console) -> None:
    """The whole answer, in the order in which it is asked: fits, holds, prints, runs, costs."""
    _say(console, _headline(plan))
    for warning in plan.warnings:
        is_refused = warning in plan.refusals
        word, style = ("would not start", "bold red") if is_refused else ("warning", "yellow")
        _say(console, f"{word}: {warning}", style=style)
    _say(console, "")
    if plan.memory and plan.device_bytes:
        console.print(memory_bar(plan.memory, plan.device_bytes))
        console.print(_memory_table(plan))
    console.print(_facts(plan))
    if plan.tiers:
        print_tiers(plan.tiers, console)
    if plan.low is not None and plan.high is not None:
        _print_lines(plan, plan.low, plan.high, console)
    else:
        _say(console, "Name --gpu, --memory or --kv-cache-memory-bytes to learn what fits.")
    if plan.alternatives:
        console.print(_alternatives(plan))


def memory_bar(parts: Sequence[MemoryPart], total_bytes: int) -> Text:
    """A bar of a device's memory, each part by its letter; ranges are drawn at their middle."""
    sizes = [(part.name, (part.low + part.high) / 2) for part in parts]
    bar, drawn, reached = Text(), 0, 0.0
    for name, size in sizes:
        reached += size
        end = min(_BAR_WIDTH, round(reached / total_bytes * _BAR_WIDTH))
        bar.append(_LETTERS[name] * (end - drawn), style=f"bold {_COLOURS[name]}")
        drawn = end
    bar.append(" " * (_BAR_WIDTH - drawn))
    return Text.assemble("[", bar, "]")


def print_verdicts(verdicts: Sequence[Verdict], console: Console) -> None:
    """Hits, misses and what could not be known, why, and what fits that a post does not say."""
    table = _table("start-up", "from", "predicted", "observed", "")
    for verdict in verdicts:
        mark = _MARKS[verdict.kind]
        table.add_row(
            verdict.id, verdict.basis, _figures(verdict.predicted), _figures(verdict.observed), mark
        )
    console.print(table)
    for verdict in verdicts:
        if not verdict.is_hit:
            _say(console, f"{verdict.id}: {_WORDS[verdict.kind]}: {verdict.reason}")
    for verdict in verdicts:
        if verdict.is_hit and verdict.unstated:
            _say(console, f"{verdict.id}: not stated, and fits: {verdict.unstated}")
    hits, misses, unknown = (count(verdicts, kind) for kind in VerdictKind)
    _say(console, f"{hits} of {len(verdicts)} start-ups predicted within the log's rounding")
    _say(console, f"{misses} missed, and of {unknown} the post leaves out what decides")


def gib(low: float, high: float | None = None) -> str:
    """GiB with two decimals, or a range of them."""
    return _range(low / GIB, low / GIB if high is None else high / GIB, "{:,.2f}")


def _headline(plan: Plan) -> str:
    on = "" if plan.gpu is None else f" on {plan.num_devices} × {plan.gpu}"
    stored = plan.quantization or plan.dtype
    return (
        f"{plan.model}{on}, {plan.engine}: {plan.parameters / 1e9:,.2f} B weights in {stored}, "
        f"{gib(plan.weights_bytes)} GiB"
    )


def _memory_table(plan: Plan) -> Table:
    table = _table("of each device", "GiB", "where from")
    for part in plan.memory:
        name = Text(f"{_LETTERS[part.name]} ", style=_COLOURS[part.name])
        table.add_row(name + Text(part.name), gib(part.low, part.high), part.source)
    table.add_row("  all", gib(plan.device_bytes or 0), plan.gpu or "as given")
    return table


def _facts(plan: Plan) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _fact_rows(plan):
        table.add_row(name, value)
    return table


def _fact_rows(plan: Plan) -> Iterable[tuple[str, str]]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in plan.layer_kinds.items())
    yield "layers", kinds
    if len(plan.groups) > 1:
        alike = Counter((g.kind, g.num_layers, g.block_size) for g in plan.groups)
        for (kind, num_layers, block_size), count in alike.items():
            yield "groups", f"{count} of {num_layers} × {kind}, blocks of {block_size} tokens"
    kept = _kept(plan)
    if kept:
        yield "kept", in_layers(kept)
    yield "a block", f"{plan.block_size} tokens, {plan.block_bytes:,} bytes on a rank"
    if plan.token_bytes:
        yield "a token", f"{plan.token_bytes:,.0f} bytes on a rank{_beside(plan)}"
    yield (
        "a sequence",
        f"{gib(plan.sequence_bytes)} GiB for {plan.max_model_len:,} tokens on a rank",
    )
    low, high = plan.low, plan.high
    if low is None or high is None:
        return
    yield "pool", f"{_count(low.num_tokens, high.num_tokens)} tokens"
    yield "concurrency", f"{_range(low.concurrency, high.concurrency, '{:,.2f}')}x at full length"
    shared = f", {plan.shared_prefix:,} of them shared" if plan.shared_prefix else ""
    yield "users", f"{_count(low.users, high.users)} at {plan.context:,} tokens{shared}"
    yield "context", f"{_longest(low, high)} for {_users(plan.users_wanted or 1)}"
    yield from _speed_rows(plan)


def _beside(plan: Plan) -> str:
    """Of a mixed model only some layers go on growing."""
    kinds = {group.kind for group in plan.groups}
    if StateLayerSpec.kind in kinds:
        return " beside the states"
    return " once windows are full" if len(kinds) > 1 else ""


def _kept(plan: Plan) -> Counter[AttentionWindow]:
    """In how many layers how much is kept; nothing where every layer of K and V keeps all."""
    kept: Counter[AttentionWindow] = Counter()
    for group in plan.groups:
        if group.window is not None:
            kept[AttentionWindow(group.window, group.sinks)] += group.num_layers
        elif group.kind in _ALL_TOKENS:
            kept[FULL_ATTENTION] += group.num_layers
    return Counter() if set(kept) == {FULL_ATTENTION} else kept


def _longest(low: PoolFigures, high: PoolFigures) -> str:
    if high.longest_context is None:
        return "any length"
    return f"{_count(low.longest_context or 0, high.longest_context)} tokens at most"


def _users(count: int) -> str:
    return f"{count:,} user{'s' if count > 1 else ''}"


def _speed_rows(plan: Plan) -> Iterable[tuple[str, str]]:
    speed = plan.speed
    if speed is not None:
        yield (
            "decode",
            f"at most {speed.tokens_per_s:,.1f} tokens/s a user and "
            f"{speed.total_tokens_per_s:,.0f} in all, with {_users(speed.users)}",
        )
        if speed.experts_read is not None:
            yield "experts", f"{speed.experts_read:.0%} of them read in a step, were all as likely"
        yield (
            "prefill",
            f"at least {speed.prefill_s:,.2f} s for {speed.context:,} tokens "
            f"({speed.prefill_tokens_per_s:,.0f} tokens/s)",
        )
    if plan.cost_per_user is not None:
        most, least = plan.cost_per_user
        yield "cost", f"{_range(least, most, '{:,.4f}')} a user and hour"
    if plan.cost_per_million_tokens is not None:
        yield "", f"at least {plan.cost_per_million_tokens:,.4f} a million output tokens"


def _print_lines(plan: Plan, low: PoolFigures, high: PoolFigures, console: Console) -> None:
    if plan.is_exact:
        _say(console, f"\n{plan.engine} will print:")
        for line in low.lines:
            _say(console, f"  {line}", style="bold")
        return
    values = "values in this range" if low.lines else "values up to these, or refuse to start"
    _say(console, f"\n{plan.engine} will print {values}; --kv-cache-memory-bytes makes them exact")
    for figures in (low, high):
        for line in figures.lines:
            _say(console, f"  {line}")


def _alternatives(plan: Plan) -> Table:
    table = _table("what would it buy", "users", "tokens", "× users", "flag")
    for other in plan.alternatives:
        table.add_row(*_alternative_cells(other))
    return table


def _alternative_cells(other: Alternative) -> tuple[str, ...]:
    tokens = _count(other.tokens_low, other.tokens_high)
    gain = "" if other.gain is None else f"{other.gain:.2f}×"
    return other.name, _count(other.users_low, other.users_high), tokens, gain, other.flags


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading)
    return table


def _figures(figures: dict[str, int | float | str]) -> str:
    return ", ".join(
        f"{value:,}" if isinstance(value, int) else f"{value}" for value in figures.values()
    )


def _count(low: int, high: int) -> str:
    return _range(low, high, "{:,}")


def _range(low: float, high: float, form: str) -> str:
    one, other = form.format(low), form.format(high)
    return one if one == other else f"{one} – {other}"


def _say(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)
