"""Pagoda's own traces, which a server writes while it serves: a header, then a row a request.

    {"pagoda_trace": 1, "block_size": 16, "server": {"num_blocks": 4096, …}}
    {"number": 0, "arrival_s": 0.25, "step": 17, "turn": 16.25, "prompt_tokens": 40,
     "output_tokens": 9, "finish_reason": "stop", "tenant": "5f0c…", "salt": "",
     "cache_hint": "session", "hashes": "9a3c01…"}

A row is written when its request ends; `number` is its place in the order of arrival. `step` counts
the turns that the server had taken when it took the request in: in each a step was launched, one
was concluded, or both. `turn` counts those when the request arrived, with the part of the running
one that had passed. `hashes` are 8 bytes in hexadecimal for each full block of prompt and answer,
chained, under a salt that is drawn for the file and thrown away. `end_step`, of a request that was
given up, counts the turns until then.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict
from dataclasses import fields as fields_of
from heapq import heappop, heappush
from typing import Any

from pagoda.cache_hint import cache_hint_of
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.replay import fields
from pagoda.replay.fields import Row
from pagoda.replay.formats.format import TraceFormat
from pagoda.replay.recorded import RecordedQuota, RecordedSetting
from pagoda.replay.trace import TracedRequest

VERSION = 1
HASH_BYTES = 8
MOST_HELD = 65_536
"""Requests that wait for one that came before them and has not ended."""
_VERSION_FIELD = "pagoda_trace"
_USUAL = {
    each.name: each.default for each in fields_of(RecordedSetting) if each.default is not MISSING
}
"""Settings that older servers did not have."""


def header_line(setting: RecordedSetting) -> str:
    """The first line of a trace."""
    header = {_VERSION_FIELD: VERSION, "block_size": setting.block_size, "server": asdict(setting)}
    return json.dumps(header) + "\n"


def row_line(
    number: int,
    request: TracedRequest,
    hashes: Sequence[bytes],
    finish_reason: str | None,
) -> str:
    """The line of one request, the `number`-th that came. `hashes`: 8 bytes for each full block."""
    row = {
        "number": number,
        "arrival_s": round(request.arrival_s, 9),
        "step": request.arrival_step,
        "turn": None if request.arrival_turn is None else round(request.arrival_turn, 6),
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": request.num_output_tokens,
        "finish_reason": finish_reason,
        "tenant": request.tenant,
        "salt": request.cache_salt,
        "cache_hint": request.cache_hint,
        "hashes": b"".join(hashes).hex(),
        "end_step": request.end_step,
    }
    return json.dumps({name: value for name, value in row.items() if value is not None}) + "\n"


class PagodaReader:
    """Puts the rows back into order of arrival, holding at most `MOST_HELD` of them."""

    def __init__(self, header: Row) -> None:
        version = header.get(_VERSION_FIELD)
        if version != VERSION:
            raise InvalidRequestError(_VERSION_FIELD, version, f"must be {VERSION}")
        self.unit_size = fields.whole(header, "block_size", least=1)
        self.recorded = _setting(header.get("server"))
        self._number = 0

    def read(self, row: Row) -> TracedRequest | None:
        if _VERSION_FIELD in row:  # the header, again where a server was started anew
            return None
        prompt = fields.whole(row, "prompt_tokens", least=1)
        output = fields.whole(row, "output_tokens")
        unit_ids = _hashes(row, (prompt + output) // self.unit_size)
        self._number = fields.whole(row, "number", most=2**63)
        num_turns = fields.maybe_whole(row, "step", most=2**63)
        return TracedRequest(
            arrival_s=fields.seconds(row, "arrival_s"),
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            unit_ids=unit_ids,
            unit_size=self.unit_size,
            num_known_tokens=len(unit_ids) * self.unit_size,
            tenant=fields.text(row, "tenant"),
            cache_salt=fields.text(row, "salt"),
            cache_hint=cache_hint_of(row.get("cache_hint")),
            arrival_step=num_turns,
            arrival_turn=fields.maybe_number(row, "turn", most=num_turns or 0),
            end_step=fields.maybe_whole(row, "end_step", most=2**63),
            stopped=row.get("finish_reason") == "stop",
        )

    def in_order(self, requests: Iterator[TracedRequest]) -> Iterator[TracedRequest]:
        held: list[tuple[int, int, TracedRequest]] = []
        due = 0
        for place, request in enumerate(requests):
            heappush(held, (self._number, place, request))
            while held and (held[0][0] <= due or len(held) > MOST_HELD):
                due = max(due, held[0][0] + 1)
                yield heappop(held)[2]
        while held:
            yield heappop(held)[2]


def _hashes(row: Row, most: int) -> array[int]:
    text = fields.text(row, "hashes")
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        packed = b"?"
    if len(packed) % HASH_BYTES or len(packed) > most * HASH_BYTES:
        limit = f"must be {2 * HASH_BYTES} hexadecimal digits for each of at most {most} blocks"
        raise InvalidRequestError("hashes", text, limit)
    return array("Q", struct.unpack(f"<{len(packed) // HASH_BYTES}Q", packed))


def _setting(server: object) -> RecordedSetting | None:
    if server is None:
        return None
    names = {each.name for each in fields_of(RecordedSetting)}
    if not isinstance(server, dict) or not names >= server.keys():
        limit = f"must map some of {', '.join(sorted(names))} to values"
        raise InvalidRequestError("server", server, limit)
    row = _USUAL | server
    return RecordedSetting(
        num_blocks=fields.whole(row, "num_blocks", least=1),
        block_size=fields.whole(row, "block_size", least=1),
        eviction_policy=fields.text(row, "eviction_policy"),
        enable_prefix_caching=fields.switch(row, "enable_prefix_caching"),
        max_num_batched_tokens=fields.whole(row, "max_num_batched_tokens", least=1),
        max_num_seqs=fields.whole(row, "max_num_seqs", least=1),
        max_model_len=fields.whole(row, "max_model_len", least=1),
        scheduling_policy=fields.text(row, "scheduling_policy"),
        long_prefill_token_threshold=fields.whole(row, "long_prefill_token_threshold"),
        steps_ahead=fields.whole(row, "steps_ahead"),
        tenant_quotas=_quotas(row["tenant_quotas"]),
        streams_step_aside=fields.switch(row, "streams_step_aside"),
        has_tiers=fields.switch(row, "has_tiers"),
    )


def _quotas(listed: Any) -> tuple[RecordedQuota, ...]:
    try:
        quotas = tuple(RecordedQuota(**quota) for quota in listed)
        if len({quota.tenant for quota in quotas}) < len(quotas):
            raise TypeError("a tenant has two quotas")
    except (TypeError, InvalidOptionError):
        limit = "must be a list of quotas, one a tenant"
        raise InvalidRequestError("tenant_quotas", listed, limit) from None
    return quotas


PAGODA = TraceFormat(lambda row: _VERSION_FIELD in row, PagodaReader, grows=True)
