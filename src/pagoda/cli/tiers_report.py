"""What lies in a tier, as people and programs read it."""

from __future__ import annotations

from typing import Any

from pagoda.tiers.audit import Audit
from pagoda.tiers.frame import Rejection
from pagoda.tiers.inventory import Holding, Inventory
from pagoda.tiers.namespace import Namespace

_WORDS = {
    Rejection.TORN: "no frame, or not the whole of one",
    Rejection.CHECKSUM: "damaged",
    Rejection.VERSION: "of another version",
    Rejection.NAMESPACE: "of another namespace than the name says",
    Rejection.GROUP: "of another group of layers",
    Rejection.HASH: "under another block's name",
    Rejection.TENANT: "not sealed as they should be",
    Rejection.LENGTH: "of another length than they say",
}
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SPANS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))


def size_of(num_bytes: int) -> str:
    """Bytes in a unit that suits them."""
    for unit, size in _UNITS:
        if num_bytes >= size:
            return f"{num_bytes / size:,.2f} {unit}"
    return f"{num_bytes} bytes"


def audit_lines(audit: Audit) -> list[str]:
    """What an audit found."""
    lines = [f"{audit.num_frames:,} frames, {size_of(audit.num_bytes)}: {audit.num_bad:,} are bad"]
    for reason, count in sorted(audit.bad.items()):
        lines.append(f"  {count:,} {_WORDS[reason]} ({reason})")
    if audit.num_quarantined:
        lines.append(f"  {audit.num_quarantined:,} were set apart: nobody finds them again")
    if audit.num_unopened:
        lines.append(f"  {audit.num_unopened:,} are sealed with a key that was not given")
    return lines


def inventory_lines(inventory: Inventory, now: float) -> list[str]:
    """A line for all frames, and one for each namespace with the facts in which they differ."""
    lines = [_holding_line("all", inventory.total, now)]
    differing = _differing(inventory)
    for short, holding in sorted(inventory.by_namespace.items()):
        label = inventory.labels.get(short)
        lines.append(_holding_line(_told(short, label), holding, now))
        facts = {} if label is None else label.facts
        lines += [f"  {name}: {facts[name]}" for name in sorted(facts) if name in differing]
    return lines


def _told(short: str, label: Namespace | None) -> str:
    """A namespace, and what its first engine called the model, without signs that could do harm."""
    name = "" if label is None else label.model_name
    shown = "".join(sign if sign.isprintable() else "?" for sign in name)
    return f"{short} ({shown})" if shown else short


def _differing(inventory: Inventory) -> set[str]:
    """Names of the facts that the labels do not have in common; all, where there is one label."""
    labels = list(inventory.labels.values())
    if len(labels) == 1:
        return set(labels[0].facts)
    return {name for label in labels[1:] for name in labels[0].differing(label)}


def _holding_line(name: str, holding: Holding, now: float) -> str:
    line = f"{name}: {holding.num_frames:,} frames, {size_of(holding.num_bytes)}"
    if holding.oldest is None or holding.newest is None:
        return line
    return f"{line}, used {_ago(now - holding.oldest)} to {_ago(now - holding.newest)} ago"


def _ago(seconds: float) -> str:
    for unit, size in _SPANS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def inventory_dict(inventory: Inventory) -> dict[str, Any]:
    """For programs."""
    namespaces = []
    for short, holding in sorted(inventory.by_namespace.items()):
        label = inventory.labels.get(short)
        facts = None if label is None else dict(label.facts)
        model = None if label is None else label.model_name
        told = {"namespace": short, "model": model, **_holding_dict(holding), "facts": facts}
        namespaces.append(told)
    return {**_holding_dict(inventory.total), "namespaces": namespaces}


def _holding_dict(holding: Holding) -> dict[str, Any]:
    return {
        "frames": holding.num_frames,
        "bytes": holding.num_bytes,
        "oldest": holding.oldest,
        "newest": holding.newest,
    }
