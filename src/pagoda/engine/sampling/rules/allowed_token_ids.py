"""The rule of `allowed_token_ids`."""

from __future__ import annotations

import math

from pagoda.engine.sampling.rule import Edit, Entries, Rule, RuledRow


class AllowedTokenIds(Rule):
    """All tokens but the caller's are banned.

    Where a grammar leaves none of them, the grammar decides.
    """

    fields = ("allowed_token_ids",)
    edit = Edit.KEEP
    reads_output = False

    def entries(self, row: RuledRow) -> Entries:
        return Entries.alike(row.allowed, 0.0)

    def reference(self, values: list[float], row: RuledRow) -> None:
        allowed = row.params.allowed_token_ids or ()
        kept = [v if t in allowed else -math.inf for t, v in enumerate(values)]
        if max(kept) > -math.inf:
            values[:] = kept
