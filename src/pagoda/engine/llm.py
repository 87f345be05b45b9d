"""`LLM`, the engine in one object."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from tqdm import tqdm

from pagoda.engine.build import connect, load_model
from pagoda.engine.core import Engine, StepFailedError
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.stats import EngineStats
from pagoda.errors import InvalidOptionError, InvalidRequestError, PagodaError
from pagoda.request import Request, SamplingParams

Sink = deque[RequestOutput | PagodaError]
"""Where what comes of some requests waits for whoever asked."""

Message = Mapping[str, str]
"""One turn of a conversation: `role` and `content`."""


Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping of one of the two."""


class LLM:
    """A model that answers prompts, in this process.

        llm = LLM()
        for output in llm.generate(["The capital of France is"]):
            print(output.outputs[0].text)

    Options are those of `EngineOptions`, by name. Several threads may ask at once: whoever waits
    takes the next step, which is for everybody.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        """Raises `RefusedError` for options, model files or memory that will not do."""
        known = {option.name for option in fields(EngineOptions)}
        for name in options.keys() - known:
            raise InvalidOptionError(name, options[name], "is no option of the engine")
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
        self._sinks: dict[str, Sink] = {}
        self._lock = threading.RLock()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Answer every prompt; outputs come in the prompts' order.

        A prompt is text, token ids, or one of these under its name as vLLM has it: {"prompt": …},
        {"prompt_token_ids": …}.

        Raises `InvalidRequestError` before any prompt is begun if one of them is refused, or later,
        for the whole batch, if a grammar turns out too complex to follow.
        """
        batch = _as_batch(prompts)
        params = _as_params(sampling_params, len(batch))
        asked = [
            self._request(prompt, param, priority=priority, cache_salt=cache_salt)
            for prompt, param in zip(batch, params, strict=True)
        ]
        return self._finish(asked, batch, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
        cache_salt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[RequestOutput]:
        """Answer a conversation, or several, through the model's chat template.

        `tools`, in OpenAI's form, are described to the model; its calls stay text.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations = messages if several else [messages]
        return self.generate(
            [self._chat_prompt(conversation, tools) for conversation in conversations],  # type: ignore[arg-type]
            sampling_params,
            use_tqdm=use_tqdm,
            priority=priority,
            cache_salt=cache_salt,
        )

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Iterator[RequestOutput]:
        """The answer as it grows. Closing the iterator ends the request.

        Raises `InvalidRequestError` at once, not at the first output.
        """
        params = sampling_params or SamplingParams()
        request = self._request(prompt, params, priority=priority, cache_salt=cache_salt)
        text = prompt if isinstance(prompt, str) else None
        return self._stream(request, text)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Iterator[RequestOutput]:
        """The answer to a conversation as it grows."""
        prompt = self._chat_prompt(messages)
        return self.stream(prompt, sampling_params, priority=priority, cache_salt=cache_salt)

    def stats(self) -> EngineStats:
        """Counts and state of the engine as of now."""
        return self.engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget everything that could be shared; running requests keep what they hold."""
        self.engine.scheduler.cache.forget()

    # ---- inside ------------------------------------------------------------------------------

    def _request(
        self, prompt: str | Sequence[int], params: SamplingParams, *, priority: int, cache_salt: str
    ) -> Request:
        request_id = str(next(self._ids))
        return self.engine.intake.request(
            request_id, prompt, params, priority=priority, cache_salt=cache_salt
        )

    def _chat_prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        return self.engine.intake.chat(messages, tools)

    def _finish(
        self, asked: list[Request], prompts: list[str | Sequence[int]], use_tqdm: bool
    ) -> list[RequestOutput]:
        sink: Sink = deque()
        results: dict[str, RequestOutput] = {}
        with ExitStack() as running:
            for request, prompt in zip(asked, prompts, strict=True):
                text = prompt if isinstance(prompt, str) else None
                running.enter_context(self._running(request, text, sink, streams=False))
            progress = running.enter_context(
                tqdm(total=len(asked), desc="Processed prompts", disable=not use_tqdm)
            )
            while len(results) < len(asked):
                output = self._next(sink)
                results[output.request_id] = output
                progress.update()
        return [results[request.request_id] for request in asked]

    def _stream(self, request: Request, prompt: str | None) -> Iterator[RequestOutput]:
        sink: Sink = deque()
        with self._running(request, prompt, sink, streams=True):
            finished = False
            while not finished:
                output = self._next(sink)
                finished = output.finished
                yield output

    @contextmanager
    def _running(
        self, request: Request, prompt: str | None, sink: Sink, *, streams: bool
    ) -> Iterator[None]:
        """The request runs, and what comes of it goes into `sink`, until the block is left."""
        with self._lock:
            self._sinks[request.request_id] = sink
        try:
            with self._lock:
                self.engine.add(request, prompt, streams=streams)
            yield
        finally:
            with self._lock:
                del self._sinks[request.request_id]
                self.engine.abort(request.request_id)

    def _next(self, sink: Sink) -> RequestOutput:
        """The sink's next output, taking steps until there is one. Raises what was put there."""
        while True:
            with self._lock:
                if sink:
                    arrived = sink.popleft()
                    break
                self._step()
        if isinstance(arrived, PagodaError):
            raise arrived
        return arrived

    def _step(self) -> None:
        """One step for everybody: several streams may be open at once."""
        try:
            outputs: Sequence[RequestOutput] = self.engine.step()
        except StepFailedError as failed:
            for request_id, error in failed.errors.items():
                self._sinks[request_id].append(error)
            outputs = failed.outputs
        for output in outputs:
            self._sinks[output.request_id].append(output)


def show_log() -> None:
    """Let the engine's lines be seen where the program has not decided about logging."""
    logger = logging.getLogger("pagoda")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def _advance(progress: tqdm, done_bytes: int, total_bytes: int) -> None:
    progress.total = total_bytes
    progress.update(done_bytes - progress.n)


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[str | Sequence[int]]:
    """One prompt or many: a string, a mapping or a list of whole numbers is one."""
    if isinstance(prompts, str | Mapping):
        return [_plain(prompts)]
    try:
        batch: list[Any] = list(prompts)
    except TypeError:
        limit = "must be text, token ids, or a list of those"
        raise InvalidRequestError("prompts", prompts, limit) from None
    return [batch] if batch and isinstance(batch[0], int) else list(map(_plain, batch))


def _plain(prompt: Prompt) -> str | Sequence[int]:
    """A prompt without the name that it may be given under."""
    if not isinstance(prompt, Mapping):
        return prompt
    if len(prompt) != 1 or next(iter(prompt)) not in ("prompt", "prompt_token_ids"):
        limit = "a mapping has either prompt or prompt_token_ids and nothing else"
        raise InvalidRequestError("prompts", sorted(map(str, prompt)), limit)
    (content,) = prompt.values()
    return content


def _as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        limit = f"one for all prompts, or one for each of the {count}"
        raise InvalidRequestError("sampling_params", f"{len(params)} given", limit)
    return list(params)
