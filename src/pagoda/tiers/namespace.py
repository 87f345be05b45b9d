"""Whose blocks can be another's: all facts that a block's bytes depend on beside its tokens.

Two engines read each other's frames where all facts are the same, and only then. A namespace is
known by the digest of its facts; a label, which tells them, may lie beside the frames, so that
people and answers can say in which fact two of them differ. What people call the model is told
with them and is no fact: the same weights are the same in a folder of another name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from pagoda.tiers.names import DIGEST_BYTES, frame_name, namespace_of, short_digest

Fact = str | int | bool
MAX_LABEL_BYTES = 64 * 1024
_NO_BLOCK = bytes(DIGEST_BYTES)


@dataclass(frozen=True)
class Namespace:
    """What blocks must have in common to stand for one another."""

    facts: Mapping[str, Fact]
    """By their names: the weights' digest, the dtype, the codec, the kernels …"""

    model_name: str = field(default="", compare=False)
    """What its first engine calls the model, for people."""

    @cached_property
    def label(self) -> bytes:
        """Facts and name as canonical JSON."""
        return _canonical({"facts": dict(self.facts), "model": self.model_name})

    @cached_property
    def digest(self) -> bytes:
        """What frames are marked with."""
        return sha256(_canonical(dict(self.facts))).digest()

    @property
    def short(self) -> str:
        """What names of frames begin with."""
        return short_digest(self.digest)

    @property
    def label_name(self) -> str:
        """Under which name the label lies, where it is kept."""
        return frame_name(self.digest, _NO_BLOCK)

    def differing(self, other: Namespace) -> tuple[str, ...]:
        """Names of the facts in which the two are not the same, in order."""
        names = sorted({*self.facts, *other.facts})
        return tuple(name for name in names if self._fact(name) != other._fact(name))

    def _fact(self, name: str) -> tuple[type, Fact] | None:
        """With its type: 1 is not True."""
        fact = self.facts.get(name)
        return None if fact is None else (type(fact), fact)


def is_label(name: str) -> bool:
    """It is no block's frame that lies under that name, but a namespace's label."""
    return name.endswith(f"-{_NO_BLOCK.hex()}")


def label_name_of(short: str) -> str:
    """Where the label of a namespace of that short digest lies."""
    return f"{short}-{_NO_BLOCK.hex()}"


def read_label(name: str, label: bytes) -> Namespace | None:
    """The namespace whose label lies under that name; None where it is not what it should be."""
    found = parse_label(label)
    return found if found is not None and found.short == namespace_of(name) else None


def parse_label(label: bytes) -> Namespace | None:
    """What a label tells; None where it is none."""
    if len(label) > MAX_LABEL_BYTES:
        return None
    try:
        told = json.loads(label)
        found = Namespace(dict(told["facts"]), str(told["model"]))
        return found if found.label == label else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _canonical(told: Mapping[str, object]) -> bytes:
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")
