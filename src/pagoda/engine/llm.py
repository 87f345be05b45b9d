"""`LLM`, the engine in one object."""

from __future__ import annotations

import difflib
import itertools
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from tqdm import tqdm

from pagoda.cache_hint import cache_hint_of
from pagoda.engine.build import connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.foreign_options import INSTEAD
from pagoda.engine.intake import require_params
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.prompt_forms import (
    Message,
    Prompt,
    as_templates_want,
    conversations_of,
    prompt_of,
    prompts_of,
    tools_of,
)
from pagoda.engine.sessions.desk import SessionDesk
from pagoda.engine.shared_steps import Inbox, SharedSteps
from pagoda.engine.stats import EngineStats
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import Request, RequestOptions, SamplingParams

Result = TypeVar("Result")


class LLM:
    """A model that answers prompts, in this process.

        llm = LLM()
        for output in llm.generate(["The capital of France is"]):
            print(output.outputs[0].text)

    Options are the fields of `EngineOptions`, by name. docs/python.md tells them all.
    Several threads may ask at once: whoever waits takes the next step, which is for everybody.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        """`model`: a directory, a .gguf file, a hub id; None: the default model. `options`: the
        other fields of `EngineOptions`, by name.

        Raises `RefusedError` for options, model files or memory that will not do."""
        _require_known(options)
        checked = EngineOptions(model=model, **options)
        show_log()
        with tqdm(desc="Loading", unit="B", unit_scale=True, leave=False) as progress:
            loaded = load_model(checked, partial(_advance, progress))
        self._open(connect(loaded, checked))

    @classmethod
    def from_engine(cls, engine: Engine) -> LLM:
        """An `LLM` over an engine that is already there."""
        llm = cls.__new__(cls)
        llm._open(engine)
        return llm

    def _open(self, engine: Engine) -> None:
        self.engine = engine
        self._ids = itertools.count()
        self._steps = SharedSteps(engine)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
        cache_salt: str = "",
        kv_retention: str | None = None,
        cache_hint: str | None = None,
        session_id: str | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt; outputs come in the prompts' order.

        A prompt is text, token ids, or one of these under its name as vLLM has it: {"prompt": …},
        {"prompt_token_ids": …}.

        Raises `InvalidRequestError` before any prompt is begun if one of them is refused, or later,
        for the whole batch, if a grammar turns out too complex to follow.
        """
        asked = _asked(priority, cache_salt, kv_retention, cache_hint, session_id)
        return self._answer(prompts_of(prompts), sampling_params, asked, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
        cache_salt: str = "",
        kv_retention: str | None = None,
        cache_hint: str | None = None,
        session_id: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several, through the model's chat template.

        `tools`, in OpenAI's form, {"type": "function", "function": {"name": …}}, are described to
        the model; its calls stay text.
        """
        asked = _asked(priority, cache_salt, kv_retention, cache_hint, session_id)
        prompts = [self._chat_prompt(each, tools) for each in conversations_of(messages)]
        return self._answer(prompts, sampling_params, asked, use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        kv_retention: str | None = None,
        cache_hint: str | None = None,
        session_id: str | None = None,
    ) -> Iterator[RequestOutput]:
        """The answer as it grows. Closing the iterator ends the request.

        Raises `InvalidRequestError` at once, not at the first output.
        """
        asked = _asked(priority, cache_salt, kv_retention, cache_hint, session_id)
        return self._grow(prompt_of(prompt), sampling_params, asked)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        kv_retention: str | None = None,
        cache_hint: str | None = None,
        session_id: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Iterator[RequestOutput]:
        """The answer to a conversation as it grows; `tools` are those of `chat`."""
        asked = _asked(priority, cache_salt, kv_retention, cache_hint, session_id)
        return self._grow(self._chat_prompt(messages, tools), sampling_params, asked)

    @property
    def sessions(self) -> SessionDesk:
        """Saves and restores, exports and imports what was computed with a `session_id`; the tenant
        is ""."""
        return SessionDesk(self.engine.sessions, self._use_cache)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: text to token ids and back."""
        return self.engine.tokenizer

    def stats(self) -> EngineStats:
        """Counts and state of the engine as of now."""
        return self.engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget everything that could be shared; running requests keep what they hold."""
        self._steps.between(self.engine.reset_prefix_cache)

    def close(self) -> None:
        """Store what is on its way to tiers, for some seconds at most, and give them up. Nothing
        may be asked afterwards. It is needed with tiers alone."""
        self._steps.between(self.engine.close)

    # ---- inside ------------------------------------------------------------------------------

    def _use_cache(self, do: Callable[[], Result]) -> Result:
        done: list[Result] = []
        self._steps.between(lambda: done.append(self.engine.use_cache(do)))
        return done[0]

    def _answer(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        options: RequestOptions,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """The finished outputs of all prompts, in their order."""
        params = _one_for_each(sampling_params, len(prompts))
        requests = [
            self._request(prompt, param, options)
            for prompt, param in zip(prompts, params, strict=True)
        ]
        inbox: Inbox = deque()
        finished: dict[str, RequestOutput] = {}
        with ExitStack() as running:
            for request, prompt in zip(requests, prompts, strict=True):
                running.enter_context(
                    self._steps.running(request, _text_of(prompt), inbox, streams=False)
                )
            progress = running.enter_context(
                tqdm(total=len(requests), desc="Processed prompts", disable=not use_tqdm)
            )
            while len(finished) < len(requests):
                output = self._steps.next(inbox)
                finished[output.request_id] = output
                progress.update()
        return [finished[request.request_id] for request in requests]

    def _grow(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None,
        options: RequestOptions,
    ) -> Iterator[RequestOutput]:
        """The outputs of one prompt; what is refused is refused here, before the first of them."""
        (params,) = _one_for_each(sampling_params, 1)
        request = self._request(prompt, params, options)
        return self._outputs(request, _text_of(prompt))

    def _outputs(self, request: Request, prompt: str | None) -> Iterator[RequestOutput]:
        inbox: Inbox = deque()
        with self._steps.running(request, prompt, inbox, streams=True):
            finished = False
            while not finished:
                output = self._steps.next(inbox)
                finished = output.finished
                yield output

    def _request(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> Request:
        return self.engine.intake.request(str(next(self._ids)), prompt, params, options)

    def _chat_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        return self.engine.intake.tokenizer.chat(as_templates_want(messages), tools_of(tools))


def show_log() -> None:
    """Let the engine's lines be seen where the program has not decided about logging."""
    logger = logging.getLogger("pagoda")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def _advance(progress: tqdm, done_bytes: int, total_bytes: int) -> None:
    progress.total = total_bytes
    progress.update(done_bytes - progress.n)


def _asked(
    priority: int,
    cache_salt: str,
    kv_retention: str | None,
    cache_hint: str | None,
    session_id: str | None,
) -> RequestOptions:
    return RequestOptions(
        priority=priority,
        cache_salt=cache_salt,
        kv_retention=kv_retention,
        cache_hint=cache_hint_of(cache_hint),
        session_id=session_id,
    )


def _text_of(prompt: str | Sequence[int]) -> str | None:
    return prompt if isinstance(prompt, str) else None


def _one_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    several = isinstance(params, Sequence) and not isinstance(params, str)
    given: list[Any] = list(params) if several else [params]
    for each in given:
        require_params(each)
    if len(given) != count:
        limit = f"one for all prompts, or one for each of the {count}"
        raise InvalidRequestError("sampling_params", f"{len(given)} given", limit)
    return given


def _require_known(options: Mapping[str, Any]) -> None:
    known = [option.name for option in fields(EngineOptions)]
    for name, value in options.items():
        if name not in known:
            foreign = INSTEAD.get(name.replace("_", "-"))
            if foreign is not None:
                words = re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), foreign)
                raise InvalidOptionError(name, value, f"is vLLM's. Here: {words}")
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidOptionError(name, value, f"is no option of the engine{hint}")
