"""What is said of an option that there is none of."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from pagoda.cli.vllm_flags import INSTEAD, SHORT_FORMS

_RUN_ENGINES = frozenset({"serve", "chat", "generate", "bench"})
"""Commands whose flags are those of vLLM's engine."""


def told(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """The parser's message; of the options it offers only those that are meant, where some are.

    An option is meant if it is the same but for its dashes (--tp: -tp), or begins so. Of a flag
    that vLLM has, what there is in its place.
    """
    asked: str | None = getattr(error, "option_name", None)
    if asked is not None and arguments[0] in _RUN_ENGINES:
        flag = _vllm_flag(asked, arguments)
        if flag is not None:
            return f"No such option: {flag} ({INSTEAD[flag].replace('`', '')})"
    offered: Sequence[str] | None = getattr(error, "possibilities", None)
    if asked is None or not offered:
        return error.format_message()
    bare = asked.lstrip("-")
    same = [option for option in offered if option.lstrip("-") == bare]
    meant = same or [option for option in offered if option.lstrip("-").startswith(bare)]
    if not meant:
        return error.format_message()
    return f"{error.message} (did you mean {' or '.join(sorted(meant))}?)"


def _vllm_flag(asked: str, arguments: Sequence[str]) -> str | None:
    """The long form of the flag, of which the parser names no more than -t where -tp was given."""
    given = {
        SHORT_FORMS[each] for each in arguments if each.startswith(asked) and each in SHORT_FORMS
    }
    return asked if asked in INSTEAD else next(iter(given), None)
