"""What families with experts share: how many there are, and which layers have them."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import ExpertsSpec, MLPSpec

_COUNTS = ("num_local_experts", "num_experts")
"""Fields for the number of experts, the one that counts first."""
_MOST_EXPERTS = 2**17
"""In all layers: five times those of any model; each is looked at one by one."""


def read_counts(
    config: ModelConfig,
    name: str,
    used_name: str = "num_experts_per_tok",
    *,
    default_count: int,
    default_used: int | None,
) -> tuple[int, int]:
    """How many experts a layer has, and each row uses: the fields `name` and `used_name`.

    Raises `ModelError` for more used than there are, and for too many.
    """
    count = config.integer(name, default=default_count)
    if count * config.integer("num_hidden_layers") > _MOST_EXPERTS:
        raise config.error(name, count, f"must be at most {_MOST_EXPERTS:,} in all layers")
    used = config.integer(used_name, default=default_used)
    if used > count:
        raise config.error(used_name, used, f"must be at most the {count} experts")
    return count, used


def experts(
    config: ModelConfig,
    mlp: MLPSpec,
    *,
    default_count: int,
    default_used: int,
    normalised: bool = True,
    shared: MLPSpec | None = None,
    shared_gate: bool = False,
) -> ExpertsSpec:
    """Experts like `mlp`; raises `ModelError` for more used than there are."""
    named = (name for name in _COUNTS if config.values.get(name) is not None)
    count, used = read_counts(
        config, next(named, _COUNTS[0]), default_count=default_count, default_used=default_used
    )
    return ExpertsSpec(
        num_experts=count,
        num_used=used,
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
        bias=mlp.bias,
        normalised=normalised,
        shared=shared,
        shared_gate=shared_gate,
    )


def qwen_layers(
    config: ModelConfig, dense: MLPSpec, sparse: ExpertsSpec, num_layers: int
) -> list[MLPSpec | ExpertsSpec]:
    """The feed-forward part of each layer: every `decoder_sparse_step`-th has experts.

    But for those in `mlp_only_layers`.
    """
    step = config.integer("decoder_sparse_step", default=1)
    listed = config.values.get("mlp_only_layers") or []
    if type(listed) is not list or not all(type(each) is int for each in listed):
        raise config.error("mlp_only_layers", listed, "must be a list of numbers of layers")
    return [
        dense if index in listed or (index + 1) % step else sparse for index in range(num_layers)
    ]
