"""Experts as DeepSeek and GLM-4.5 state them: in groups, behind dense layers, with shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import ExpertsSpec, MLPSpec
from pagoda.models.families.experts import read_counts


@dataclass(frozen=True, slots=True)
class RoutedForm:
    """How a family routes rows, and what its configs may leave unsaid; None: nothing."""

    scoring: str
    """The only `scoring_func` that is covered."""
    methods: Mapping[str, bool]
    """Whether groups are chosen first, by `topk_method`; the first is that of a config without."""
    group_top: int
    corrects: bool
    """Whether scores are corrected for choosing."""
    num_experts: int
    num_used: int | None
    num_shared: int
    intermediate_size: int
    num_dense: int
    num_groups: int | None = 1
    num_used_groups: int | None = 1
    normalised: bool = True
    scale: float = 1.0


def routed_layers(
    config: ModelConfig, dense: MLPSpec, num_layers: int, form: RoutedForm
) -> list[MLPSpec | ExpertsSpec]:
    """The feed-forward part of each layer: `first_k_dense_replace` dense ones, then experts.

    With a `moe_layer_freq` only those layers have experts whose number it divides, as in
    DeepSeek's own code. Raises `ModelError` for numbers that contradict one another, and
    `UnsupportedModelError` for another way to score or to choose than the family's.
    """
    num_dense = config.integer("first_k_dense_replace", default=form.num_dense, minimum=0)
    step = config.integer("moe_layer_freq", default=1)
    is_sparse = [index >= num_dense and index % step == 0 for index in range(num_layers)]
    if not any(is_sparse):
        return [dense] * num_layers
    sparse = _experts(config, dense, form)
    return [sparse if has_experts else dense for has_experts in is_sparse]


def _experts(config: ModelConfig, dense: MLPSpec, form: RoutedForm) -> ExpertsSpec:
    """Shared experts are one, as wide as all together, and have biases where dense layers have."""
    count, used = read_counts(
        config, "n_routed_experts", default_count=form.num_experts, default_used=form.num_used
    )
    inner = config.integer("moe_intermediate_size", default=form.intermediate_size)
    num_shared = config.optional_integer("n_shared_experts", minimum=0, absent=form.num_shared)
    scoring = config.string("scoring_func", default=form.scoring)
    if scoring != form.scoring:
        raise config.unsupported("scoring_func", scoring, f"only {form.scoring} is covered")
    groups, used_groups = _groups(config, form, count, used)
    return ExpertsSpec(
        num_experts=count,
        num_used=used,
        intermediate_size=inner,
        activation=dense.activation,
        scoring=form.scoring,
        normalised=config.boolean("norm_topk_prob", default=form.normalised),
        scale=config.number("routed_scaling_factor", default=form.scale),
        correction_bias=form.corrects,
        num_groups=groups,
        num_used_groups=used_groups,
        group_top=form.group_top if groups > 1 else 1,
        shared=replace(dense, intermediate_size=inner * num_shared) if num_shared else None,
    )


def _groups(config: ModelConfig, form: RoutedForm, count: int, used: int) -> tuple[int, int]:
    """How many there are, and how many a row's experts are chosen from."""
    method = config.string("topk_method", default=next(iter(form.methods)))
    if method not in form.methods:
        raise config.unsupported("topk_method", method, f"covered are {', '.join(form.methods)}")
    if not form.methods[method]:
        return 1, 1
    groups = config.integer("n_group", default=form.num_groups)
    size, rest = divmod(count, groups)
    if rest or (groups > 1 and size < form.group_top):
        limit = f"must divide the {count} experts into groups of at least {form.group_top}"
        raise config.error("n_group", groups, limit)
    used_groups = config.integer("topk_group", default=form.num_used_groups)
    if used_groups > groups:
        raise config.error("topk_group", used_groups, f"must be at most the {groups} groups")
    if used > used_groups * size:
        limit = f"must be at most the {used_groups * size} experts of {used_groups} groups"
        raise config.error("num_experts_per_tok", used, limit)
    return groups, used_groups
