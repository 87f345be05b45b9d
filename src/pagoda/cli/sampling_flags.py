"""How answers are drawn, as flags."""

from __future__ import annotations

from pagoda.cli.flags import REAL, SWITCH, TEXTS, WHOLE, Flag, FlagGroup
from pagoda.request import SamplingParams

SAMPLING_FLAGS = FlagGroup(
    "sampling",
    SamplingParams,
    (
        Flag("max_tokens", WHOLE, "Longest answer, in tokens."),
        Flag("min_tokens", WHOLE, "No end before this many tokens."),
        Flag("temperature", REAL, "0 always takes the likeliest token."),
        Flag("top_p", REAL, "Keep the likeliest tokens up to this share."),
        Flag("top_k", WHOLE, "Keep this many tokens; 0 keeps all."),
        Flag("min_p", REAL, "Keep tokens at least this fraction as likely as the likeliest."),
        Flag("repetition_penalty", REAL, "Above 1: less of what was said, or asked."),
        Flag("presence_penalty", REAL, "Above 0: less of what was said."),
        Flag("frequency_penalty", REAL, "Above 0: less of what was said often."),
        Flag("stop", TEXTS, "End the answer before this text; may be given again."),
        Flag("ignore_eos", SWITCH, "Go on past the end that the model sets."),
    ),
    defaults={"stop": []},
)
