"""Mooncake's rows: lengths, a time in milliseconds, and an id for each 512 tokens of the prompt.

    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, …, 13]}

The last id stands for what is left of the prompt, 102 tokens here. Qin et al., FAST 2025, arXiv
2407.00079.
"""

from __future__ import annotations

from pagoda.cache.slots import num_blocks_for
from pagoda.replay import fields
from pagoda.replay.fields import Row
from pagoda.replay.formats.format import PlainReader, TraceFormat
from pagoda.replay.trace import TracedRequest

UNIT_SIZE = 512


class MooncakeReader(PlainReader):
    """See above."""

    def __init__(self, row: Row) -> None:
        super().__init__(UNIT_SIZE)

    def read(self, row: Row) -> TracedRequest:
        prompt = fields.whole(row, "input_length", least=1)
        output = fields.whole(row, "output_length")
        unit_ids = fields.ids(row, "hash_ids", most=num_blocks_for(prompt + output, UNIT_SIZE))
        of_prompt = len(unit_ids) <= num_blocks_for(prompt, UNIT_SIZE)
        most = prompt if of_prompt else prompt + output
        return TracedRequest(
            arrival_s=fields.seconds(row, "timestamp", fields.MILLISECOND),
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            unit_ids=unit_ids,
            unit_size=UNIT_SIZE,
            num_known_tokens=min(most, len(unit_ids) * UNIT_SIZE),
        )


MOONCAKE = TraceFormat(lambda row: "hash_ids" in row, MooncakeReader)
