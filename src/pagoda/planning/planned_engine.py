"""Which engine a plan is for: Pagoda, or vLLM by the rules of one release."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pagoda.errors import InvalidOptionError
from pagoda.planning.releases import NEWEST, Release, first_seen, read_version, release_of

_PAGODA = "pagoda"
_VLLM = "vllm"
_VERSION = re.compile(r"v?\d+\.\d+(\.(\d+|x))*((a|b|rc)\d+)?(\.(post|dev)\d+)?(\+[\w.]+)?")


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """Pagoda or vLLM: everything that is planned for one of them asks here which it is."""

    vllm: Release | None
    """vLLM's rules; None: it is Pagoda, whose rules are its own."""
    version: str = ""
    """vLLM's, as people write it."""
    line: tuple[int, int] = NEWEST[:2]
    """The first two numbers of vLLM's version."""

    @property
    def is_pagoda(self) -> bool:
        return self.vllm is None

    @property
    def release(self) -> Release:
        """vLLM's rules, for whoever knows that it is vLLM."""
        assert self.vllm is not None
        return self.vllm

    @property
    def title(self) -> str:
        """As it is called in answers: pagoda, vllm 0.32."""
        return _PAGODA if self.is_pagoda else f"{_VLLM} {self.version}"

    @property
    def rules(self) -> str:
        """Whose rules are used: pagoda, or the releases that have them."""
        return _PAGODA if self.vllm is None else self.vllm.name

    @property
    def is_newer(self) -> bool:
        """Whether it is of a line after the newest one that was read."""
        return self.line > NEWEST[:2]

    def knows_format(self, kv_cache_dtype: str) -> bool:
        """Whether it is one of the releases in which a format of the cache was seen.

        What Pagoda stores is not a matter of its release.
        """
        return self.is_pagoda or self.line >= first_seen(kv_cache_dtype)


def planned_engine(text: str) -> PlannedEngine:
    """The engine that a name means: vllm (the newest that was read), vllm@0.19.1 or pagoda.

    Raises `InvalidOptionError` for any other.
    """
    name, at, version = text.partition("@")
    if name == _PAGODA and at:
        raise InvalidOptionError("engine", text, "a version can be named for vllm alone")
    if name == _PAGODA:
        return PlannedEngine(None)
    if name != _VLLM:
        raise InvalidOptionError("engine", text, "vllm, vllm@VERSION or pagoda")
    if not at:
        return PlannedEngine(release_of(NEWEST), ".".join(map(str, NEWEST[:2])))
    numbers = read_version(version) if _VERSION.fullmatch(version) else None
    if numbers is None:
        raise InvalidOptionError("engine", text, "a version such as vllm@0.19.1")
    return PlannedEngine(release_of(numbers), version.removeprefix("v"), numbers[:2])
