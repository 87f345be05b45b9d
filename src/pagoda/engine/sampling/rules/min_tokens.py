"""The rule of `min_tokens`."""

from __future__ import annotations

import math

from pagoda.engine.sampling.rule import Edit, Entries, Rule, RuledRow


class MinTokens(Rule):
    """The tokens that would end the output are banned until it has so many.

    Where a grammar leaves nothing but the end, the end it is.
    """

    fields = ("min_tokens",)
    edit = Edit.BAN

    def is_due(self, row: RuledRow) -> bool:
        return len(row.output_token_ids) < row.params.min_tokens

    def entries(self, row: RuledRow) -> Entries:
        return Entries.alike([*row.stop_token_ids], 0.0)

    def reference(self, values: list[float], row: RuledRow) -> None:
        if len(row.output_token_ids) >= row.params.min_tokens:
            return
        banned = [-math.inf if t in row.stop_token_ids else v for t, v in enumerate(values)]
        if max(banned) > -math.inf:
            values[:] = banned
