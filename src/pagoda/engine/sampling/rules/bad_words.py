"""The rule of `bad_words`, which the intake turns into `bad_words_ids`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagoda.engine.sampling.rule import Edit, Entries, Rule, RuledRow


class BadWords(Rule):
    """The token that would complete one of the caller's sequences of tokens is banned.

    It is always due: what it bans next depends on the token that is being drawn.
    """

    fields = ("bad_words_ids",)
    edit = Edit.BAN

    def entries(self, row: RuledRow) -> Entries:
        said = row.output_token_ids
        last = {ids[-1] for ids in row.params.bad_words_ids if _ends_with(said, ids[:-1])}
        return Entries.alike([*last], 0.0)

    def reference(self, values: list[float], row: RuledRow) -> None:
        for token_id in range(len(values)):
            said = [*row.output_token_ids, token_id]
            if any(_ends_with(said, ids) for ids in row.params.bad_words_ids):
                values[token_id] = -math.inf


def _ends_with(said: Sequence[int], ids: tuple[int, ...]) -> bool:
    return len(said) >= len(ids) and tuple(said[len(said) - len(ids) :]) == ids
