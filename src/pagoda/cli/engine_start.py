"""From the engine's options to an engine that can be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from pagoda.cli.terminal import load_progress
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.build import Model


def with_model(options: EngineOptions, named: str | None) -> EngineOptions:
    """The options with the model that was named without a flag, if any was.

    Raises `InvalidOptionError` where `--model` names one too.
    """
    if named is None:
        return options
    if options.model is not None:
        raise InvalidOptionError("model", options.model, f"{named} is named as well")
    return replace(options, model=named)


def load_engine(options: EngineOptions, console: Console) -> AsyncEngine:
    """Load the model with a bar on `console`; the engine is not started.

    Raises `RefusedError` for a model or a memory that will not do.
    """
    with load_progress(console, options.model or "smollm2") as on_load:
        # PyTorch takes seconds to import: the bar is up before.
        from pagoda.engine.async_engine import AsyncEngine

        return AsyncEngine.load(options, on_load)


def load_for_bench(options: EngineOptions, console: Console) -> Model:
    """Load the model with a bar on `console`.

    Raises `RefusedError` for a model or a memory that will not do.
    """
    with load_progress(console, options.model or "smollm2") as on_load:
        from pagoda.engine.build import load_model

        return load_model(options, on_load)
