"""Whether and how the model thinks before it answers, and who reads that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pagoda.request import ThoughtMarks
from pagoda.server.thought_forms import THOUGHT_FORMS, ThoughtForm, form_of
from pagoda.server.thought_readers import Channels, TaggedThoughts
from pagoda.server.tool_calls import AnswerReader, ToolReader

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


class Thinking:
    """What is known of the model's thoughts, for all of its chats."""

    def __init__(self, engine: AsyncEngine, parser: str) -> None:
        """`parser` is one of the `REASONING_PARSERS`."""
        self._engine = engine
        self._parser = parser

    @cached_property
    def form(self) -> ThoughtForm | None:
        """None: the model does not think, or nobody wants to know."""
        if self._parser != "auto":
            return THOUGHT_FORMS.get(self._parser)
        return form_of(self._engine.tokenizer.chat_template)

    @cached_property
    def _mark_ids(self) -> frozenset[int]:
        assert self.form is not None
        ids = map(self._engine.tokenizer.token_id, self.form.marks)
        return frozenset(each for each in ids if each is not None)

    def reader(
        self, answers: ToolReader, prompt_token_ids: Sequence[int], *, is_structured: bool
    ) -> ToolReader:
        """Tells the thoughts of answers to a prompt apart from what `answers` reads.

        An answer that `is_structured` has a thought before it where the marks are tokens, and
        otherwise none.
        """
        form = self.form
        if form is None:
            return answers
        begun = self._engine.tokenizer.begun(prompt_token_ids, self._mark_ids)
        is_open = form.goes_on_in(begun)
        thought = self._marks(form, is_open) if is_structured else None
        if is_structured and thought is None:
            return answers
        begin = partial(_begin, form, answers, is_open)
        return replace(
            answers, begin=begin, knows_thoughts=True, mark_ids=self._mark_ids, thought=thought
        )

    def _marks(self, form: ThoughtForm, is_open: bool) -> ThoughtMarks | None:
        opening = self._engine.tokenizer.token_id(form.opening[0])
        closing = self._engine.tokenizer.token_id(form.closing[0])
        if form.body or opening is None or closing is None:
            return None
        return ThoughtMarks(opening, closing, is_open)


def _begin(form: ThoughtForm, answers: ToolReader, is_open: bool) -> AnswerReader:
    kind = Channels if form.body else TaggedThoughts
    return kind(form, answers.begin(), is_open=is_open)
