"""What the benchmarks of stored weights work out themselves; llama.cpp is not needed for it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from likelihoods import Likely, distance, divergence
from stored_recipes import NAMES, Recipe

LAYERS = [f"blk.{layer}.{name}.weight" for layer in range(30) for name in ("attn_v", "ffn_down")]
TENSORS = ["token_embd.weight", "output_norm.weight", *LAYERS]


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_has_a_type_whose_blocks_divide_its_rows(name: str) -> None:
    recipe = Recipe.of(name, TENSORS)
    if "_M" not in name:
        assert recipe.type_of("blk.0.ffn_down.weight", (512, 1536)).name == name
    assert recipe.type_of("output_norm.weight", (576,)).name == "F32"
    assert recipe.type_of("blk.0.ffn_down.weight", (512, 100)).name == "F16"
    narrow = recipe.type_of("blk.0.ffn_down.weight", (512, 576)).name
    assert narrow == name or narrow in ("IQ4_NL", "Q5_0", "Q5_1", "Q8_0")
    assert recipe.file_type.name.startswith(f"MOSTLY_{name}")


def test_a_mix_has_more_bits_where_llama_cpp_gives_them() -> None:
    recipe = Recipe.of("Q4_K_M", TENSORS)
    finer = [
        layer
        for layer in range(30)
        if recipe.type_of(f"blk.{layer}.ffn_down.weight", (576, 1536)).name == "Q6_K"
    ]
    assert finer == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]
    assert recipe.type_of("blk.3.attn_q.weight", (512, 512)).name == "Q4_K"
    tied = recipe.type_of("token_embd.weight", (100, 512)).name
    untied = Recipe.of("Q4_K_M", [*TENSORS, "output.weight"])
    assert tied == untied.type_of("output.weight", (100, 512)).name == "Q6_K"
    assert untied.type_of("token_embd.weight", (100, 512)).name == "Q4_K"


def likely(*places: dict[int, float]) -> Likely:
    """The most likely token comes first; probabilities in place of their logarithms."""
    logprobs = [{token: math.log(share) for token, share in place.items()} for place in places]
    return Likely([next(iter(place)) for place in places], logprobs)


def test_the_divergence_is_that_of_what_both_name_and_all_the_rest() -> None:
    exact = likely({7: 0.5, 8: 0.25, 9: 0.125})
    assert distance([exact], [exact]) == ("100.0%", "0.00000", "0.000")
    by_hand = 0.5 * math.log(2) + 0.25 * math.log(0.5) + 0.25 * math.log(1)
    assert divergence([math.log(0.5), math.log(0.25)], [math.log(0.25), math.log(0.5)]) == (
        pytest.approx(by_hand)
    )
    other = likely({8: 0.5, 7: 0.25, 4: 0.2})
    assert distance([other], [exact]) == ("0.0%", f"{by_hand:.5f}", f"{by_hand:.3f}")
    assert distance([other, exact], [exact, exact])[0] == "50.0%"
