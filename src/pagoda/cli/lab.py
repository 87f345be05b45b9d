"""`pagoda lab`: what each way to keep the cache costs in quality, on a model and a text."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.engine_start import load_for_bench, with_model
from pagoda.cli.flags import (
    LISTED,
    SWITCH,
    TEXTS,
    TOKENS,
    WHOLE,
    WHOLES,
    Flag,
    FlagGroup,
    with_flags,
)
from pagoda.cli.terminal import logging_to, run_progress
from pagoda.cli.writable import require_writable
from pagoda.engine.options import EngineOptions
from pagoda.errors import PagodaError
from pagoda.lab.method import named_options
from pagoda.lab.sizes import QUICK, Sizes
from pagoda.lab.text import TokenText, default_text, read_text

if TYPE_CHECKING:
    from pagoda.lab.lab import Lab
    from pagoda.lab.report import LabReport

logger = logging.getLogger("pagoda")

_WIDTH = 110
"""What the tables take, in characters: a narrower terminal breaks lines, and nothing is cut."""


@dataclass(frozen=True, slots=True)
class LabOptions:
    """What is measured; None: as `Sizes` has it, or `QUICK`."""

    text: Sequence[str] = field(default_factory=list)
    kv_cache_dtype: Sequence[str] = field(default_factory=list)
    """Empty: all that model and device can take."""
    kv_retention: Sequence[str] = field(default_factory=list)
    kv_tier_form: Sequence[str] = field(default_factory=list)
    """Lossy forms of tiers that are tried beside the full cache."""
    windows: int | None = None
    window: int | None = None
    chunk: int | None = None
    passkey_lengths: tuple[int, ...] | None = None
    passkey_depths: int | None = None
    passkey_trials: int | None = None
    quick: bool = False

    @property
    def sizes(self) -> Sizes:
        """Raises `InvalidOptionError` out of range."""
        given: dict[str, Any] = {
            "windows": self.windows,
            "window": self.window,
            "chunk": self.chunk,
            "passkey_lengths": self.passkey_lengths,
            "passkey_depths": self.passkey_depths,
            "passkey_trials": self.passkey_trials,
        }
        stated = {name: value for name, value in given.items() if value is not None}
        return replace(QUICK if self.quick else Sizes(), **stated)


_USUAL = Sizes()
LAB_FLAGS = FlagGroup(
    "lab_options",
    LabOptions,
    (
        Flag(
            "text",
            TEXTS,
            "A file of text, .gz too; may be given again. Without one, the reference of Python's "
            "language, which comes with Python.",
        ),
        Flag(
            "kv_cache_dtype",
            LISTED,
            "What is tried beside auto, like int8_per_token_head,fp8; without it all there is.",
        ),
        Flag(
            "kv_retention",
            TEXTS,
            "A retention that is tried, like streaming:sinks=4,window=508; may be given again.",
        ),
        Flag(
            "kv_tier_form",
            LISTED,
            "Lossy forms of tiers that are tried, like kvtc-4x,kvtc-5x: each chunk reads a prefix "
            "that was loaded.",
        ),
        Flag("windows", WHOLE, f"Pieces of the text; {_USUAL.windows} if not given."),
        Flag("window", TOKENS, f"Tokens in each; {_USUAL.window:,} if not given."),
        Flag(
            "chunk",
            TOKENS,
            f"Tokens read in a step, those before being read from the cache; {_USUAL.chunk} if not "
            "given.",
        ),
        Flag(
            "passkey_lengths",
            WHOLES,
            "Tokens of prompts that hide a passkey; "
            f"{','.join(map(str, _USUAL.passkey_lengths))} if not given.",
        ),
        Flag(
            "passkey_depths",
            WHOLE,
            f"Places in a prompt where it stands; {_USUAL.passkey_depths} if not given.",
        ),
        Flag(
            "passkey_trials",
            WHOLE,
            f"Passkeys at each place, {_USUAL.passkey_trials} if not given; 0: none is looked for.",
        ),
        Flag(
            "quick",
            SWITCH,
            f"A first look: {QUICK.windows} windows of {QUICK.window}, and no passkeys, where "
            "other flags do not say so.",
        ),
    ),
    defaults={"text": [], "kv_cache_dtype": [], "kv_retention": [], "kv_tier_form": []},
)
_ENGINE_FLAGS = ENGINE_FLAGS.only(
    "model",
    "revision",
    "device",
    "dtype",
    "quantization",
    "activation_dtype",
    "block_size",
    "kv_cache_dtype_skip_layers",
    "threads",
)


@with_flags(LAB_FLAGS, _ENGINE_FLAGS)
def lab(
    lab_options: LabOptions,
    options: EngineOptions,
    named: Annotated[str | None, typer.Argument(metavar="MODEL", help="As --model.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write one JSON object a line and method."),
    ] = None,
    svg_file: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write a picture: quality over bytes."),
    ] = None,
) -> None:
    """Measure what each format of the KV cache costs in quality, beside the bytes it takes.

    Perplexity, KL divergence and the likeliest token beside those of the full cache, passkeys that
    are found again, and speed. Tables go to stdout; an interrupt keeps what is done.
    """
    for name, path in (("json_file", json_file), ("svg_file", svg_file)):
        require_writable(name, path)
    asked = with_model(options, named)
    sizes = lab_options.sizes
    console = Console(stderr=True)
    run = _prepare(asked, lab_options, sizes, console)
    try:
        with run_progress(console, run.num_parts) as on_part:
            run.run(on_part if console.is_terminal else _told_on(console))
    except (KeyboardInterrupt, PagodaError) as error:
        _show(run.report(), json_file, svg_file)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Abort from None
        raise
    _show(run.report(), json_file, svg_file)


def _prepare(
    options: EngineOptions, lab_options: LabOptions, sizes: Sizes, console: Console
) -> Lab:
    """Everything that can be refused is refused here, and the soonest what takes the least time."""
    names, retentions = lab_options.kv_cache_dtype, lab_options.kv_retention
    forms = lab_options.kv_tier_form
    named_options(options, names, retentions, forms)
    text = read_text([Path(each) for each in lab_options.text]) if lab_options.text else None
    text = text or default_text()
    # With PyTorch, which takes seconds.
    from pagoda.lab.subject import Subject, require_known

    require_known(options, names, retentions, forms)
    with logging_to(console, "pagoda"):  # and not of all the engines that follow
        subject = Subject(load_for_bench(options, console), options)
    from pagoda.lab.lab import Lab

    for line in [] if names or retentions or forms else subject.left_out():
        console.print(f"left out: {line}", highlight=False, markup=False)
    tokens = TokenText.of(text, subject.model.tokenizer)
    return Lab(subject, subject.methods(names, retentions, forms), sizes, tokens)


def _told_on(console: Console) -> Callable[[str], None]:
    """Prints each part that is new, a line each."""
    last = ""

    def tell(part: str) -> None:
        nonlocal last
        if part != last:
            console.print(part, highlight=False, markup=False)
        last = part

    return tell


def _show(report: LabReport, json_file: Path | None, svg_file: Path | None) -> None:
    from pagoda.cli.lab_report import tables
    from pagoda.lab.picture import draw

    Console(file=sys.stdout, width=_WIDTH).print(tables(report))
    if json_file is not None:
        json_file.write_text("".join(json.dumps(each) + "\n" for each in report.lines()), "utf-8")
    picture = draw(report)
    if svg_file is not None and picture is not None:
        svg_file.write_text(picture, "utf-8", errors="replace")  # as of a model's name
