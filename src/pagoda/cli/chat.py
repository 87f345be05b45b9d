"""`pagoda chat`: talk to a model in the terminal.

Every turn sends the whole conversation; the line after an answer shows how much of it the cache
already had. Ctrl-C stops the answer, not the program.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from pagoda.cli.chat_partner import EnginePartner, Message, Partner, Said, ServerError
from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.engine_start import load_engine, with_model
from pagoda.cli.flags import JSON_OBJECT, with_flags
from pagoda.cli.prompts import undecodable
from pagoda.cli.sampling_flags import SAMPLING_FLAGS
from pagoda.cli.server_client import ServerKey
from pagoda.cli.terminal import logging_to
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.models.chat_options import ChatOptions, TemplateValue
from pagoda.request import SamplingParams

_PROMPT = "> "
_CUT_AT_MOST = "cut: --max-tokens allows no more"
_CUT_BY_WINDOW = "cut: the model's window is full (/reset starts anew)"
_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


@with_flags(ENGINE_FLAGS, SAMPLING_FLAGS.with_defaults(max_tokens=None, temperature=0.7))
def chat(
    options: EngineOptions,
    sampling: SamplingParams,
    system: Annotated[
        str | None, typer.Option("--system", help="What the model is told before you speak.")
    ] = None,
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="As --model.")] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Talk to a running server, like http://127.0.0.1:8000."),
    ] = None,
    api_key: ServerKey = None,
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='For the chat template, like {"enable_thinking": false}.'
        ),
    ] = None,
) -> None:
    """Chat with a model; after each answer, see what came from the cache."""
    options = with_model(options, named)
    told = ChatOptions(template_kwargs=_template_kwargs(chat_template_kwargs))
    console = Console(stderr=True)
    with logging_to(console, "pagoda"):
        if url is not None:
            _require_servers_own(options)
            from pagoda.cli.chat_server import ServerPartner

            partner: Partner = ServerPartner(
                url, model=options.model, api_key=api_key, options=told
            )
        else:
            partner = EnginePartner(load_engine(options, console), told)
        converse(partner, Conversation(system), sampling, console)


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
        self._said = Said("", None, None)
        self._started = time.perf_counter()

    @property
    def text(self) -> str:
        return self._said.text

    def remarks(self, sampling: SamplingParams) -> list[str]:
        """What there is to say about it: its figures, and what cut it."""
        remarks = []
        if (figures := self._said.figures) is not None:
            duration_s = time.perf_counter() - self._started
            remarks.append(str(replace(figures, duration_s=duration_s)))
            if self._said.finish_reason == "length":
                at_most = figures.num_new_tokens == sampling.max_tokens
                remarks.append(_CUT_AT_MOST if at_most else _CUT_BY_WINDOW)
        return remarks

    async def make(
        self,
        partner: Partner,
        messages: list[Message],
        sampling: SamplingParams,
        console: Console,
    ) -> None:
        """Ask, and write what is said to stdout as it comes, what is thought to the console."""
        async with aclosing(partner.answer(messages, sampling)) as growing:
            async for said in growing:
                if thought := said.thought[len(self._said.thought) :]:
                    _remark(console, thought, end="")
                if said.text and not self.text and said.thought:
                    _remark(console, "")
                sys.stdout.write(said.text[len(self.text) :])
                sys.stdout.flush()
                self._said = said


def converse(
    partner: Partner, conversation: Conversation, sampling: SamplingParams, console: Console
) -> None:
    """Answer line after line until there are no more."""
    if sys.stdin.isatty():
        _enable_line_editing()
    with asyncio.Runner() as runner:
        runner.run(partner.open())
        if sys.stdin.isatty():
            _remark(console, f"{partner.name}. {_HELP}")
        try:
            while (line := _next_line()) is not None:
                if line == "/reset":
                    conversation.reset()
                elif line.startswith("/"):
                    _remark(console, _HELP)
                elif line:
                    _take_turn(runner, partner, conversation, line, sampling, console)
        finally:
            runner.run(partner.close())


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
    partner: Partner,
    conversation: Conversation,
    line: str,
    sampling: SamplingParams,
    console: Console,
) -> None:
    conversation.say("user", line)
    answer = Answer()
    try:
        runner.run(answer.make(partner, conversation.messages, sampling, console))
    except KeyboardInterrupt:
        pass  # What was said until then stays.
    except (InvalidRequestError, ServerError) as error:
        conversation.unsay()
        _remark(console, f"{error} (/reset starts anew)")
        return
    conversation.say("assistant", answer.text)
    sys.stdout.write("\n")
    sys.stdout.flush()
    for remark in answer.remarks(sampling):
        _remark(console, remark)


def _remark(console: Console, text: str, end: str = "\n") -> None:
    console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True, end=end)


def _template_kwargs(text: str | None) -> dict[str, TemplateValue]:
    """Raises `InvalidOptionError` for text that is no JSON object."""
    field = "chat_template_kwargs"
    kwargs: dict[str, TemplateValue] = {} if text is None else JSON_OBJECT.read(field, text)
    return kwargs


def _enable_line_editing() -> None:
    """Arrow keys and history, where Python was built with them: `input` uses what is imported."""
    with suppress(ImportError):
        import readline  # noqa: F401


def _require_servers_own(options: EngineOptions) -> None:
    """Of the engine's options none but the model is said. Raises `InvalidOptionError`."""
    defaults = EngineOptions(model=options.model).as_told()
    for name, given in options.as_told().items():
        if given != defaults[name]:
            limit = "not beside url: the server has its own options of the engine"
            raise InvalidOptionError(name, given, limit)
