"""Start-ups of vLLM that people have posted, as facts; and as the files that validate reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parent / "facts"
START_UPS: list[dict[str, Any]] = json.loads((FACTS / "startups.json").read_text())
SHAPES: dict[str, dict[str, Any]] = json.loads((FACTS / "shapes.json").read_text())

_FIELDS = {
    "id": "name", "config_key": "shape", "version": "release", "tp": "ranks", "pp": "stages",
    "dtype": "computed_in", "kv_dtype": "cached_in", "gpu_memory_utilization": "share",
    "max_model_len": "length", "block_size": "block", "max_num_batched_tokens": "batch",
    "gpu": "device", "gpu_total_gib": "device_gib", "model_weights_gib": "weights_gib",
    "activation_gib": "trial_gib", "non_torch_gib": "runtime_gib", "available_kv_gib": "cache_gib",
    "available_kv_bytes": "cache_bytes", "kv_cache_tokens": "tokens", "num_gpu_blocks": "blocks",
    "num_cpu_blocks": "host_blocks", "max_concurrency": "concurrency", "note": "words",
    "model": "model", "needed_gib": "needed_gib", "estimated_max_model_len": "longest",
}  # fmt: skip


def record(fact: dict[str, Any]) -> dict[str, Any]:
    """A start-up in the form of an observation: null for what is not known."""
    return {field: fact.get(name) for field, name in _FIELDS.items()}


def start_up(name: str) -> dict[str, Any]:
    return next(fact for fact in START_UPS if fact["name"] == name)


def write_files(folder: Path, facts: list[dict[str, Any]]) -> tuple[str, str]:
    """OBSERVED.jsonl and ARCHITECTURES.json; returns their paths."""
    observed, shapes = folder / "observed.jsonl", folder / "architectures.json"
    observed.write_text("".join(json.dumps(record(fact)) + "\n" for fact in facts))
    shapes.write_text(json.dumps(SHAPES))
    return str(observed), str(shapes)
