"""What is said of an option that there is none of."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def told(error: typer.TyperException) -> str:
    """The parser's message; of the options it offers only those that are meant, where some are.

    An option is meant if it is the same but for its dashes (--tp: -tp), or begins so.
    """
    asked: str | None = getattr(error, "option_name", None)
    offered: Sequence[str] | None = getattr(error, "possibilities", None)
    if asked is None or not offered:
        return error.format_message()
    bare = asked.lstrip("-")
    same = [option for option in offered if option.lstrip("-") == bare]
    meant = same or [option for option in offered if option.lstrip("-").startswith(bare)]
    if not meant:
        return error.format_message()
    return f"{error.message} (did you mean {' or '.join(sorted(meant))}?)"
