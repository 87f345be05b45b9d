"""The kernels' tests once more, for a CPU that has none of this one's vector instructions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from other_cpus import assert_passed

from kept_answers import KeptAnswers

FILES = (
    "test_panels.py",
    "test_attention.py",
    "test_shared_values.py",
    "test_latents.py",
    "test_softmax.py",
    "test_number.py",
    *(
        f"test_stored_panels.py::test_a_product_is_that_with_the_de_quantised_weight[{name}]"
        for name in ("Q5_K", "Q6_K", "IQ4_XS")  # an addend, codes in two parts, a table
    ),
    "test_coded_product.py::test_scores_are_products_with_the_levels[fours-False-16]",
    "test_coded_product.py::test_outputs_are_sums_of_the_levels[fours-False-16]",
    "test_coded_product.py::test_scores_are_products_with_the_levels[paths-False-16]",
    "test_coded_product.py::test_outputs_are_sums_of_the_levels[paths-False-16]",
    "test_encode.py::test_calibrated_codes_and_scales_are_those_of_the_reference[int3-64]",
    "test_encode.py::test_codes_and_scales_are_those_of_the_reference[64-False-turboquant_3bit_nc-key]",
    "test_int8_product.py::test_extreme_codes_do_not_overflow[Q8_0]",
    "test_quantise.py::test_numbers_are_those_of_the_plain_reference[None-Q4_K]",
    *(
        f"test_grouped_panels.py::test_every_number_is_the_rounded_product[{name}]"
        for name in ("e4m3_f32_g128", "nf4_f32_g64")
    ),
    *(
        f"test_int8_product.py::test_a_product_is_that_of_rounded_rows_and_exact_weights[{name}]"
        for name in ("Q5_K", "Q6_K", "Q8_0", "IQ4_XS")
    ),
)
PLAIN = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
SMALL = ("-k", "not 960x576")
"""Of products with panels: number by number the largest takes as long as all else, and how many
panels threads share is told by no instruction."""


@pytest.mark.timeout(300)
def test_all_kernels_are_right_without_special_instructions(pytestconfig: pytest.Config):
    """Beside other tests the process has one thread: most of its time goes into compiling."""
    folder = Path(__file__).parent
    tests = [*SMALL, *(str(folder / name) for name in FILES)]
    assert_passed(KeptAnswers(pytestconfig), "", tests, PLAIN)


def test_the_plain_form_is_another_one():
    code = "from pagoda.kernels.cpu.vector import UNIT; print(UNIT.accumulators, UNIT.pairs)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **PLAIN},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["2", "False"]
