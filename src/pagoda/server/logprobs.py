"""Log-probabilities as JSON, in the shapes of OpenAI's two APIs; of prompts in vLLM's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from pagoda.server.json_parts import items_json
from pagoda.server.responses import CompletionLogprobs
from pagoda.server.token_names import TokenNames

if TYPE_CHECKING:
    from pagoda.engine.outputs import Logprob

MANY_LOGPROBS = 1000
"""They take a millisecond or two to write."""
LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write; the value is OpenAI's."""


class WrittenLogprobs(NamedTuple):
    """`CompletionLogprobs` as JSON: the items of its parallel lists."""

    tokens: bytes
    token_logprobs: bytes
    top_logprobs: bytes
    text_offset: bytes

    @classmethod
    def of(cls, shaped: CompletionLogprobs) -> WrittenLogprobs:
        return cls(*(items_json(getattr(shaped, name)) for name in cls._fields))

    def then(self, other: WrittenLogprobs) -> WrittenLogprobs:
        """One after the other."""
        pairs = zip(self, other, strict=True)
        return WrittenLogprobs(*(b",".join(filter(None, pair)) for pair in pairs))

    def json(self) -> bytes:
        lists = zip(self._fields, self, strict=True)
        return b"{%s}" % b",".join(b'"%s":[%s]' % (name.encode(), items) for name, items in lists)


def completion_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob]],
    offsets: Sequence[int],
    names: TokenNames,
) -> CompletionLogprobs:
    """`token_ids`, their candidates and where they begin in the text, as parallel lists."""
    shaped = CompletionLogprobs(
        tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[*offsets]
    )
    for token_id, candidates in zip(token_ids, logprobs, strict=True):
        shaped.tokens.append(names.key(token_id))
        shaped.token_logprobs.append(_finite(candidates[token_id].logprob))
        shaped.top_logprobs.append(_by_name(candidates, names))
    return shaped


def echoed_logprobs(
    token_ids: Sequence[int],
    candidates: Sequence[Mapping[int, Logprob]],
    offsets: Sequence[int],
    names: TokenNames,
) -> WrittenLogprobs:
    """The tokens of a prompt in the same shape; of the first only its name is known."""
    first = CompletionLogprobs(
        tokens=[names.key(token_ids[0])],
        token_logprobs=[None],
        top_logprobs=[None],
        text_offset=[offsets[0]],
    )
    rest = completion_logprobs(token_ids[1:], candidates[1:], offsets[1:], names)
    return WrittenLogprobs.of(first).then(WrittenLogprobs.of(rest))


def chat_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob]],
    num_top: int,
    names: TokenNames,
) -> bytes:
    """`ChatLogprobs`: each token with its `num_top` most likely candidates, the likeliest first."""
    entries = chat_entries(token_ids, logprobs, num_top, names)
    return b'{"content":[%s]}' % items_json(entries)


def chat_entries(
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob]],
    num_top: int,
    names: TokenNames,
) -> list[dict[str, Any]]:
    """The fields of a `TokenLogprob` for each token."""
    return [
        _chat_entry(token_id, candidates, num_top, names)
        for token_id, candidates in zip(token_ids, logprobs, strict=True)
    ]


def prompt_logprobs(logprobs: Sequence[Mapping[int, Logprob] | None], num_top: int) -> bytes:
    """`PromptLogprobs`: one entry per prompt token, null for the first, by token id; each with its
    `num_top` most likely candidates."""
    return b"[%s]" % items_json([_prompt_entry(candidates, num_top) for candidates in logprobs])


def likeliest(candidates: Mapping[int, Logprob], num_top: int) -> Mapping[int, Logprob]:
    """The token that is there, which comes first, and the `num_top` most likely ones."""
    if len(candidates) <= num_top:
        return candidates
    ranked = sorted(candidates, key=lambda each: (candidates[each].rank, each))
    kept = dict.fromkeys([*islice(candidates, 1), *ranked[:num_top]])
    return {token_id: candidates[token_id] for token_id in kept}


def _by_name(candidates: Mapping[int, Logprob], names: TokenNames) -> dict[str, float]:
    """Of two with one name the first is told: the token that was chosen, or the likelier one."""
    told: dict[str, float] = {}
    for token_id, candidate in candidates.items():
        told.setdefault(names.key(token_id), _finite(candidate.logprob))
    return told


def _chat_entry(
    token_id: int, candidates: Mapping[int, Logprob], num_top: int, names: TokenNames
) -> dict[str, Any]:
    likeliest = sorted(candidates.items(), key=lambda each: -each[1].logprob)
    top = [_top_logprob(*each, names) for each in likeliest[:num_top]]
    return {**_top_logprob(token_id, candidates[token_id], names), "top_logprobs": top}


def _top_logprob(token_id: int, candidate: Logprob, names: TokenNames) -> dict[str, Any]:
    return {
        "token": names.text(token_id),
        "logprob": _finite(candidate.logprob),
        "bytes": list(names.token_bytes(token_id)),
    }


def _prompt_entry(candidates: Mapping[int, Logprob] | None, num_top: int) -> dict[int, Any] | None:
    if candidates is None:
        return None
    return {
        token_id: {
            "logprob": _finite(candidate.logprob),
            "rank": candidate.rank,
            "decoded_token": candidate.decoded_token,
        }
        for token_id, candidate in likeliest(candidates, num_top).items()
    }


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
