"""`pagoda generate`: answers to prompts from the arguments, a file or stdin."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.engine_start import load_engine
from pagoda.cli.figures import Figures
from pagoda.cli.flags import WHOLE, Flag, with_flags
from pagoda.cli.prompts import PromptSource
from pagoda.cli.sampling_flags import SAMPLING_FLAGS
from pagoda.cli.terminal import logging_to
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.request import SamplingParams

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, RequestOutput

_HEADING_CHARACTERS = 60
"""Of a prompt above its answer."""

_FLAGS = SAMPLING_FLAGS.plus(
    Flag("n", WHOLE, "Answers per prompt."),
    Flag("logprobs", WHOLE, "With --json: tell of each token, and of so many others."),
).with_defaults(max_tokens=256)


@with_flags(ENGINE_FLAGS, _FLAGS)
def generate(
    options: EngineOptions,
    sampling: SamplingParams,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; without any, --file or stdin is read.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="One prompt a line; .jsonl: a JSON string or {prompt} a line."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line and prompt.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put each prompt through the model's chat template.")
    ] = False,
) -> None:
    """Answer prompts. Answers go to stdout in the prompts' order, everything else to stderr.

    Several have a line with the prompt before each; programs had better read --json.
    """
    if sampling.logprobs is not None and not as_json:
        raise InvalidOptionError("logprobs", sampling.logprobs, "is told with --json only")
    texts = PromptSource(prompts or [], file, sys.stdin).read()
    console = Console(stderr=True)
    with logging_to(console, "pagoda"):
        engine = load_engine(options, console)
        writer: TextWriter | JSONWriter = TextWriter(several=len(texts) > 1)
        if as_json:
            tokenizer = engine.tokenizer
            writer = JSONWriter(tokenizer.text_bytes(sampling), tokenizer.token_bytes)
        figures = asyncio.run(answer_all(engine, texts, sampling, writer, chat=chat))
        console.print(str(figures), style="dim", highlight=False, soft_wrap=True)


class TextWriter:
    """Answers as plain text: one alone as it grows, several when finished.

    Before each of several stands a line that tells its number and its prompt: answers may hold
    blank lines, and anything else.
    """

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._shown = 0

    def grow(self, output: RequestOutput) -> None:
        if not self._several and len(output.outputs) == 1:
            text = output.outputs[0].text
            _write(text[self._shown :])
            self._shown = len(text)

    def finish(self, index: int, prompt: str, output: RequestOutput) -> None:
        if not self._several and len(output.outputs) == 1:
            _write("\n")
            return
        for number, choice in enumerate(output.outputs, 1):
            which = f"{index + 1}" if len(output.outputs) == 1 else f"{index + 1}.{number}"
            gap = "\n" if index or number > 1 else ""
            _write(f"{gap}==> {which}: {_in_one_line(prompt)} <==\n", choice.text, "\n")


class JSONWriter:
    """One object a line, in the shape of the HTTP API's completions."""

    def __init__(
        self, text_bytes: Callable[[int], bytes], token_bytes: Callable[[int], bytes]
    ) -> None:
        """`text_bytes` gives the bytes that a token is in the text, `token_bytes` those of any."""
        self._text_bytes = text_bytes
        self._token_bytes = token_bytes

    def grow(self, output: RequestOutput) -> None:
        """Nothing is written before the answer is whole."""

    def finish(self, index: int, prompt: str, output: RequestOutput) -> None:
        figures = Figures.of([output], 0.0)
        line = {
            "index": index,
            "prompt": prompt,
            "choices": [
                {
                    "index": choice.index,
                    "text": choice.text,
                    "token_ids": list(choice.token_ids),
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    **self._logprobs(choice),
                }
                for choice in output.outputs
            ],
            "usage": {
                "prompt_tokens": figures.num_prompt_tokens,
                "completion_tokens": figures.num_new_tokens,
                "prompt_tokens_details": {"cached_tokens": figures.num_cached_tokens},
            },
        }
        _write(json.dumps(line, ensure_ascii=False), "\n")

    def _logprobs(self, choice: CompletionOutput) -> dict[str, Any]:
        if choice.logprobs is None:
            return {}
        from pagoda.server.logprobs import completion_logprobs
        from pagoda.server.text_offsets import TextOffsets
        from pagoda.server.token_names import TokenNames

        offsets = TextOffsets().of(map(self._text_bytes, choice.token_ids))
        names = TokenNames(self._token_bytes)
        shaped = completion_logprobs(choice.token_ids, choice.logprobs, offsets, names)
        return {"logprobs": shaped.model_dump()}


async def answer_all(
    engine: AsyncEngine,
    prompts: Sequence[str],
    sampling: SamplingParams,
    writer: TextWriter | JSONWriter,
    *,
    chat: bool,
) -> Figures:
    """Run all prompts at once and write their answers in order.

    Raises `InvalidRequestError` for a prompt that is refused, before any is begun, and with the
    first one for what is asked of sampling.
    """
    started = time.perf_counter()
    tasks: list[asyncio.Task[RequestOutput]] = []
    outputs = []
    try:
        token_ids = await asyncio.gather(
            *(_token_ids(engine, number, prompt, chat) for number, prompt in enumerate(prompts, 1))
        )
        engine.start()
        for index, given in enumerate(token_ids):
            tasks.append(asyncio.create_task(_answer(engine, index, given, sampling, writer)))
        for index, task in enumerate(tasks):
            output = await task
            writer.finish(index, prompts[index], output)
            outputs.append(output)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.shutdown()
    return Figures.of(outputs, time.perf_counter() - started)


async def _token_ids(engine: AsyncEngine, number: int, prompt: str, chat: bool) -> Sequence[int]:
    """Of the prompt of that number. Raises `InvalidRequestError` that names it."""
    try:
        if chat:
            return await engine.tokenizer.chat([{"role": "user", "content": prompt}], tenant="")
        return await engine.tokenizer.prompt(prompt, tenant="")
    except InvalidRequestError as error:
        raise error.of(f"prompt {number}") from None


async def _answer(
    engine: AsyncEngine,
    index: int,
    prompt: Sequence[int],
    sampling: SamplingParams,
    writer: TextWriter | JSONWriter,
) -> RequestOutput:
    stream = engine.generate(prompt, sampling, request_id=f"generate-{index}")
    async with aclosing(stream) as outputs:
        last: RequestOutput
        async for last in outputs:
            writer.grow(last)
    return last


def _in_one_line(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= _HEADING_CHARACTERS else f"{line[: _HEADING_CHARACTERS - 1]}…"


def _write(*parts: str) -> None:
    sys.stdout.write("".join(parts))
    sys.stdout.flush()
