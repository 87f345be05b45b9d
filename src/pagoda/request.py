"""What a caller asks for: immutable, and checked where it is made.

SamplingParams    how tokens are chosen and when to stop
RequestOptions    everything else that a caller may say about a request
Request           both with the prompt's token ids, as the engine takes them
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from pagoda.cache_hint import CacheHint, cache_hint_of
from pagoda.errors import InvalidRequestError
from pagoda.limits import TOKEN_ID, Items, Real, Switch, Texts, TokenIds, Whole, limits_of
from pagoda.structured import StructuredOutputs
from pagoda.truncation import Truncation

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 16384
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256
MAX_SEED = 2**63 - 1
_NO_SEED = -1
MAX_CACHE_SALT_CHARACTERS = 256
MAX_SESSION_ID_CHARACTERS = 256
_BIAS = Real(-100.0, 100.0)
_LIST_LIMITS: Mapping[str, Items | Texts | TokenIds] = MappingProxyType(
    {
        "stop": Texts(MAX_STOPS, MAX_STOP_CHARACTERS),
        "stop_token_ids": TokenIds(MAX_STOPS),
        "allowed_token_ids": TokenIds(MAX_ALLOWED_TOKEN_IDS, least=1),
        "bad_words": Texts(MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS),
        "bad_words_ids": Items(4 * MAX_BAD_WORDS),
    }
)
_BAD_WORD_IDS = TokenIds(4 * MAX_BAD_WORD_CHARACTERS, least=1)
_SWITCH = Switch()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop; the names and defaults are vLLM's.

    Raises `InvalidRequestError` for a value out of range or of the wrong type. A field's metadata
    has its `limit`, and for most fields the words of a `flag`: the commands then have one.
    """

    n: int = field(default=1, metadata={"limit": Whole(1, MAX_CHOICES)})
    """Choices per prompt; they share the prompt's blocks."""
    temperature: float = field(
        default=1.0,
        metadata={"limit": Real(0.0, 100.0), "flag": "0 always takes the likeliest token."},
    )
    """0 is greedy: always the most likely token."""
    top_p: float = field(
        default=1.0,
        metadata={
            "limit": Real(0.0, 1.0, above_low=True),
            "flag": "Keep the likeliest tokens up to this share.",
        },
    )
    top_k: int = field(
        default=0,
        metadata={"limit": Whole(-1, 2**31 - 1), "flag": "Keep this many tokens; 0 keeps all."},
    )
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = field(
        default=0.0,
        metadata={
            "limit": Real(0.0, 1.0),
            "flag": "Keep tokens at least this fraction as likely as the likeliest.",
        },
    )
    seed: int | None = field(
        default=None, metadata={"limit": Whole(-MAX_SEED - 1, MAX_SEED, or_none=True)}
    )
    """With a seed, the same request gives the same tokens, whatever it is batched with. -1, as
    clients of vLLM and llama.cpp write it, is none."""
    repetition_penalty: float = field(
        default=1.0,
        # Below, the quotient would leave float32.
        metadata={"limit": Real(0.01, 100.0), "flag": "Above 1: less of what was said, or asked."},
    )
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    presence_penalty: float = field(
        default=0.0, metadata={"limit": Real(-2.0, 2.0), "flag": "Above 0: less of what was said."}
    )
    frequency_penalty: float = field(
        default=0.0,
        metadata={"limit": Real(-2.0, 2.0), "flag": "Above 0: less of what was said often."},
    )
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """No other token is drawn, the end neither unless it is among them; None: all may be. Where a
    grammar leaves none of them, the grammar decides."""
    bad_words: tuple[str, ...] = ()
    """Texts that are not said, by the tokens that spell them as the tokenizer would, at a text's
    start and behind a space; other tokens could still spell the same."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """The same as token ids. The engine adds those of `bad_words`."""
    max_tokens: int | None = field(
        default=16,
        metadata={
            "limit": Whole(1, 2**31 - 1, or_none=True),
            "flag": "Longest answer, in tokens.",
        },
    )
    """None: until a stop or the model's length."""
    min_tokens: int = field(
        default=0,
        metadata={"limit": Whole(0, 2**31 - 1), "flag": "No end before this many tokens."},
    )
    """No end-of-sequence or stop token before this many."""
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these texts."""
    stop_token_ids: tuple[int, ...] = ()
    """The answer ends with the first of these tokens, which is not part of its text."""
    ignore_eos: bool = field(
        default=False,
        metadata={"limit": Switch(), "flag": "Go on past the end that the model sets."},
    )
    include_stop_str_in_output: bool = field(default=False, metadata={"limit": Switch()})
    """The text has what it was stopped by at its end."""
    logprobs: int | None = field(
        default=None, metadata={"limit": Whole(0, MAX_LOGPROBS, or_none=True)}
    )
    """Log-probabilities of the chosen token and of this many most likely ones, per output token."""
    prompt_logprobs: int | None = field(
        default=None, metadata={"limit": Whole(0, MAX_LOGPROBS, or_none=True)}
    )
    """The same for every prompt token but the first; such a request reads nothing from the
    cache."""
    skip_special_tokens: bool = field(default=True, metadata={"limit": Switch()})
    """Special tokens are not part of the text."""
    prompt_alone: bool = field(default=False, metadata={"limit": Switch()})
    """The prompt is all that is wanted, with its log-probabilities perhaps: the one token that is
    drawn where it ends (`max_tokens` must be 1) counts as generated nowhere."""
    structured_outputs: StructuredOutputs | None = None
    """What the answer must look like. It ends when that is fulfilled and the model says so, or can
    go no further, whatever `min_tokens` and `ignore_eos` say."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in _LIST_LIMITS:
            value = getattr(self, name)
            if value is None and name != "allowed_token_ids":
                value = ()
            if value is not None:
                object.__setattr__(self, name, _listed(name, value))
        if self.logit_bias is None:
            object.__setattr__(self, "logit_bias", {})
        self._check_limits()
        self._check_lists()
        self._check_logit_bias()
        if self.seed == _NO_SEED:
            object.__setattr__(self, "seed", None)
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    def __reduce__(self) -> tuple[Callable[..., SamplingParams], tuple[dict[str, object]]]:
        """Pickles and copies through the constructor, since a mapping proxy does neither."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _sampling_params, (values | {"logit_bias": dict(self.logit_bias)},)

    def _check_limits(self) -> None:
        for name, limit in SAMPLING_LIMITS.items():
            limit.check(name, getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                "min_tokens", self.min_tokens, f"must be at most max_tokens, {self.max_tokens}"
            )
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise InvalidRequestError(
                "structured_outputs",
                self.structured_outputs,
                "must be a StructuredOutputs of pagoda",
            )
        if self.prompt_alone and self.max_tokens != 1:
            raise InvalidRequestError("prompt_alone", True, "is allowed with max_tokens=1 only")

    def _check_lists(self) -> None:
        for name, limit in _LIST_LIMITS.items():
            if getattr(self, name) is not None:
                limit.check(name, getattr(self, name))
        for ids in self.bad_words_ids:
            _BAD_WORD_IDS.check("bad_words_ids", ids)

    def _check_logit_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError(
                "logit_bias", self.logit_bias, "must map token ids to numbers"
            )
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            count = f"{len(self.logit_bias)} entries"
            raise InvalidRequestError("logit_bias", count, f"at most {MAX_LOGIT_BIASES}")
        for token_id, bias in self.logit_bias.items():
            TOKEN_ID.check("logit_bias", token_id)
            _BIAS.check("logit_bias", bias)


SAMPLING_LIMITS = limits_of(SamplingParams)
"""The limit of each field that is a number or a switch, by name."""


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The tokens around what a model may think before an answer that must have a form."""

    opening_id: int
    closing_id: int
    is_open: bool
    """The prompt ends within the thought; otherwise one may begin with the first token."""


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
    cache_hint: CacheHint | None = None
    """How long its blocks are to stay in the cache, beside others: pin, session or none."""
    max_tokens_field: str | None = None
    """The caller's own name for `max_tokens`. With it, more tokens than the model's length are
    refused by that name. Either way the answer ends at the model's length."""
    add_special_tokens: bool = True
    """The tokenizer adds its own around a prompt that is text."""
    session_id: str | None = None
    """The conversation that the request belongs to, by a name of the caller's: what it computes is
    remembered under it, to be saved or exported. None: it belongs to none."""
    kv_retention: str | None = None
    """Which tokens stay in the cache, by a name of `--kv-retention`; None: as the engine keeps."""
    truncation: Truncation | None = None
    """How a prompt that may be too long is cut; None: it is refused."""
    shown_ids: frozenset[int] = frozenset()
    """Special tokens that are part of the text, where others are left out of it."""
    thought: ThoughtMarks | None = None
    """`structured_outputs` hold for what comes behind such a thought; None: from the first token
    on."""

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise InvalidRequestError("priority", self.priority, "must be a whole number")
        _SWITCH.check("add_special_tokens", self.add_special_tokens)
        for name in ("tenant", "cache_salt"):
            if not isinstance(getattr(self, name), str):
                raise InvalidRequestError(name, getattr(self, name), "must be a string")
        object.__setattr__(self, "cache_hint", cache_hint_of(self.cache_hint))
        if self.session_id is not None:
            require_session_id(self.session_id)
        if not isinstance(self.kv_retention, str | None):
            raise InvalidRequestError("kv_retention", self.kv_retention, "must be a string")
        if len(self.cache_salt) > MAX_CACHE_SALT_CHARACTERS:
            given = f"{len(self.cache_salt)} characters"
            limit = f"at most {MAX_CACHE_SALT_CHARACTERS} characters"
            raise InvalidRequestError("cache_salt", given, limit)


DEFAULT_REQUEST_OPTIONS = RequestOptions()


def require_session_id(session_id: object) -> str:
    """A name that a session may have. Raises `InvalidRequestError`."""
    if not isinstance(session_id, str):
        raise InvalidRequestError("session_id", session_id, "must be a string")
    if not 0 < len(session_id) <= MAX_SESSION_ID_CHARACTERS:
        given = f"{len(session_id)} characters"
        limit = f"must have 1 to {MAX_SESSION_ID_CHARACTERS} characters"
        raise InvalidRequestError("session_id", given, limit)
    if not session_id.isprintable():  # addresses, logs and listings show it
        raise InvalidRequestError("session_id", session_id, "must be of printable characters")
    return session_id


@dataclass(frozen=True, slots=True)
class Request:
    """One ask, as the engine takes it: token ids and what to do with them. Immutable.

    The engine has checked `prompt_token_ids` against the model's vocabulary and length.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    """A tuple; in a replay of a trace what stands for one, `pagoda.cache.hashed_tokens`."""
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


def _listed(name: str, value: object) -> tuple[Any, ...]:
    """A list's items, lists among them made tuples as well."""
    if not isinstance(value, (list, tuple)):
        raise InvalidRequestError(name, value, "must be a list")
    return tuple(tuple(each) if isinstance(each, list) else each for each in value)


def _sampling_params(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)
