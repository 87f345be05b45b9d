"""Every kernel compiles for the chips it is meant for, and fits them, without one being here.

What is asserted is what the compilers say: the interpreter, where kernels are tested for what they
compute, knows nothing of registers and shared memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kept_answers import KeptAnswers, versions

pytestmark = pytest.mark.timeout(1200)
"""Whatever is not kept is compiled by the first test, which takes minutes of two cores."""
KIB = 1024
SHARED_BYTES = {"80": 99 * KIB, "90": 227 * KIB, "gfx942": 64 * KIB}
"""What one program can have. Chips of compute capability 8.6 and 8.9 run code for 8.0 as well, and
have 99 KiB; an A100 has 163."""

VENDORS = (("80", "90"), ("gfx942",))
"""Chips that one process can compile for: launchers choose by the vendor."""

SPILLED_BYTES = {
    ("prefill_tile", "80"): 72,
    ("latent_splits", "80"): 48,
    ("merge_splits", "90"): 8,
}
"""At most, per thread; any other kernel spills nothing. There, on chips without products that read
shared memory, the queries, sums and scores of a tile take nearly all of the 255 registers; the 18
that do not fit are a fourteenth, and smaller tiles would read keys more often. The others are of
latents of 384 numbers, where what is beyond them is masked."""

SPILLED_BYTES_IN_FLOAT32 = {
    ("prefill_tile", "80"): 200,
    ("prefill_tile", "90"): 200,
    ("latent_splits", "90"): 24,
}
"""As `SPILLED_BYTES`: float32 is for comparison, on any chip without the products that read shared
memory, so nobody tunes it."""

SPILLED_BYTES_OF_CAPS = {("prefill_tile", "80"): 128}
"""As `SPILLED_BYTES`, where scores are capped: sixteen registers more, for heads of 256."""

SPILLED_BYTES_OF_CODES = {
    "decode_splits": 16,
    "prefill_tile": 64,
    "coded_rotary_kernel": 80,
    "latent_splits": 24,
}
"""As `SPILLED_BYTES`, on any chip: where codes become levels in registers, on chips of NVIDIA's."""

READS_THE_CACHE = ("decode_splits", "prefill_tile", "latent_splits", "latent_tiles")
ENCODES = ("coded_rotary_kernel", "latent_rows_kernel")
MERGES = ("merge_splits", "merge_tiles")
LATENTS = ("latent_rows_kernel", "head_product_kernel")
EXPERTS = ("route_kernel", "count_kernel", "place_kernel", "grouped_kernel", "combine_kernel")


Figures = list[dict[str, Any]]


@pytest.fixture(scope="module")
def compiled(pytestconfig: pytest.Config) -> dict[str, Figures]:
    """Figures of all kernels by chip, in a fresh process for each vendor, at the same time.

    What was compiled is kept beside pytest's other notes. Triton finds it by a kernel's source and
    all that a compiler is told, so that one that has changed is compiled anew. Finding all of it
    takes seconds as well: as long as no file changes that they follow from, figures are kept too.
    """
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("triton")

    def compile_all() -> tuple[Figures, set[str]]:
        with ThreadPoolExecutor(2) as pool:
            vendors = list(pool.map(partial(compile_for, folder=folder), VENDORS))
        lines = [each for vendor in vendors for each in vendor]
        files = {file for each in lines if "files" in each for file in each["files"]}
        return [each for each in lines if "files" not in each], files

    rests_on = versions("triton", "torch")
    figures = KeptAnswers(pytestconfig).get_by_files("compile_ahead", rests_on, compile_all)
    return {chip: [each for each in figures if each["chip"] == chip] for chip in SHARED_BYTES}


def compile_for(chips: Sequence[str], folder: Path) -> Figures:
    environment = {
        name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"
    } | {"TRITON_CACHE_DIR": str(folder)}
    script = Path(__file__).with_name("compile_ahead.py")
    result = subprocess.run(
        [sys.executable, str(script), *chips],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("chip", SHARED_BYTES)
def test_every_kernel_compiles_and_fits(chip: str, compiled: dict[str, Figures]) -> None:
    figures = compiled[chip]
    assert {each["kernel"] for each in figures} >= {*READS_THE_CACHE, *MERGES, *LATENTS, *EXPERTS}
    for each in figures:
        assert each["shared_bytes"] <= SHARED_BYTES[each["chip"]], each
        is_float32 = "torch.float32" in each["launch"]
        bounds = SPILLED_BYTES_IN_FLOAT32 if is_float32 else SPILLED_BYTES
        bounds = SPILLED_BYTES_OF_CAPS if "cap=" in each["launch"] else bounds
        allowed = bounds.get((each["kernel"], each["chip"]), 0)
        is_coded = "codes=" in each["launch"]
        if is_coded:
            allowed = max(allowed, SPILLED_BYTES_OF_CODES.get(each["kernel"], 0))
        assert each["spilled_bytes"] <= allowed, each
        if chip in ("80", "90") and each["kernel"] in READS_THE_CACHE and is_coded:
            # codes asynchronously too, as many at once as lie together
            assert each["wide_copies"] + each["narrow_copies"] > 0, each
            assert each["wide_copies"] > 0 or "codes=int8" not in each["launch"], each
        elif chip in ("80", "90") and each["kernel"] in READS_THE_CACHE:
            # keys and values: asynchronously, and as many bytes at once as there can be
            assert each["wide_copies"] > 0, each
            assert each["narrow_copies"] == 0, each
        if chip in ("80", "90") and each["kernel"] == "grouped_kernel":
            # weights likewise
            assert each["wide_copies"] > 0, each
            assert each["narrow_copies"] == 0, each
        if each["kernel"] == "head_product_kernel" and chip == "90":
            assert is_float32 or each["warpgroup_products"] > 0, each
        if each["kernel"] == "grouped_kernel" and chip == "90" and "many rows" in each["launch"]:
            assert is_float32 or each["warpgroup_products"] > 0, each
        is_wide = is_coded and "D=256" in each["launch"]  # too few rows for those products
        if each["kernel"] == "prefill_tile" and chip == "90" and not (is_float32 or is_wide):
            assert each["warpgroup_products"] > 0, each


@pytest.mark.parametrize("chip", ["80", "90"])
def test_no_product_is_fused_with_the_sum_that_rounds_it(
    chip: str, compiled: dict[str, Figures]
) -> None:
    """A CPU rounds it before: codes of eight bits would differ now and then."""
    encoding = [
        each
        for each in compiled[chip]
        if each["kernel"] in ENCODES and "codes=int8" in each["launch"]
    ]
    assert {each["kernel"] for each in encoding} == set(ENCODES)
    for each in encoding:
        assert each["whole_sums"] > 0, each
        assert each["whole_products"] == 0, each
