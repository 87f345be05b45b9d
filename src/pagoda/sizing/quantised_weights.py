"""What `--quantization` makes of plain weights: a type for each matrix.

One judge for the engine, which quantises them, and the planner, which counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pagoda.kernels.block_types import BLOCK_TYPES
from pagoda.sizing.held_weights import PLAIN_TYPES, Decoder, Tensor


class Recipe(NamedTuple):
    """Types that matrices become."""

    matrices: str
    head: str
    """Of the output head, which is the embedding too where the two are tied: its errors go straight
    into the logits, so it has at least six bits."""


RECIPES = MappingProxyType(
    {
        "q8_0": Recipe("Q8_0", "Q8_0"),
        "q6_k": Recipe("Q6_K", "Q6_K"),
        "q4_k": Recipe("Q4_K", "Q6_K"),
        "q4_0": Recipe("Q4_0", "Q6_K"),
    }
)
"""By the name of `--quantization`."""
QUANTIZATIONS = ("none", *RECIPES)
"""What Pagoda takes there; none: whatever is quantised is de-quantised."""

_OF_32 = MappingProxyType({"Q6_K": "Q8_0", "Q4_K": "Q5_0"})
"""What takes the place of a type with blocks of 256 where these do not divide a row."""


def quantised_types(
    decoder: Decoder, types: Mapping[str, str], quantization: str | None
) -> dict[str, str]:
    """GGUF's name of the type that each plain matrix becomes, by its tensors; empty without a name.

    `types` are those of the file. What is quantised there is left out, and what no block divides.
    So are routers, few bytes whose errors would send rows to other experts.
    """
    recipe = RECIPES.get(quantization or "none")
    if recipe is None:
        return {}
    wanted: dict[str, str] = {}
    of_layers = (
        tensors
        for layer in decoder.layers
        for tensors in (*layer.every_row_reads, *layer.of_chosen)
    )
    for tensors in (decoder.embedding, *of_layers):
        wanted |= _plain(tensors, types, recipe.matrices)
    wanted |= _plain(decoder.lm_head or decoder.embedding, types, recipe.head)
    routers = {tensor.name for tensors in decoder.routers for tensor in tensors}
    return {name: kind for name, kind in wanted.items() if name not in routers}


def _plain(tensors: Sequence[Tensor], types: Mapping[str, str], wanted: str) -> dict[str, str]:
    """Those that can become the wanted type, or the one in its place; a tensor of which nothing is
    said is plain too."""
    found: dict[str, str] = {}
    for tensor in tensors:
        if len(tensor.shape) == 2 and types.get(tensor.name, "BF16") in PLAIN_TYPES:
            names = (wanted, _OF_32.get(wanted, wanted))
            fitting = (name for name in names if not tensor.shape[1] % BLOCK_TYPES[name].num_values)
            if (name := next(fitting, None)) is not None:
                found[tensor.name] = name
    return found
