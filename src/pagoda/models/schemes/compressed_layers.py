"""compressed-tensors' `config_groups`: what the config says of the weights of some layers."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.scheme import require_one_of
from pagoda.models.schemes.span import ROW, WHOLE, Span

_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")
_MIXED_ORDERS = ("group", "dynamic", True)
_ORDERS = (*_MIXED_ORDERS, "weight", "static", False, None)
"""Source: compressed-tensors' `quantization/quant_args.py`. With weight, alias static, columns are
quantised in the order of their activations, and groups are of neighbours all the same."""


@dataclass(frozen=True, slots=True)
class CompressedLayers:
    """How the weights of a group of layers are stored."""

    is_float: bool
    bits: int
    span: Span
    is_symmetric: bool
    """There are no zero points."""
    in_order_of_activations: bool
    """Groups are of columns that do not lie together."""

    @classmethod
    def read(cls, groups: ModelConfig, name: str, form: str) -> CompressedLayers:
        """One of `config_groups`, once it is seen to be covered."""
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            raise groups.error(name, groups.values[name], "must say how weights are stored")
        require_one_of(group, "format", group.string("format", default=form), _FORMATS)
        kind, bits = weights.string("type", default="int"), weights.integer("num_bits")
        require_one_of(weights, "type", kind, ("int", "float"))
        require_one_of(weights, "num_bits", bits, (8,) if kind == "float" else (4, 8))
        is_symmetric = weights.boolean("symmetric", default=True)
        covered = (True,) if kind == "float" else (True, False)
        require_one_of(weights, "symmetric", is_symmetric, covered)
        order = weights.values.get("actorder")
        require_one_of(weights, "actorder", order, _ORDERS)
        return cls(kind == "float", bits, _span(weights), is_symmetric, order in _MIXED_ORDERS)

    @property
    def code(self) -> str:
        """One of `CODES`."""
        if self.is_float:
            return "e4m3"
        return f"int{self.bits}" if self.is_symmetric else f"uint{self.bits}"


def _span(weights: ModelConfig) -> Span:
    """By `strategy`, or, where it is missing, by the sizes that are not."""
    size = weights.optional_integer("group_size", minimum=-1)
    block = weights.pair("block_structure")
    by_size = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.string("strategy", default=by_size if block is None else "block")
    require_one_of(weights, "strategy", strategy, ("tensor", "channel", "group", "block"))
    if strategy == "group":
        if size is None or size < 1:
            raise weights.error("group_size", size, "must be at least 1 where strategy is group")
        return Span(1, size)
    if strategy == "block":
        if block is None:
            raise weights.missing("block_structure")
        return Span(*block)
    return ROW if strategy == "channel" else WHOLE
