"""What lies in a tier, namespace by namespace, and what of it to remove."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pagoda.tiers.names import namespace_of
from pagoda.tiers.namespace import MAX_LABEL_BYTES, Namespace, is_label, label_name_of, read_label
from pagoda.tiers.tier import Tier, TierEntry


@dataclass
class Holding:
    """Frames of one namespace, or of all."""

    num_frames: int = 0
    num_bytes: int = 0
    oldest: float | None = None
    """Seconds since the epoch of the least recent use that the tier knows of."""
    newest: float | None = None

    def add(self, entry: TierEntry) -> None:
        self.num_frames += 1
        self.num_bytes += entry.num_bytes
        if entry.used_at is not None:
            self.oldest = min(entry.used_at, self.oldest or entry.used_at)
            self.newest = max(entry.used_at, self.newest or entry.used_at)


@dataclass
class Inventory:
    """All frames of a tier, counted."""

    total: Holding = field(default_factory=Holding)
    by_namespace: dict[str, Holding] = field(default_factory=dict)
    """By its short digest."""
    labels: dict[str, Namespace] = field(default_factory=dict)
    """Of the namespaces that have one there."""


def take_inventory(tier: Tier, timeout_s: float) -> Inventory:
    """Ask for all entries. Raises `TierError`."""
    inventory = Inventory()
    for entry in tier.entries(timeout_s):
        if is_label(entry.name):
            continue
        short = namespace_of(entry.name)
        inventory.total.add(entry)
        inventory.by_namespace.setdefault(short, Holding()).add(entry)
    names = [label_name_of(short) for short in inventory.by_namespace]
    for name, label in zip(names, tier.load(names, timeout_s), strict=True):
        found = None
        if label is not None and len(label) <= MAX_LABEL_BYTES:
            found = read_label(name, bytes(label))
        if found is not None:
            inventory.labels[found.short] = found
    return inventory


@dataclass(frozen=True)
class Pruning:
    """What is to be removed: whatever any of these says."""

    max_bytes: int | None = None
    """Beyond so many bytes, what was used least recently goes."""
    used_since: float | None = None
    """What was used last before that moment goes, in seconds since the epoch."""
    kept_namespaces: Collection[str] | None = None
    """Short digests; frames of all others go."""

    def choose(self, entries: Iterable[TierEntry]) -> list[TierEntry]:
        """Those to remove, the least recently used first. What a tier knows no time of goes
        for its namespace, and otherwise as the oldest for room alone. Behind them the labels of
        namespaces of which no frame is left."""
        chosen, kept, labels = list[TierEntry](), deque[TierEntry](), list[TierEntry]()
        for entry in sorted(entries, key=_moment):
            if is_label(entry.name):
                labels.append(entry)
            else:
                (chosen if self._is_unwanted(entry) else kept).append(entry)
        if self.max_bytes is not None:
            num_bytes = sum(entry.num_bytes for entry in kept)
            while num_bytes > self.max_bytes:
                chosen.append(kept.popleft())
                num_bytes -= chosen[-1].num_bytes
        left = {namespace_of(entry.name) for entry in kept}
        unused = [label for label in labels if namespace_of(label.name) not in left]
        return [*sorted(chosen, key=_moment), *unused]

    def _is_unwanted(self, entry: TierEntry) -> bool:
        kept = self.kept_namespaces
        if kept is not None and namespace_of(entry.name) not in kept:
            return True
        return (
            self.used_since is not None
            and entry.used_at is not None
            and entry.used_at < self.used_since
        )


def _moment(entry: TierEntry) -> float:
    return entry.used_at or 0.0
