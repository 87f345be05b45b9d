"""What a post says in words: figures of a log that has no field for them, and flags.

Words fill what the fields leave open and never replace a field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = r"(\d[\d,]*)"
_GIB = r"(\d+(?:\.\d+)?)\s*GiB"
_WHOLE: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "kv_cache_tokens": (
        re.compile(rf"KV cache size: {_NUMBER} tokens"),
        re.compile(rf"stored in KV cache \({_NUMBER}\)"),
        re.compile(rf"{_NUMBER} storable"),
    ),
    "num_gpu_blocks": (re.compile(rf"# ?(?:GPU|cuda) blocks: {_NUMBER}", re.IGNORECASE),),
    "num_cpu_blocks": (re.compile(rf"# ?CPU blocks: {_NUMBER}", re.IGNORECASE),),
    "max_model_len": (
        re.compile(rf"max seq len \({_NUMBER}\)"),
        re.compile(rf"Maximum concurrency for {_NUMBER} tokens"),
    ),
    "estimated_max_model_len": (
        re.compile(rf"maximum model length(?: is|:)? ?{_NUMBER}", re.IGNORECASE),
        re.compile(rf"estimated max(?:imum)?(?:[ _]model)?(?:[ _]len(?:gth)?)?:? {_NUMBER}", re.I),
    ),
}
_REAL: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "max_concurrency": (re.compile(r"tokens per request: (\d+\.\d+)x"),),
    "available_kv_gib": (
        re.compile(rf"available KV cache memory:? \(?{_GIB}", re.IGNORECASE),
        re.compile(rf"reserved for KV Cache is {_GIB}", re.IGNORECASE),
    ),
    "needed_gib": (
        re.compile(rf"{_GIB},? (?:of )?(?:KV cache )?(?:is |are )?needed", re.IGNORECASE),
        re.compile(rf"need(?:s|ed)?:? {_GIB}", re.IGNORECASE),
    ),
}
_SPECULATIVE = re.compile(r"speculative[-_]config(?![=:'\" ]*(?:None|null))")
_METHOD = re.compile(r"""["']?method["']?\s*[:=]\s*\\?["']?([\w-]+)""")
_DRAFTED = re.compile(r"""num_spec(?:ulative)?_tokens\\?["']?\s*[:=]\s*(\d+)""")
_NAMED_DRAFT = re.compile(r"\b(MTP|EAGLE-?3?|nextn)\b(?:[ =-]?n?=?(\d)\b)?", re.IGNORECASE)
_NO_LAYERS = ("ngram", "suffix", "prompt_lookup")
_ONE_LAYER = ("mtp", "eagle", "eagle3", "nextn")
_MODE = re.compile(r"mamba[-_]cache[-_]mode[=: '\"]+(none|align|all)\b")
_STATE_BLOCK = re.compile(r"mamba[-_]block[-_]size[=: '\"]+(\d+)")
_EAGER = re.compile(r"enforce[-_]eager\b(?![=: '\"]+(?:0|false))|\beager\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Draft:
    """What proposes tokens beside the model."""

    num_layers: int | None
    """Layers that it adds to the cache; None: another model's, which the post does not describe."""
    num_tokens: int | None
    """Tokens that it proposes in a step; None: not said."""
    is_certain: bool
    """A flag names it, not the model's name or a remark alone."""


def words_of(row: Mapping[str, Any]) -> str:
    """All texts of a row but where it is from, one after another."""
    return " ".join(_texts(value for name, value in row.items() if name not in ("id", "source")))


def figures_in(words: str) -> dict[str, int | float]:
    """The figures of a log that stand in the words."""
    found: dict[str, int | float] = {}
    for name, rules in _WHOLE.items():
        text = _first(rules, words)
        if text is not None:
            found[name] = int(text.replace(",", ""))
    for name, rules in _REAL.items():
        text = _first(rules, words)
        if text is not None:
            found[name] = float(text)
    return found


def draft_in(words: str) -> Draft | None:
    """The draft that flags or the model's name tell of."""
    tokens = _DRAFTED.search(words)
    number = int(tokens[1]) if tokens else None
    named = _NAMED_DRAFT.search(words)
    if _SPECULATIVE.search(words) or tokens:
        method = _METHOD.search(words)
        told = (method[1] if method else named[1] if named else "").casefold()
        return Draft(_layers_of(told), number, is_certain=True)
    if named is None:
        return None
    return Draft(1, int(named[2]) if named[2] else None, is_certain=False)


def state_mode_in(words: str) -> str | None:
    """`--mamba-cache-mode`, where it is told."""
    found = _MODE.search(words)
    return found[1] if found else None


def state_block_in(words: str) -> int | None:
    """`--mamba-block-size`, where it is told."""
    found = _STATE_BLOCK.search(words)
    return int(found[1]) if found else None


def is_eager(words: str) -> bool:
    """Whether CUDA graphs were turned off."""
    return _EAGER.search(words) is not None


def _layers_of(method: str) -> int | None:
    if method.startswith(_NO_LAYERS):
        return 0
    is_one = method.endswith("_mtp") or method in _ONE_LAYER
    return 1 if is_one else None


def _first(rules: Iterable[re.Pattern[str]], words: str) -> str | None:
    return next((found[1] for rule in rules if (found := rule.search(words))), None)


def _texts(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            yield json.dumps(value)
