"""Flags that several commands share, defined once and turned into one typed object.

    ENGINE = FlagGroup("options", EngineOptions, (Flag("block_size", WHOLE, "…"), …))

    @with_flags(ENGINE, SAMPLING)
    def generate(prompts: …, options: EngineOptions, sampling: SamplingParams) -> None: …

The command line of `generate` then has `--block-size` and all others in place of `options` and
`sampling`. Names, defaults and checks are those of the class that is built.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from pagoda.byte_size import parse_byte_size
from pagoda.cli.count import parse_count
from pagoda.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Kind:
    """How the value of a flag is written and read.

    Numbers reach us as text: typer's own words for a wrong one do not name the value.
    """

    annotation: Any
    """What typer is to hand over."""
    metavar: str | None
    read: Callable[[str, Any], Any]
    """From the field's name and what typer hands over to the value, or `InvalidOptionError`."""

    def default(self, value: Any) -> Any:
        """The field's default as typer is to show it."""
        if isinstance(value, tuple):
            return json.dumps(value)
        return str(value) if self.annotation == _MAYBE_TEXT and value is not None else value


def _read_as_is(field: str, value: Any) -> Any:
    return value


def _read_whole(field: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOptionError(field, text, "must be a whole number") from None


def _read_wholes(field: str, texts: Sequence[str]) -> tuple[int, ...] | None:
    """Numbers with commas between them, in one text or several; None where nothing was given."""
    numbers = [number for text in texts for number in text.split(",")]
    return tuple(_read_whole(field, number) for number in numbers) or None


def _read_names(field: str, texts: Sequence[str]) -> tuple[str, ...] | None:
    """Each of the texts; None where nothing was given."""
    return tuple(texts) or None


def _read_listed(field: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Names with commas between them, in one text or several."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def _read_layers(field: str, texts: Sequence[str]) -> tuple[str, ...] | None:
    """Names with commas between them, in one text or several; None where nothing was given."""
    return tuple(name.strip() for text in texts for name in text.split(",")) or None


def _read_json_names(field: str, text: str) -> tuple[str, ...]:
    """A JSON list of texts, as vLLM takes it, or names with commas between them."""
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = [None]
    if not all(isinstance(name, str) for name in names):
        raise InvalidOptionError(field, text, 'must be a JSON list of texts, like ["*"]')
    return tuple(names)


def _read_json_object(field: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidOptionError(field, text, "must be a JSON object")
    return value


def _read_real(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidOptionError(field, text, "must be a number") from None


_MAYBE_TEXT = str | None

TEXT = Kind(_MAYBE_TEXT, "TEXT", _read_as_is)
TEXTS = Kind(list[str], "TEXT", _read_as_is)
WHOLE = Kind(_MAYBE_TEXT, "INT", _read_whole)
TOKENS = Kind(_MAYBE_TEXT, "TOKENS", parse_count)
NAMES = Kind(list[str] | None, "TEXT", _read_names)
LISTED = Kind(list[str], "TEXT,TEXT…", _read_listed)
REAL = Kind(_MAYBE_TEXT, "FLOAT", _read_real)
SIZE = Kind(_MAYBE_TEXT, "SIZE", parse_byte_size)
JSON_NAMES = Kind(_MAYBE_TEXT, "JSON", _read_json_names)
JSON_OBJECT = Kind(_MAYBE_TEXT, "JSON", _read_json_object)
WHOLES = Kind(list[str] | None, "INT,INT…", _read_wholes)
LAYERS = Kind(list[str] | None, "LAYER,LAYER…", _read_layers)
SWITCH = Kind(bool, None, _read_as_is)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: the field it sets, its kind, and what `--help` says."""

    name: str
    kind: Kind
    help: str
    negatable: bool = False
    """Adds `--no-…`."""
    short: str | None = None
    """Another form: -tp."""

    @property
    def declarations(self) -> tuple[str, ...]:
        name = self.name.replace("_", "-")
        long = f"--{name}/--no-{name}" if self.negatable else f"--{name}"
        return (long,) if self.short is None else (long, self.short)


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """The flags that together make one argument of a command."""

    argument: str
    """The command's argument that they replace."""
    build: Callable[..., Any]
    """A dataclass with the flags' names as fields."""
    flags: tuple[Flag, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Where these commands differ from the dataclass."""

    def plus(self, *flags: Flag) -> FlagGroup:
        """The group with these flags too; one that it has by the same name is replaced."""
        merged = {flag.name: flag for flag in (*self.flags, *flags)}
        return dataclasses.replace(self, flags=tuple(merged.values()))

    def only(self, *names: str) -> FlagGroup:
        """The group with the flags of these names alone, in its own order."""
        kept = tuple(flag for flag in self.flags if flag.name in names)
        assert len(kept) == len(names), "a name without a flag"
        return dataclasses.replace(self, flags=kept)

    def with_defaults(self, **defaults: Any) -> FlagGroup:
        return dataclasses.replace(self, defaults={**self.defaults, **defaults})

    def parameters(self) -> list[inspect.Parameter]:
        """Keyword parameters as typer reads them."""
        known = {item.name: item.default for item in dataclasses.fields(self.build)}  # type: ignore[arg-type]
        known.update(self.defaults)
        return [
            inspect.Parameter(
                flag.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=flag.kind.default(known[flag.name]),
                annotation=Annotated[
                    flag.kind.annotation,
                    typer.Option(*flag.declarations, help=flag.help, metavar=flag.kind.metavar),
                ],
            )
            for flag in self.flags
        ]

    def take(self, values: dict[str, Any]) -> Any:
        """Remove this group's values from `values` and build the object from them.

        Raises `RefusedError` for a value that cannot be read or is out of range.
        """
        fields = {}
        for flag in self.flags:
            value = values.pop(flag.name)
            fields[flag.name] = None if value is None else flag.kind.read(flag.name, value)
        return self.build(**fields)


def with_flags(*groups: FlagGroup) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of `groups` in place of the arguments they build."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        replaced = {group.argument for group in groups}
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
            if parameter.name not in replaced
        ]
        shared = [parameter for group in groups for parameter in group.parameters()]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            built = {group.argument: group.take(values) for group in groups}
            command(**values, **built)

        run.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return decorate
