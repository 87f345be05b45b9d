"""What a caller asks for: immutable, and checked where it is made.

SamplingParams    how tokens are chosen and when to stop
RequestOptions    everything else that a caller may say about a request
Request           both with the prompt's token ids, as the engine takes them
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from pagoda.errors import InvalidRequestError
from pagoda.structured import StructuredOutputs

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_LOGIT_BIASES = 1024
MAX_SEED = 2**63 - 1
_SWITCHES = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "prompt_alone")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop; the names and defaults are vLLM's.

    Raises `InvalidRequestError` for a value out of range or of the wrong type.
    """

    n: int = 1
    """Choices per prompt; they share the prompt's blocks."""
    temperature: float = 1.0
    """0 is greedy: always the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    seed: int | None = None
    """With a seed, the same request gives the same tokens, whatever it is batched with."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids."""
    max_tokens: int | None = 16
    """None: until a stop or the model's length."""
    min_tokens: int = 0
    """No end-of-sequence or stop token before this many."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    """Log-probabilities of the chosen token and of this many most likely ones, per output token."""
    prompt_logprobs: int | None = None
    """The same for every prompt token but the first; such a request reads nothing from the
    cache."""
    skip_special_tokens: bool = True
    prompt_alone: bool = False
    """The prompt is all that is wanted, with its log-probabilities perhaps: the one token that is
    drawn where it ends (`max_tokens` must be 1) counts as generated nowhere."""
    structured_outputs: StructuredOutputs | None = None
    """What the answer must look like. It ends when that is fulfilled and the model says so, or can
    go no further, whatever `min_tokens` and `ignore_eos` say."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            value = () if getattr(self, name) is None else getattr(self, name)
            if not isinstance(value, (list, tuple)):
                raise InvalidRequestError(name, value, "must be a list")
            object.__setattr__(self, name, tuple(value))
        if self.logit_bias is None:
            object.__setattr__(self, "logit_bias", {})
        self._check_ranges()
        self._check_stops()
        self._check_logit_bias()
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    def __reduce__(self) -> tuple[Callable[..., SamplingParams], tuple[dict[str, object]]]:
        """Pickles and copies through the constructor, since a mapping proxy does neither."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _sampling_params, (values | {"logit_bias": dict(self.logit_bias)},)

    def _check_ranges(self) -> None:
        _whole("n", self.n, 1, MAX_CHOICES)
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, above=True)
        _whole("top_k", self.top_k, -1, 2**31 - 1)
        _real("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _whole("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        # Below, the quotient would leave float32.
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                "min_tokens", self.min_tokens, f"must be at most max_tokens, {self.max_tokens}"
            )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MAX_LOGPROBS)
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            limit = "must be StructuredOutputs"
            raise InvalidRequestError("structured_outputs", self.structured_outputs, limit)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(name, getattr(self, name), "must be true or false")
        if self.prompt_alone and self.max_tokens != 1:
            raise InvalidRequestError("prompt_alone", True, "is allowed with max_tokens=1 only")

    def _check_stops(self) -> None:
        for name in ("stop", "stop_token_ids"):
            if len(getattr(self, name)) > MAX_STOPS:
                count = len(getattr(self, name))
                raise InvalidRequestError(name, f"{count} entries", f"at most {MAX_STOPS}")
        for text in self.stop:
            if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_CHARACTERS:
                limit = f"each must be a string of 1 to {MAX_STOP_CHARACTERS} characters"
                raise InvalidRequestError("stop", text, limit)
        for token_id in self.stop_token_ids:
            _whole("stop_token_ids", token_id, 0, 2**31 - 1)

    def _check_logit_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError(
                "logit_bias", self.logit_bias, "must map token ids to numbers"
            )
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            count = f"{len(self.logit_bias)} entries"
            raise InvalidRequestError("logit_bias", count, f"at most {MAX_LOGIT_BIASES}")
        for token_id, bias in self.logit_bias.items():
            _whole("logit_bias", token_id, 0, 2**31 - 1)
            _real("logit_bias", bias, -100.0, 100.0)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a caller may say about a request beside its prompt and its sampling parameters.

    It is passed whole from the door to the scheduler, so a new field is written here and where it
    is used. Raises `InvalidRequestError` for a value of the wrong type.
    """

    priority: int = 0
    """Lower goes first under the `priority` policy; ignored under `fcfs`."""
    tenant: str = ""
    cache_salt: str = ""
    """Only requests with the same tenant and salt share cached blocks."""
    max_tokens_field: str | None = None
    """The caller's own name for `max_tokens`. With it, more tokens than the model's length leaves
    are refused by that name; without it the answer ends at the model's length."""

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise InvalidRequestError("priority", self.priority, "must be a whole number")
        for name in ("tenant", "cache_salt"):
            if not isinstance(getattr(self, name), str):
                raise InvalidRequestError(name, getattr(self, name), "must be a string")


DEFAULT_REQUEST_OPTIONS = RequestOptions()


@dataclass(frozen=True, slots=True)
class Request:
    """One ask, as the engine takes it: token ids and what to do with them. Immutable.

    The engine has checked `prompt_token_ids` against the model's vocabulary and length.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    options: RequestOptions = DEFAULT_REQUEST_OPTIONS
    seed: int = 0
    """Where the draws start: the caller's seed, or one that the engine chose."""
    arrival_time: float = field(default_factory=time.monotonic)
    """Seconds on the monotonic clock."""
    grammar: Any = None
    """What the engine compiled `sampling.structured_outputs` to."""
    stop_token_ids: frozenset[int] = field(init=False)
    """Tokens that end the output: the request's own and, unless ignored, the model's. The end of a
    structured answer cannot be ignored."""

    def __post_init__(self) -> None:
        own = frozenset(self.sampling.stop_token_ids)
        ignores = self.sampling.ignore_eos and self.sampling.structured_outputs is None
        ending = own if ignores else own | self.eos_token_ids
        object.__setattr__(self, "stop_token_ids", ending)


def _sampling_params(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(name, value, "must be a whole number")
    if not low <= value <= high:
        raise InvalidRequestError(name, value, f"must be between {low} and {high}")


def _real(name: str, value: object, low: float, high: float, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequestError(name, value, "must be a number")
    # NaN is in no range; math.isfinite would fail on whole numbers beyond float64.
    if not low <= value <= high or (above and value == low):
        start = f"above {low:g}" if above else f"at least {low:g}"
        raise InvalidRequestError(name, value, f"must be {start} and at most {high:g}")
