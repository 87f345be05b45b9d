"""Constraints on answers, compiled against the model's vocabulary by llguidance.

    StructuredOutputs ── Grammars.compile ──> Grammar ── one for each choice ──> Matcher
    the caller's words     in the intake      shared        follows the tokens, masks the logits

llguidance is imported, and the vocabulary prepared, by `prepare` or when the first constraint
comes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pagoda.engine.grammar_cache import GrammarCache, GrammarKey
from pagoda.engine.grammar_source import schema_source, source_of
from pagoda.engine.grammar_vocabulary import vocabulary_of
from pagoda.errors import EngineError, InvalidRequestError
from pagoda.request import ThoughtMarks
from pagoda.structured import StructuredOutputs

if TYPE_CHECKING:
    import llguidance

    from pagoda.models.tokenizer import Tokenizer

_LIMITS = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_items_in_row": 10_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
}
"""They bound a mask to some tens of milliseconds and a grammar to some tens of megabytes."""
_NUM_REHEARSED = 4
"""Tokens that are tried at the door: most grammars that are too complex show it at once."""
_ANY_OBJECT = StructuredOutputs(json_object=True)


class MatchError(EngineError):
    """A constraint cannot be followed: nothing fulfils it, or it takes too much to tell."""


class Grammars:
    """Compiles constraints for one model. Any thread may ask it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._preparing = threading.Lock()
        self._kept: GrammarCache[Grammar] = GrammarCache()

    def compile(
        self, wanted: StructuredOutputs, *, tenant: str = "", cache_salt: str = ""
    ) -> Grammar:
        """The grammar of a constraint; one that is kept is shared as cached blocks are.

        Raises `InvalidRequestError` naming the constraint's field where it is invalid, too complex
        or can never be fulfilled.
        """
        key = GrammarKey(tenant, cache_salt, wanted)
        grammar = self._kept.get(key)
        if grammar is None:
            grammar = self._compile(wanted)
            self._kept.put(key, grammar)
        return grammar

    def prepare(self) -> None:
        """Do what the first constraint would wait for, and all threads with it: some 0.5 s.

        Where the model's tokenizer allows no constraints, whoever sends one is told so later.
        """
        with suppress(InvalidRequestError):
            self.compile(_ANY_OBJECT)

    def _compile(self, wanted: StructuredOutputs) -> Grammar:
        if not self._tokenizer.eos_token_ids:
            raise wanted.refuse("the model names no token that ends an answer")
        try:
            source = source_of(wanted)
        except (ValueError, RecursionError) as error:
            raise wanted.refuse(_first_line(str(error))) from None
        vocabulary = self._prepared(wanted)
        matcher = _compiled(source, vocabulary)
        if matcher.is_error():
            _refuse_parts(wanted, vocabulary)
            raise wanted.refuse(_reason(matcher))
        grammar = Grammar(matcher, self._tokenizer.eos_token_ids, vocabulary.vocab_size)
        try:
            grammar.matcher().rehearse()
        except MatchError as error:
            raise wanted.refuse(str(error)) from None
        return grammar

    def _prepared(self, wanted: StructuredOutputs) -> llguidance.LLTokenizer:
        """The vocabulary in llguidance's form, made once: it takes some 300 ms."""
        with self._preparing:
            if self._vocabulary is None:
                num_tokens = max(self._vocab_size, self._tokenizer.vocab_size)
                try:
                    self._vocabulary = vocabulary_of(self._tokenizer, num_tokens)
                except ValueError as error:
                    reason = _first_line(str(error))
                    limit = f"the model's tokenizer allows no constraints: {reason}"
                    raise wanted.refuse(limit) from error
            return self._vocabulary


class Grammar:
    """A compiled constraint, which any number of sequences may follow."""

    def __init__(
        self, start: llguidance.LLMatcher, eos_token_ids: frozenset[int], num_tokens: int
    ) -> None:
        self._start = start
        self._eos_token_ids = eos_token_ids
        self._num_tokens = num_tokens

    def matcher(self, thought: ThoughtMarks | None = None) -> Matcher:
        """A follower of one sequence, at its beginning, where there may be a `thought`."""
        return Matcher(self._start.deep_copy(), self._eos_token_ids, self._num_tokens, thought)


class Matcher:
    """Follows one sequence's tokens through a grammar, and tells which ones may come next.

    While it thinks any may come, but for those that would end the answer.
    """

    def __init__(
        self,
        state: llguidance.LLMatcher,
        eos_token_ids: frozenset[int],
        num_tokens: int,
        thought: ThoughtMarks | None = None,
    ) -> None:
        self.state = state
        """llguidance's own."""
        self.num_tokens = num_tokens
        """Of the vocabulary that it knows."""
        self._eos_token_ids = eos_token_ids
        self._num_read = 0
        self._allowed: NDArray[np.bool_] | None = None
        self._thought = thought
        self._thinks = thought is not None and thought.is_open

    def read(self, output_token_ids: Sequence[int]) -> bool:
        """Read the tokens that are new; returns whether a mask is due. Raises `MatchError`."""
        if self._num_read < len(output_token_ids):
            self._allowed = None
            for place in range(self._num_read, len(output_token_ids)):
                if not self._is_thought(output_token_ids[place], place):
                    self._read(output_token_ids[place])
            self._num_read = len(output_token_ids)
        if self._thinks and self._allowed is None:
            self._allowed = np.ones(self.num_tokens, np.bool_)
            self._allowed[list(self._eos_token_ids)] = False
        return self._allowed is None

    def take(self, mask: NDArray[np.int32]) -> None:
        """Keep the mask that is due, a bit for each token; none if `state` has failed."""
        if not self.state.is_error():
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            self._allowed = bits.astype(np.bool_)
            if self._thought is not None and not self._num_read:
                self._allowed[self._thought.opening_id] = True

    def follow(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        """Read the tokens that are new; returns which ones may come next, by token id.

        Once the grammar is complete these are the end-of-sequence tokens alone. Raises
        `MatchError`.
        """
        if self.read(output_token_ids):
            self._check()
            self.take(np.frombuffer(self.state.compute_bitmask(), np.int32))
            self._check()
        assert self._allowed is not None
        return self._allowed

    def mask(self, values: NDArray[np.float32], output_token_ids: Sequence[int]) -> None:
        """Set what may not come next to minus infinity in `values` [vocab], in place."""
        allowed = self.follow(output_token_ids)[: len(values)]
        values[: len(allowed)][~allowed] = -np.inf
        values[len(allowed) :] = -np.inf

    def rehearse(self) -> None:
        """Go a few tokens ahead, any that are allowed. Raises `MatchError`."""
        said: list[int] = []
        for _ in range(_NUM_REHEARSED):
            others = set(np.flatnonzero(self.follow(said)).tolist()) - self._eos_token_ids
            if not others:
                break
            said.append(max(others))

    def _is_thought(self, token_id: int, place: int) -> bool:
        """The next token is part of a thought or one of its marks."""
        if self._thought is None:
            return False
        if self._thinks:
            self._thinks = token_id != self._thought.closing_id
            return True
        self._thinks = not place and token_id == self._thought.opening_id
        return self._thinks

    def _read(self, token_id: int) -> None:
        # An end that did not end the sequence, as a stop token of an empty set would be, is no
        # part of the answer.
        if token_id not in self._eos_token_ids:
            self.state.consume_token(token_id)
            self._check()

    def _check(self) -> None:
        if self.state.is_error():
            raise MatchError(_reason(self.state))


def _compiled(source: str, vocabulary: llguidance.LLTokenizer) -> llguidance.LLMatcher:
    import llguidance

    limits = llguidance.LLParserLimits(verbose_errors=False, **_LIMITS)  # type: ignore[arg-type]
    return llguidance.LLMatcher(vocabulary, source, log_level=0, limits=limits)


def _refuse_parts(whole: StructuredOutputs, vocabulary: llguidance.LLTokenizer) -> None:
    """Raises what is wrong with the first part of `whole`, which is wrong, that is so by itself."""
    for part in whole.parts:
        matcher = _compiled(schema_source(part), vocabulary)
        if matcher.is_error():
            raise part.refuse(_reason(matcher))


def _reason(matcher: llguidance.LLMatcher) -> str:
    reason = _first_line(matcher.get_error())
    # llguidance's words where a grammar allows no first byte
    return "nothing can fulfil it" if reason.startswith("NoExtension") else reason


def _first_line(text: str) -> str:
    """The first line, and of a regex that cannot be read the reason, which comes lines later."""
    first, *others = text.strip().splitlines() or [""]
    causes = [line.removeprefix("error:") for line in others if line.startswith("error:")]
    if not causes:
        return first[:200]
    where = first if len(first) <= 100 else f"{first[:98]}…:"  # it repeats the regex
    return where + causes[0][:100]
