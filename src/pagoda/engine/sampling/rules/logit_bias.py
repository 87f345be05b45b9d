"""The rule of `logit_bias`."""

from __future__ import annotations

from pagoda.engine.sampling.rule import Edit, Entries, Rule, RuledRow


class LogitBias(Rule):
    """The caller's number is added to a token's logit."""

    fields = ("logit_bias",)
    edit = Edit.ADD
    reads_output = False

    def entries(self, row: RuledRow) -> Entries:
        bias = row.params.logit_bias
        return Entries.of([*bias], [*bias.values()])

    def reference(self, values: list[float], row: RuledRow) -> None:
        for token_id, bias in row.params.logit_bias.items():
            values[token_id] += bias
