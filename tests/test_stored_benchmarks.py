"""What the benchmarks of stored weights work out themselves; llama.cpp is not needed for it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from likelihoods import Likely, distance, divergence
from perplexity import compare, prose
from perplexity import markdown as perplexity_row
from stored_recipes import NAMES, PLAIN, Recipe
from stored_speed import LLAMA, markdown, works

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


def test_nothing_is_rounded_in_a_plain_file() -> None:
    recipe = Recipe.of(PLAIN, TENSORS)
    assert recipe.type_of("blk.0.ffn_down.weight", (512, 100)).name == "F32"
    assert recipe.file_type.name == "ALL_F32"


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


def test_prose_is_paragraphs_without_headings_and_lists() -> None:
    paragraph = " ".join(["word"] * 20)
    text = f"Chapter 1\n\n    {paragraph}\n    word\n\n1.1 More ... 7\n\n{paragraph}\n"
    assert prose(text.replace("\n", "\r\n")) == f"{paragraph} word\n\n{paragraph}"


def test_a_change_of_perplexity_is_that_of_pairs() -> None:
    reference = np.array([1.0, 3.0, 2.0, 2.5])
    same, worse = (compare("w", reference + added, reference) for added in (0, math.log(1.25)))
    assert same["is_same"]
    assert perplexity_row(same).endswith("| none, to the last bit | |")
    # Windows differ from each other, but not their pairs: the interval is a point.
    assert [worse[name] for name in ("change", "low", "high")] == pytest.approx([0.25] * 3)
    assert worse["perplexity"] == pytest.approx(1.25 * same["perplexity"])
    noise = np.array([0.01, -0.01, 0.02, -0.02])
    unsure = compare("w", reference + noise, reference)
    assert unsure["low"] < 0 < unsure["high"]


def test_speeds_are_told_beside_those_of_llama_cpp() -> None:
    best = {LLAMA: 2.0, "as stored": 1.5, "de-quantised": 3.0}
    seconds = {LLAMA: [2.0, 2.5, 2.5], "as stored": [1.5, 2.0, 4.0], "de-quantised": [3.0, 4.0]}
    row = {
        "file": "m",
        "work": "one stream",
        "best_seconds": best,
        "seconds": seconds,
        "roofline_seconds": [1.2, 1.2, 0.8],
    }
    alone = {**row, "best_seconds": {"de-quantised": 3.0}, "seconds": {"de-quantised": [3.0]}}
    lines = markdown([row, alone], list(best)).splitlines()
    assert lines[2:] == [
        "| m | one stream | 2.00 | 1.50 | 3.00 | 0.75 | 1.50 | 60% | 35% |",
        "| m | one stream | – | – | 3.00 | – | – | – | 40% |",
    ]


def test_no_work_is_found_in_a_cache_that_another_has_filled() -> None:
    prompts = [item.prompt_token_ids for work in works(16).values() for item in work]
    assert len({prompt[:8] for prompt in prompts}) == len(prompts) == 10
    assert sorted(map(len, prompts)) == [16] * 9 + [512]
