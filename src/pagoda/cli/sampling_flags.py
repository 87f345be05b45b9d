"""How answers are drawn, as flags: one for each field of `SamplingParams` that has words for it."""

from __future__ import annotations

import dataclasses

from pagoda.cli.flags import REAL, SWITCH, TEXTS, WHOLE, WHOLES, Flag, FlagGroup
from pagoda.request import SamplingParams

_KINDS = {int: WHOLE, float: REAL, bool: SWITCH}

SAMPLING_FLAGS = FlagGroup(
    "sampling",
    SamplingParams,
    (
        *(
            Flag(each.name, _KINDS[each.metadata["limit"].kind], each.metadata["flag"])
            for each in dataclasses.fields(SamplingParams)
            if "flag" in each.metadata
        ),
        Flag("stop", TEXTS, "End the answer before this text; may be given again."),
        Flag("bad_words", TEXTS, "A text that is not said; may be given again."),
        Flag("allowed_token_ids", WHOLES, "Draw no other tokens than these, like 1,2,3."),
    ),
    defaults={"stop": [], "bad_words": []},
)
