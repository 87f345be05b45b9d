"""The rule of `presence_penalty` and `frequency_penalty`."""

from __future__ import annotations

from pagoda.engine.sampling.rule import Edit, Entries, Rule, RuledRow


class OutputPenalties(Rule):
    """A token of the output loses logit: once, and for every time it was said.

    The two are added up before they are rounded to float32.
    """

    fields = ("presence_penalty", "frequency_penalty")
    edit = Edit.ADD

    def entries(self, row: RuledRow) -> Entries:
        presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
        token_ids, counts = row.said.look()
        return Entries.of(token_ids, -(presence + frequency * counts))

    def reference(self, values: list[float], row: RuledRow) -> None:
        for token_id in set(row.output_token_ids):
            values[token_id] -= row.params.presence_penalty
        for token_id in row.output_token_ids:
            values[token_id] -= row.params.frequency_penalty
