"""The rule of `repetition_penalty`."""

from __future__ import annotations

from pagoda.engine.sampling.rule import Edit, Entries, Rule, RuledRow


class RepetitionPenalty(Rule):
    """Positive logits of tokens in prompt or output are divided, negative ones multiplied.

    Keskar et al. 2019, CTRL.
    """

    fields = ("repetition_penalty",)
    edit = Edit.SCALE

    def entries(self, row: RuledRow) -> Entries:
        token_ids, _ = row.seen.look()
        return Entries.alike(token_ids, row.params.repetition_penalty)

    def reference(self, values: list[float], row: RuledRow) -> None:
        penalty = row.params.repetition_penalty
        for token_id in {*row.prompt_token_ids, *row.output_token_ids}:
            value = values[token_id]
            values[token_id] = value / penalty if value > 0 else value * penalty
