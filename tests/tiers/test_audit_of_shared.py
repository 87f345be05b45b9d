"""`pagoda tiers` on a tier that others share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagoda.cli.main import run
from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.names import BlockName
from pagoda.tiers.redis import PREFIX, RedisTier
from pagoda.tiers.seal import Checksum, TenantSeal
from tiers.stores import RedisServer

SECRET, PAYLOAD_BYTES, TIMEOUT_S = bytes(range(32)), 1000, 10.0


@pytest.mark.redis
def test_bad_frames_of_a_redis_are_removed(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_bytes(SECRET)
    tier = RedisTier(redis_server.url, 10**6)
    blocks = [BlockName(bytes([number]) * 32, 0) for number in range(3)]
    for tenant in ("a", "b"):
        form = FrameFormat(bytes(32), PAYLOAD_BYTES, TenantSeal(SECRET, tenant))
        frames = [(form.name(block), form.encode(block, bytes(1000))) for block in blocks]
        tier.store(frames, TIMEOUT_S)
    plain = FrameFormat(bytes(32), PAYLOAD_BYTES, Checksum())
    tier.store([(plain.name(blocks[0]), plain.encode(blocks[0], bytes(1000)))], TIMEOUT_S)
    redis_server.ask("SETRANGE", PREFIX + form.name(blocks[0]), 200, "x")
    redis_server.ask("SET", "somebody:else", "x")

    def ask(name: str, *flags: str) -> tuple[int, dict[str, object]]:
        code = run(["tiers", name, redis_server.url, *flags, "--json"])
        told: dict[str, object] = json.loads(capsys.readouterr().out)
        return code, told

    keyed = ("--tenant", "a", "--kv-tier-key-file", str(key))
    code, told = ask("audit", *keyed)
    assert (code, told["frames"], told["unopened"]) == (1, 7, 2)
    assert told["bad"] == {"checksum": 1, "tenant": 1}
    assert tier.holds([plain.name(blocks[0])], TIMEOUT_S) == [False]
    assert tier.holds([form.name(block) for block in blocks], TIMEOUT_S) == [False, True, True]
    assert ask("audit", *keyed)[0] == 0
    assert ask("stats")[1]["frames"] == 5
    assert ask("prune", "--size", "2500")[1]["removed"] == 3
    assert redis_server.ask("GET", "somebody:else") == b"x"
    tier.close()
