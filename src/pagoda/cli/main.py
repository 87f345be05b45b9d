"""The entry point: commands, and how a refusal is told.

Answers go to stdout and everything else to stderr. A refused input is one line and exit code 2, an
engine that failed, or a plan that does not fit, is one line and exit code 1. What a command needs
is imported when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from pagoda import __version__
from pagoda.cli.bench import bench
from pagoda.cli.chat import chat
from pagoda.cli.doctor import doctor
from pagoda.cli.explain import explain
from pagoda.cli.generate import generate
from pagoda.cli.install_model import install_model
from pagoda.cli.lab import lab
from pagoda.cli.plan import DoesNotFitError, plan
from pagoda.cli.refusal import flags_of, refusal
from pagoda.cli.replay import replay
from pagoda.cli.serve import serve
from pagoda.cli.session import session
from pagoda.cli.standard_streams import open_missing, write_all_text
from pagoda.cli.tiers import tiers
from pagoda.cli.typo import told
from pagoda.errors import PagodaError, RefusedError

_INTERRUPTED = 130
_NO_OUTPUT = "the output cannot be written"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

app = typer.Typer(
    name="pagoda",
    help="An LLM inference engine whose subject is the KV cache.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes cut long flags short
)
app.command()(serve)
app.command()(chat)
app.command()(generate)
app.command()(bench)
app.command()(plan)
app.command()(replay)
app.command()(doctor)
app.command()(explain)
app.command()(lab)
app.command()(install_model)
app.add_typer(session, name="session")
app.add_typer(tiers, name="tiers")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"pagoda {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS = get_command(app)
"""What `app` describes, as it runs."""


def main() -> None:
    """Run the command line of this process and exit.

    A server alone needs no stdout: it answers elsewhere.
    """
    arguments = sys.argv[1:]
    if not open_missing() and arguments[:1] != ["serve"]:
        sys.exit(_complain(f"{_NO_OUTPUT}: stdout is closed", 1))
    write_all_text()
    try:
        code = run(arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left of it
        code = _complain(f"{_NO_OUTPUT}: {error.strerror}", 1)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        return int(COMMANDS.main(list(arguments), "pagoda", standalone_mode=False) or 0)
    except typer.Abort as error:
        if error.__cause__ is not None:  # a file that ends early, not a question left open
            raise error.__cause__ from None
        return _INTERRUPTED
    except typer.TyperException as error:
        return _complain(told(error, arguments), error.exit_code)
    except RefusedError as error:
        told_so = refusal(error, flags_of(COMMANDS, arguments))
        return _complain(told_so, 1 if isinstance(error, DoesNotFitError) else 2)
    except PagodaError as error:
        return _complain(str(error), 1)


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"pagoda: error: {line}", file=sys.stderr)
    return code
