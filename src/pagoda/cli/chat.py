"""`pagoda chat`: talk to a model in the terminal.

Every turn sends the whole conversation; the line after an answer shows how much of it the cache
already had. Ctrl-C stops the answer, not the program.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.figures import Figures
from pagoda.cli.flags import with_flags
from pagoda.cli.loading import load_engine
from pagoda.cli.prompts import undecodable
from pagoda.cli.sampling_flags import SAMPLING_FLAGS
from pagoda.cli.terminal import logging_to
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidRequestError
from pagoda.request import SamplingParams

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import RequestOutput

_PROMPT = "> "
_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


@with_flags(ENGINE_FLAGS, SAMPLING_FLAGS.with_defaults(max_tokens=None, temperature=0.7))
def chat(
    options: EngineOptions,
    sampling: SamplingParams,
    system: Annotated[
        str | None, typer.Option("--system", help="What the model is told before you speak.")
    ] = None,
) -> None:
    """Chat with a model; after each answer, see what came from the cache."""
    console = Console(stderr=True)
    with logging_to(console, "pagoda"):
        engine = load_engine(options, console)
        converse(engine, Conversation(system), sampling, console)


class Conversation:
    """The messages so far."""

    def __init__(self, system: str | None) -> None:
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._opening)

    def say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def unsay(self) -> None:
        """Take the last message back."""
        self.messages.pop()

    def reset(self) -> None:
        self.messages = list(self._opening)


class Answer:
    """One answer while it is made: it outlives an interruption."""

    def __init__(self) -> None:
        self.output: RequestOutput | None = None
        self._started = time.perf_counter()
        self._shown = 0

    @property
    def text(self) -> str:
        return self.output.outputs[0].text if self.output else ""

    @property
    def figures(self) -> Figures:
        outputs = [self.output] if self.output else []
        return Figures.of(outputs, time.perf_counter() - self._started)

    async def make(
        self, engine: AsyncEngine, messages: list[dict[str, str]], sampling: SamplingParams
    ) -> None:
        """Ask the engine and write what it says to stdout as it comes."""
        prompt = await engine.tokenizer.chat(messages)
        stream = engine.generate(prompt, sampling, request_id=f"chat-{id(self):x}")
        async with aclosing(stream) as outputs:
            async for output in outputs:
                self.output = output
                sys.stdout.write(self.text[self._shown :])
                sys.stdout.flush()
                self._shown = len(self.text)


def converse(
    engine: AsyncEngine, conversation: Conversation, sampling: SamplingParams, console: Console
) -> None:
    """Answer line after line until there are no more."""
    if sys.stdin.isatty():
        _enable_line_editing()
        _remark(console, f"{engine.model_name}. {_HELP}")
    with asyncio.Runner() as runner:
        engine.start()
        try:
            while (line := _next_line()) is not None:
                if line == "/reset":
                    conversation.reset()
                elif line.startswith("/"):
                    _remark(console, _HELP)
                elif line:
                    _take_turn(runner, engine, conversation, line, sampling, console)
        finally:
            runner.run(engine.shutdown())


def _next_line() -> str | None:
    """What was typed, without blanks around it; None at the end.

    Raises `InvalidOptionError` for bytes that are no text.
    """
    while True:
        try:
            line = input(_PROMPT if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise undecodable(error) from None
        except KeyboardInterrupt:
            # Nothing is being answered: drop the half-typed line.
            sys.stdout.write("\n")
            continue
        return None if line == "/exit" else line


def _take_turn(
    runner: asyncio.Runner,
    engine: AsyncEngine,
    conversation: Conversation,
    line: str,
    sampling: SamplingParams,
    console: Console,
) -> None:
    conversation.say("user", line)
    answer = Answer()
    try:
        runner.run(answer.make(engine, conversation.messages, sampling))
    except KeyboardInterrupt:
        pass  # What was said until then stays.
    except InvalidRequestError as error:
        conversation.unsay()
        _remark(console, f"{error} (/reset starts anew)")
        return
    conversation.say("assistant", answer.text)
    sys.stdout.write("\n")
    sys.stdout.flush()
    _remark(console, str(answer.figures))


def _remark(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def _enable_line_editing() -> None:
    """Arrow keys and history, where Python was built with them: `input` uses what is imported."""
    with suppress(ImportError):
        import readline  # noqa: F401
