"""Turns one sequence's tokens into text while they arrive, at a constant cost per token.

`tokenizers.DecodeStream` is not used: it decodes a window again for every token, and the window
grows without end while a model produces bytes that are not a character. Here each token becomes
its bytes, the bytes become characters as soon as these are whole, and characters are let out as
soon as they cannot be the beginning of a stop string:

    token ids ── bytes ── UTF-8 decoder ── stop strings ── text
                          holds a part     holds what may
                          of a character   become a stop
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from pagoda.engine.stop_strings import StopString, StopStrings
from pagoda.engine.vocabulary import Vocabulary
from pagoda.request import SamplingParams

_REPLACEMENT = "\ufffd"
_NUM_CONTEXT_TOKENS = 4
"""The longest character has four bytes."""


class Detokenizer:
    """The text of one sequence.

    `text` equals the decoded output up to the first stop string, whatever tokens it came in. It
    continues the prompt: a leading space stays, and a character that a prompt of token ids left
    unfinished is finished. Bytes that are no character become U+FFFD, one for each broken character
    (SentencePiece's own decoder gives up on a whole run of bytes, which no stream can foresee).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        stops: Sequence[StopString] | None = None,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`stops` are those of `params`, where the choices of a request share them. Of special
        tokens `shown_ids` are never skipped."""
        self._text_bytes = vocabulary.text_bytes(params, shown_ids)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        if stops is None:
            stops = tuple(map(StopString, params.stop))
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops)
        """Without any, tokens are decoded as many at a time as they come."""
        self._keeps_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._stop: str | None = None
        self._pieces: list[str] = []
        self._held = ""
        self._delta = ""
        self._prompt_is_unfinished = self._enter_prompt(prompt_token_ids)

    @property
    def stop(self) -> str | None:
        """The stop string that has come up; nothing is taken in after it."""
        return self._stop

    @property
    def text(self) -> str:
        """Everything that has been let out."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def take_delta(self) -> str:
        """What was let out since the last call."""
        delta, self._delta = self._delta, ""
        return delta

    def append(self, token_ids: Sequence[int], num_output_tokens: int) -> int:
        """Take in the newest tokens, the sequence now having `num_output_tokens`.

        Returns how many were taken: fewer than given where one of them completed a stop string.
        A stop string may end only in a token behind the first `min_tokens`. The caller leaves out
        a stop token that shall not be seen.
        """
        if not self._has_stops:
            self._num_tokens = num_output_tokens
            self._add(self._utf8.decode(self._bytes(token_ids)))
            return len(token_ids)
        num_before = num_output_tokens - len(token_ids)
        for position, token_id in enumerate(token_ids):
            if self._stop is not None:
                return position
            self._num_tokens = num_before + position + 1
            self._add(self._utf8.decode(self._bytes((token_id,))))
        return len(token_ids)

    def flush(self) -> None:
        """Nothing more will come: let out what is held, an unfinished character as U+FFFD."""
        if self._stop is None:
            self._add(self._utf8.decode(b"", final=True))
        self._release(self._held)
        self._held = ""

    def _enter_prompt(self, prompt_token_ids: Sequence[int]) -> bool:
        """Decode the prompt's end; returns whether it breaks off within a character."""
        self._utf8.decode(self._bytes(prompt_token_ids[-_NUM_CONTEXT_TOKENS:]))
        return bool(self._utf8.getstate()[0])

    def _bytes(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(map(self._text_bytes, token_ids))

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._prompt_is_unfinished:
            # A replacement character here stands for the prompt's bytes, not for the output's.
            self._prompt_is_unfinished = False
            text = text.removeprefix(_REPLACEMENT)
        if not self._has_stops:
            self._release(text)
            return
        match = self._stops.feed(text, may_stop=self._num_tokens > self._min_tokens)
        held = self._held + text
        if match is None:
            num_free = len(held) - self._stops.num_held
        else:
            self._stop = match.stop
            end = len(self._held) + match.end
            num_free = end if self._keeps_stop else end - len(match.stop)
        self._release(held[:num_free])
        self._held = held[num_free:] if match is None else ""

    def _release(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._delta += text
