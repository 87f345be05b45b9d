"""`pagoda tiers` on a disk tier, beside a server that has it open."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pagoda.cli.main import run
from pagoda.cli.tiers_report import size_of
from pagoda.tiers.disk import DiskTier
from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.names import BlockName
from pagoda.tiers.namespace import Namespace, is_label
from pagoda.tiers.seal import Checksum, TenantSeal

TIMEOUT_S = 10.0
PAYLOAD_BYTES = 3000
SECRET = bytes(range(32))
BFLOAT16 = Namespace({"weights": "ab12", "dtype": "bfloat16", "block_size": 16}, "a\x1b[2Jmodel")
FLOAT16 = Namespace({"weights": "ab12", "dtype": "float16", "block_size": 16})


@dataclass(frozen=True)
class Server:
    """One that uses the folder meanwhile."""

    path: Path
    tier: DiskTier

    def store(self, form: FrameFormat, *numbers: int) -> None:
        blocks = [BlockName(bytes([number]) * 32, 0) for number in numbers]
        payload = bytes(PAYLOAD_BYTES)
        frames = [(form.name(block), form.encode(block, payload)) for block in blocks]
        self.tier.store(frames, TIMEOUT_S)

    def files(self) -> list[Path]:
        return sorted(path for path in (self.path / "frames").rglob("*") if path.is_file())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    tier = DiskTier(tmp_path / "kv", 10**7)
    yield Server(tmp_path / "kv", tier)
    tier.close()


@pytest.fixture
def ask(server: Server, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What a command answers: its exit code, and what `--json` tells or its lines."""

    def ask_command(name: str, *arguments: str) -> tuple[int, Any]:
        code = run(["tiers", name, f"disk:{server.path}", *arguments])
        out = capsys.readouterr().out
        return code, json.loads(out) if "--json" in arguments else out.splitlines()

    return ask_command


def form_of(namespace: Namespace) -> FrameFormat:
    return FrameFormat(namespace.digest, PAYLOAD_BYTES, Checksum())


def test_stats_by_namespace(server: Server, ask: Callable[..., Any]) -> None:
    assert ask("stats") == (1, [])  # there is no tier yet
    server.store(form_of(BFLOAT16), 1, 2)
    server.store(form_of(FLOAT16), 3)
    size = server.files()[0].stat().st_size
    code, told = ask("stats", "--json")
    assert (code, told["frames"], told["bytes"]) == (0, 3, 3 * size)
    assert 0 < told["oldest"] <= told["newest"] <= time.time() + 1
    facts = {each["namespace"]: each["facts"] for each in told["namespaces"]}
    assert facts == {BFLOAT16.short: None, FLOAT16.short: None}
    server.tier.store([(each.label_name, each.label) for each in (BFLOAT16, FLOAT16)], TIMEOUT_S)
    _, told = ask("stats", "--json")
    counted = {each["namespace"]: (each["frames"], each["facts"]) for each in told["namespaces"]}
    assert counted == {BFLOAT16.short: (2, BFLOAT16.facts), FLOAT16.short: (1, FLOAT16.facts)}
    code, lines = ask("stats")
    used = r"all: 3 frames, 9\.11 KiB, used \d+ seconds to \d+ seconds ago"
    assert re.match(used, lines[0]), lines[0]
    assert any(line.startswith(f"{BFLOAT16.short} (a?[2Jmodel): 2 frames") for line in lines)
    assert any(line.startswith(f"{FLOAT16.short}: 1 frames") for line in lines), "without a name"
    assert {each["model"] for each in told["namespaces"]} == {BFLOAT16.model_name, ""}
    assert [line for line in lines if line.startswith(" ")] in (
        ["  dtype: bfloat16", "  dtype: float16"],  # what they have in common is left out
        ["  dtype: float16", "  dtype: bfloat16"],
    )


def test_an_audit_sets_bad_frames_apart(server: Server, ask: Callable[..., Any]) -> None:
    server.store(form_of(BFLOAT16), *range(8))
    server.tier.store([(BFLOAT16.label_name, BFLOAT16.label)], TIMEOUT_S)
    assert ask("audit") == (0, ["8 frames, 24.30 KiB: 0 are bad"])
    files = [each for each in server.files() if each.name != BFLOAT16.label_name]
    flipped = bytearray(files[0].read_bytes())
    flipped[500] ^= 1
    files[0].write_bytes(flipped)
    files[1].write_bytes(files[1].read_bytes()[:700])
    files[2].write_bytes(files[3].read_bytes())
    (server.path / "frames/00" / BFLOAT16.label_name).write_bytes(b"{}")
    code, told = ask("audit", "--dry-run", "--json")
    bad = {"checksum": 2, "hash": 1, "torn": 1}
    expected = {"frames": 9, "good": 5, "unopened": 0, "bad": bad, "quarantined": 0}
    assert (code, {name: told[name] for name in expected}) == (1, expected)
    code, lines = ask("audit")
    assert (code, lines[1:]) == (
        1,
        [
            "  2 damaged (checksum)",
            "  1 under another block's name (hash)",
            "  1 no frame, or not the whole of one (torn)",
            "  4 were set apart: nobody finds them again",
        ],
    )
    assert len(list((server.path / "quarantine").iterdir())) == 4
    assert ask("audit")[0] == 0
    assert len(server.files()) == 5


def test_an_audit_opens_sealed_frames_with_their_tenant_s_key(
    server: Server, ask: Callable[..., Any], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(SECRET)
    form = form_of(BFLOAT16)
    for tenant, numbers in (("a", (1, 2)), ("b", (1, 2, 3))):
        server.store(replace(form, seal=TenantSeal(SECRET, tenant)), *numbers)
    keyed = ("--kv-tier-key-file", str(key), "--json")
    for tenants, num_unopened in (("", 5), ("a", 3), ("ab", 0), ("c", 5)):
        flags = [flag for tenant in tenants for flag in ("--tenant", tenant)]
        code, told = ask("audit", *flags, *(keyed if tenants else ("--json",)))
        assert (code, told["frames"], told["unopened"]) == (0, 5, num_unopened)
    assert ask("audit", "--tenant", "a")[0] == 2
    assert ask("audit", "--tenant", "a", "--kv-tier-key-file", str(tmp_path / "none"))[0] == 2


def test_prune_removes_what_it_says(server: Server, ask: Callable[..., Any]) -> None:
    server.store(form_of(BFLOAT16), *range(6))
    server.store(form_of(FLOAT16), *range(4))
    files = server.files()
    size, now = files[0].stat().st_size, time.time()
    for age_h, file in enumerate(sorted(files, key=lambda file: file.name)):
        os.utime(file, (now - 3600 * age_h,) * 2)

    def pruned(*flags: str) -> tuple[int, int]:
        code, told = ask("prune", *flags, "--json")
        assert (code, told["bytes"]) == (0, size * told["removed"])
        return told["removed"], len(server.files())

    for flags, num in (
        (("--older-than", "7.5h"), 2),
        (("--size", str(6 * size)), 4),
        (("--keep-namespace", FLOAT16.short), 6),
        (("--size", str(9 * size), "--older-than", "8.5h"), 1),
        (("--keep-namespace", FLOAT16.short, "--keep-namespace", BFLOAT16.short), 0),
    ):
        assert pruned(*flags, "--dry-run") == (num, 10)
    assert ask("prune", "--size", str(9 * size), "--dry-run")[1] == [
        f"would remove 1 frames, {size_of(size)}"
    ]
    assert pruned("--older-than", "8.5h") == (1, 9)
    assert pruned("--size", str(6 * size)) == (3, 6)
    assert pruned("--keep-namespace", FLOAT16.short)[1] <= 4
    assert {file.name[:16] for file in server.files()} <= {FLOAT16.short}


def test_prune_leaves_the_label_of_a_namespace_while_frames_of_it_are_left(
    server: Server, ask: Callable[..., Any]
) -> None:
    server.tier.store([(each.label_name, each.label) for each in (BFLOAT16, FLOAT16)], TIMEOUT_S)
    server.store(form_of(BFLOAT16), *range(6))
    server.store(form_of(FLOAT16), *range(4))
    frames = [each for each in server.files() if not is_label(each.name)]
    size = frames[0].stat().st_size

    def pruned(*flags: str) -> tuple[int, dict[str, Any]]:
        """How many frames went, and how many of each namespace, and what its label says, are
        left."""
        code, told = ask("prune", *flags, "--json")
        assert (code, told["bytes"]) == (0, size * told["removed"])
        _, left = ask("stats", "--json")
        facts = {each["namespace"]: (each["frames"], each["facts"]) for each in left["namespaces"]}
        return told["removed"], facts

    assert pruned("--size", str(7 * size)) == (
        3, {BFLOAT16.short: (3, BFLOAT16.facts), FLOAT16.short: (4, FLOAT16.facts)},
    )  # fmt: skip
    assert pruned("--keep-namespace", BFLOAT16.short) == (4, {BFLOAT16.short: (3, BFLOAT16.facts)})
    assert [each.name for each in server.files() if is_label(each.name)] == [BFLOAT16.label_name]
    assert ask("prune", "--size", "1") == (0, [f"removed 3 frames, {size_of(3 * size)}"])
    assert server.files() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats", "kv"], "kv_tier='kv': must be one of"),
        (["stats", "host:size=1GiB"], "kv_tier='host:size=1GiB': is in a server's own memory"),
        (["stats", "disk:/kv", "--timeout", "nan"], "--timeout='nan': a span of time"),
        (["audit", "disk:/kv", "--timeout", "25h"], "--timeout='25h': must be at most 24 hours"),
        (
            ["prune", "disk:/kv", "--size", "1", "--timeout", "inf"],
            "--timeout='inf': a span of time",
        ),
        (["prune", "disk:/kv"], "prune=None: say what is to go"),
        (["prune", "disk:/kv", "--size", "x"], "--size='x': a size like"),
        (["prune", "disk:/kv", "--older-than", "x"], "--older-than='x': a span of time"),
        (["prune", "disk:/kv", "--keep-namespace", "x"], "--keep-namespace='x': the 16 hex"),
        (["audit", "disk:/kv", "--tenant", "a"], "--tenant=['a']: a tenant's frames"),
        (["new-key", "/no/such/folder/key"], "file='/no/such/folder/key': cannot be written"),
    ],
)
def test_a_refusal_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tiers", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pagoda: error: {message}")


def test_a_folder_of_others_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("stats", "audit"):
        assert run(["tiers", command, f"disk:{tmp_path}"]) == 1
        told = f"pagoda: error: {tmp_path} is not a tier's: give it a folder of its own\n"
        assert capsys.readouterr().err == told


def test_a_new_key_is_its_owner_s_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pagoda.tiers.key_file import read_secret

    key = tmp_path / "key"
    assert run(["tiers", "new-key", str(key)]) == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(read_secret("key", key)) == 32
    assert key.read_text().strip() not in "".join(capsys.readouterr())
    before = key.read_bytes()
    assert run(["tiers", "new-key", str(key)]) == 2
    assert key.read_bytes() == before


def test_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tiers"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in ("audit", "stats", "prune", "new-key"))
