"""The rules, in the order in which they change a row: vLLM's. A grammar's mask goes before them."""

from __future__ import annotations

from pagoda.engine.sampling.rule import Rule
from pagoda.engine.sampling.rules.allowed_token_ids import AllowedTokenIds
from pagoda.engine.sampling.rules.bad_words import BadWords
from pagoda.engine.sampling.rules.logit_bias import LogitBias
from pagoda.engine.sampling.rules.min_tokens import MinTokens
from pagoda.engine.sampling.rules.output_penalties import OutputPenalties
from pagoda.engine.sampling.rules.repetition_penalty import RepetitionPenalty

RULES: tuple[Rule, ...] = (
    AllowedTokenIds(),
    BadWords(),
    LogitBias(),
    MinTokens(),
    RepetitionPenalty(),
    OutputPenalties(),
)
