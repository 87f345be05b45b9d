"""The one judge of whether a sequence ends, and why.

    newest token ── a stop token? ── all that it may have? ── text ── a stop string?
                    "stop"           "length"                         "stop", also in the last token

Tokens are judged before text is read: a stop token is not part of the text. A stop string goes
before what the tokens say.
"""

from __future__ import annotations

from typing import Protocol

from pagoda.scheduling.ending import END_OF_SEQUENCE, LENGTH, Ending
from pagoda.scheduling.sequence import Sequence


class ShownText(Protocol):
    """What the tokens of one sequence read as."""

    def find_stop_string(self, ending: Ending | None) -> str | None:
        """Read the tokens that are new; the stop string that has come up, or None.

        `ending` is what the tokens alone say: a stop token may not be shown, and nothing follows
        the last token.
        """
        ...


def judge(sequence: Sequence, text: ShownText | None = None) -> Ending | None:
    """What the sequence ends with now that it has a new token; None if it goes on.

    `text` is given where stop strings are asked for.
    """
    ending = _judge_tokens(sequence)
    stop_string = text.find_stop_string(ending) if text is not None else None
    return ending if stop_string is None else Ending("stop", stop_string)


def _judge_tokens(sequence: Sequence) -> Ending | None:
    request, token_id = sequence.request, sequence.token_ids[-1]
    if token_id in request.stop_token_ids and _may_stop(sequence):
        is_eos = token_id in request.eos_token_ids and not request.sampling.ignore_eos
        return END_OF_SEQUENCE if is_eos else Ending("stop", token_id)
    return LENGTH if len(sequence.token_ids) >= sequence.max_num_tokens else None


def _may_stop(sequence: Sequence) -> bool:
    """The output is long enough; a grammar that leaves nothing but the end goes first."""
    sampling = sequence.request.sampling
    has_enough = sequence.num_output_tokens >= sampling.min_tokens
    return has_enough or sampling.structured_outputs is not None
