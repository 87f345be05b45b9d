"""What is said of an option that there is none of, and of a word too many."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from pagoda.cli.vllm_flags import SHORT_FORMS, long_form
from pagoda.engine.foreign_options import INSTEAD

_RUN_ENGINES = frozenset({"serve", "chat", "generate", "bench"})
"""Commands whose flags are those of vLLM's engine."""


def told(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """The parser's message; of the options it offers only those that are meant, where some are.

    An option is meant if it is the same but for its dashes (--tp: -tp), or begins so. Of a flag
    that vLLM has, what there is in its place.
    """
    asked: str | None = getattr(error, "option_name", None)
    if asked is not None and arguments[0] in _RUN_ENGINES:
        given = (each.partition("=")[0] for each in arguments if each.startswith(asked))
        for flag in given:  # the parser names no more than -t where -tp was given
            option = long_form(flag)
            if option is not None:
                return f"No such option: {SHORT_FORMS.get(flag, flag)} ({INSTEAD[option]})"
    message = error.format_message()
    if asked is None and "extra argument" in message:
        return f"{message}: an option takes one value; where it may have several, give it again"
    offered: Sequence[str] | None = getattr(error, "possibilities", None)
    if asked is None or not offered:
        return message
    bare = asked.lstrip("-")
    same = [option for option in offered if option.lstrip("-") == bare]
    meant = same or [option for option in offered if option.lstrip("-").startswith(bare)]
    if not meant:
        return message
    return f"{error.message} (did you mean {' or '.join(sorted(meant))}?)"
