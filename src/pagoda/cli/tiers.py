"""`pagoda tiers`: what lies in a tier, whether it is right, and what of it to remove."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pagoda.byte_size import parse_byte_size
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.tiers.seal import Seal
    from pagoda.tiers.tier import Tier

MAX_PAYLOAD_BYTES = 256 * 2**20
"""Of a block, larger than any there is; a frame that says it had more is not believed."""
_FOUND_BAD = 1
_REMOVED_AT_ONCE = 256

Which = Annotated[
    str, typer.Argument(metavar="TIER", help="As for --kv-tier: disk:PATH, redis://…, s3://…")
]
Timeout = Annotated[
    str, typer.Option(metavar="TIME", help="How long the tier may take for one answer: 30, 2m …")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]

tiers = typer.Typer(help="Look after a tier: audit, stats, prune; new-key.", rich_markup_mode=None)


@tiers.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@tiers.command()
def audit(
    tier: Which,
    tenant: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Open the sealed frames of this tenant too; repeatable."),
    ] = None,
    kv_tier_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of shared tiers, for --tenant.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Leave bad frames where they are.")
    ] = False,
    timeout: Timeout = "30",
    as_json: AsJson = False,
) -> None:
    """Check every frame and set bad ones apart.

    A disk's go into its folder `quarantine`, others are removed. Exit code 0: all are good; 1: some
    were not.
    """
    from pagoda.cli.terminal import count_progress
    from pagoda.cli.tiers_report import audit_lines
    from pagoda.tiers.audit import Auditor
    from pagoda.tiers.duration import parse_timeout

    seals, timeout_s = _seals(tenant, kv_tier_key_file), parse_timeout("timeout", timeout)
    auditor = Auditor(seals, MAX_PAYLOAD_BYTES, timeout_s, quarantines=not dry_run)
    progress = count_progress(Console(stderr=True), "frames", None)
    with _opened(tier) as found, progress as on_frame:
        told = auditor.run(found, on_frame)
    _tell(told.as_dict(), audit_lines(told), as_json)
    if told.num_bad:
        raise typer.Exit(_FOUND_BAD)


@tiers.command()
def stats(tier: Which, timeout: Timeout = "30", as_json: AsJson = False) -> None:
    """Count frames and bytes, by namespace: model, dtype, codec, machine."""
    from pagoda.cli.tiers_report import inventory_dict, inventory_lines
    from pagoda.tiers.duration import parse_timeout
    from pagoda.tiers.inventory import take_inventory

    timeout_s = parse_timeout("timeout", timeout)
    with _opened(tier) as found:
        inventory = take_inventory(found, timeout_s)
    _tell(inventory_dict(inventory), inventory_lines(inventory, time.time()), as_json)


@tiers.command()
def prune(
    tier: Which,
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep what was used last, up to so many bytes."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Remove what was not used for 12h, 7d …")
    ] = None,
    keep_namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="HEX", help="Remove frames of all others; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing.")] = False,
    timeout: Timeout = "30",
    as_json: AsJson = False,
) -> None:
    """Remove frames; at least one of --size, --older-than, --keep-namespace says which.

    A server that uses the tier meanwhile computes what it does not find.
    """
    from pagoda.cli.tiers_report import size_of
    from pagoda.tiers.duration import parse_duration, parse_timeout
    from pagoda.tiers.inventory import Pruning
    from pagoda.tiers.namespace import is_label

    if size is None and older_than is None and not keep_namespace:
        limit = "say what is to go: --size, --older-than or --keep-namespace"
        raise InvalidOptionError("prune", None, limit)
    age = None if older_than is None else parse_duration("older_than", older_than)
    pruning = Pruning(
        None if size is None else parse_byte_size("size", size),
        None if age is None else time.time() - age,
        None if not keep_namespace else frozenset(map(_namespace, keep_namespace)),
    )
    timeout_s = parse_timeout("timeout", timeout)
    with _opened(tier) as found:
        chosen = pruning.choose(found.entries(timeout_s))
        names = [entry.name for entry in chosen]
        for first in range(0, 0 if dry_run else len(names), _REMOVED_AT_ONCE):
            found.remove(names[first : first + _REMOVED_AT_ONCE], timeout_s)
    frames = [entry for entry in chosen if not is_label(entry.name)]  # as `stats` counts
    num_bytes = sum(entry.num_bytes for entry in frames)
    verb = "would remove" if dry_run else "removed"
    told = {"removed": len(frames), "bytes": num_bytes, "dry_run": dry_run}
    _tell(told, [f"{verb} {len(frames):,} frames, {size_of(num_bytes)}"], as_json)


@tiers.command("new-key")
def new_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Must not be there yet.")],
) -> None:
    """Make the key that --kv-tier-key-file takes, for its owner alone to read.

    All servers that are to share a tier need the same one.
    """
    from pagoda.tiers.key_file import write_new_secret

    write_new_secret("file", file)
    print(f"a new key is in {file}", file=sys.stderr)


@contextmanager
def _opened(text: str) -> Iterator[Tier]:
    """The tier beside whoever uses it. Raises `InvalidOptionError`."""
    from pagoda.tiers.kinds import open_tier, parse_inspected_tier

    tier = open_tier(parse_inspected_tier(text), 2 * MAX_PAYLOAD_BYTES)
    try:
        yield tier
    finally:
        tier.close()


def _seals(tenants: list[str] | None, key_file: Path | None) -> list[Seal]:
    """Of the tenants that were named. Raises `InvalidOptionError`."""
    from pagoda.tiers.key_file import read_secret
    from pagoda.tiers.seal import TenantSeal

    if bool(tenants) != (key_file is not None):
        limit = "a tenant's frames are opened by --tenant and --kv-tier-key-file together"
        raise InvalidOptionError("tenant", tenants, limit)
    if key_file is None:
        return []
    secret = read_secret("kv_tier_key_file", key_file)
    return [TenantSeal(secret, tenant) for tenant in tenants or ()]


def _namespace(text: str) -> str:
    from pagoda.tiers.names import SHORT_DIGITS

    if len(text) != SHORT_DIGITS or not set(text) <= set("0123456789abcdef"):
        limit = f"the {SHORT_DIGITS} hex digits that `pagoda tiers stats` shows"
        raise InvalidOptionError("keep_namespace", text, limit)
    return text


def _tell(told: dict[str, Any], lines: list[str], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"schema": 1, **told}) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
