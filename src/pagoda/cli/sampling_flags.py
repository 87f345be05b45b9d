"""How answers are drawn, as flags: one for each field of `SamplingParams` that has words for it."""

from __future__ import annotations

import dataclasses

from pagoda.cli.flags import REAL, SWITCH, TEXTS, WHOLE, Flag, FlagGroup
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
    ),
    defaults={"stop": []},
)
