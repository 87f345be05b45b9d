"""Start-ups of vLLM as people have posted them: what was set, and what was printed.

A line of the file is one start-up; null means that the post does not say. Figures were printed
with two decimals, so 3.81 GiB is anything from 3.805 up to 3.815: no more is ever allowed for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda.cache.formats import FLOAT_DTYPES, canonical
from pagoda.errors import InvalidOptionError, ModelError
from pagoda.models.config import ModelConfig
from pagoda.sizing.capacity import GIB
from pagoda.validation.wording import (
    Draft,
    draft_in,
    figures_in,
    is_eager,
    state_block_in,
    state_mode_in,
    words_of,
)

UNNAMED = "unnamed"
_DECIMALS = 2
_IN_WORDS = (
    re.compile(r"decode context parallel size (\d+)"),
    re.compile(r"dcp_world_size (\d+)"),
    re.compile(r"\bDCP\s?(\d+)"),
)
_STAGES_IN_WORDS = re.compile(r"(\d+(?:\+\d+)+) layers")


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Observation:
    """One start-up: settings and printed figures; None where nothing is known."""

    id: str
    model: str
    config_key: str | None
    version: str | None
    gpu: str | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    pipeline_split: tuple[int, ...] | None
    context_parallel_size: int
    dtype: str | None
    kv_cache_dtype: str
    utilization: float | None
    max_model_len: int | None
    block_size: int | None
    max_num_batched_tokens: int | None
    total_gib: float | None
    weights_gib: float | None
    activation_gib: float | None
    non_torch_gib: float | None
    graphs_gib: float | None
    available: Span | None
    """Bytes."""
    num_tokens: int | None
    num_blocks: int | None
    num_host_blocks: int | None
    concurrency: str | None
    """With the decimals it was printed with."""
    needed_gib: float | None
    """What one request was said to need, where it was refused."""
    estimated_max_model_len: int | None
    """The length that was said to fit, where it was refused."""
    draft: Draft | None
    mamba_cache_mode: str | None
    mamba_block_size: int | None
    is_eager: bool
    unsaid: frozenset[str]
    """Flags that the post leaves open: kv_cache_dtype, tensor_parallel_size, draft."""

    @property
    def figures(self) -> dict[str, int | float | str]:
        """What was printed about the pool."""
        known = {
            "num_gpu_blocks": self.num_blocks,
            "kv_cache_tokens": self.num_tokens,
            "max_concurrency": self.concurrency,
            "needed_gib": self.needed_gib,
            "estimated_max_model_len": self.estimated_max_model_len,
        }
        return {name: value for name, value in known.items() if value is not None}


def read_observations(path: Path) -> list[Observation]:
    """The start-ups of a JSONL file; `InvalidOptionError` naming the line that is none."""
    observations = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidOptionError(where, line, f"is not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise InvalidOptionError(where, row, "must be an object with named fields")
        try:
            observations.append(read_observation(row))
        except ModelError as error:
            raise InvalidOptionError(f"{where} {error.field}", error.value, error.limit) from None
        except RecursionError:  # its texts are written out anew, a few calls deeper
            raise InvalidOptionError(where, line, "is nested too deeply") from None
    if not observations:
        raise InvalidOptionError("observed", str(path), "holds no observation")
    return observations


def read_shapes(path: Path) -> dict[str, Mapping[str, Any]]:
    """The shapes of models by their key."""
    try:
        shapes = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError("architectures", str(path), f"is not JSON: {error}") from None
    if not isinstance(shapes, dict) or any(not isinstance(row, dict) for row in shapes.values()):
        raise InvalidOptionError("architectures", str(path), "must be objects by their key")
    return shapes


def read_observation(row: Mapping[str, Any]) -> Observation:
    """One start-up. Raises `ModelError` for a field of a wrong type."""
    words = words_of(row)
    told = figures_in(words)
    given = {name: value for name, value in row.items() if value is not None}
    fields = ModelConfig({**told, **given})
    decode_groups = next((int(found[1]) for rule in _IN_WORDS if (found := rule.search(words))), 1)
    stages = _STAGES_IN_WORDS.search(words)
    draft = draft_in(words)
    return Observation(
        id=fields.string("id", default=UNNAMED),
        model=fields.string("model", default=UNNAMED),
        config_key=_word(row, "config_key"),
        version=_word(row, "version"),
        gpu=_word(row, "gpu"),
        tensor_parallel_size=fields.integer("tp", default=1),
        pipeline_parallel_size=fields.integer("pp", default=1),
        pipeline_split=tuple(map(int, stages[1].split("+"))) if stages else None,
        context_parallel_size=decode_groups,
        dtype=_dtype(row),
        kv_cache_dtype=fields.string("kv_dtype", default="auto"),
        utilization=fields.optional_number("gpu_memory_utilization"),
        max_model_len=fields.optional_integer("max_model_len"),
        block_size=fields.optional_integer("block_size"),
        max_num_batched_tokens=fields.optional_integer("max_num_batched_tokens"),
        total_gib=fields.optional_number("gpu_total_gib"),
        weights_gib=fields.optional_number("model_weights_gib"),
        activation_gib=fields.optional_number("activation_gib"),
        non_torch_gib=fields.optional_number("non_torch_gib", minimum=-1),
        graphs_gib=fields.optional_number("cudagraph_gib", minimum=-1),
        available=_available(fields),
        num_tokens=fields.optional_integer("kv_cache_tokens"),
        num_blocks=fields.optional_integer("num_gpu_blocks"),
        num_host_blocks=fields.optional_integer("num_cpu_blocks", minimum=0),
        concurrency=_printed(fields.optional_number("max_concurrency")),
        needed_gib=fields.optional_number("needed_gib"),
        estimated_max_model_len=fields.optional_integer("estimated_max_model_len", minimum=0),
        draft=draft,
        mamba_cache_mode=state_mode_in(words),
        mamba_block_size=state_block_in(words),
        is_eager=is_eager(words),
        unsaid=frozenset(
            name
            for name, is_said in {
                "kv_cache_dtype": row.get("kv_dtype") is not None,
                "tensor_parallel_size": row.get("tp") is not None,
                "draft": draft is not None,
            }.items()
            if not is_said
        ),
    )


def _word(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    return None if value is None else str(value)


def _dtype(row: Mapping[str, Any]) -> str | None:
    """The cache's dtype where nothing else is said; None for auto and for quantised weights."""
    name = canonical((_word(row, "dtype") or "auto").removeprefix("torch."))
    return name if name in FLOAT_DTYPES else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise InvalidOptionError("file", str(path), str(reason)) from None


def _available(fields: ModelConfig) -> Span | None:
    exact = fields.optional_integer("available_kv_bytes", minimum=0)
    if exact is not None:
        return Span(exact, exact)
    printed = fields.optional_number("available_kv_gib")
    if printed is None:
        return None
    decimals = max(_DECIMALS, len(repr(printed).partition(".")[2]))
    half = 10.0**-decimals / 2
    return Span(round((printed - half) * GIB), round((printed + half) * GIB) - 1)


def _printed(value: float | None) -> str | None:
    return None if value is None else f"{value:.{_DECIMALS}f}"
