"""Kernels compile for CPUs with instructions that this one may lack."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from other_cpus import assert_passed

from kept_answers import KeptAnswers, versions
from pagoda.kernels.cpu.fingerprint import SOURCES, fingerprint_of

_AVX2 = "avx avx2 fma f16c bmi2 ssse3 sse4.1 sse4.2"
UNITS = {
    "cooperlake": f"{_AVX2} avx512f avx512bw avx512vl avx512dq avx512vnni avx512bf16",
    "cascadelake": f"{_AVX2} avx512f avx512bw avx512vl avx512dq avx512vnni",
    "alderlake": f"{_AVX2} avxvnni",
}
"""Features by the CPU that has them."""
COMPILE = """
import pagoda.kernels.cpu.int8_product as product
from pagoda.kernels.cpu.byte_rate import _grow
from pagoda.kernels.cpu.stored_panels import decode_routine
from numba import njit

code = [njit("int32(int64)")(lambda rounds: _grow(rounds)).inspect_asm()]
for name in ("Q5_K", "IQ4_XS", "Q8_0"):  # an addend and two parts, a table, bytes
    decode_routine(name)
    code.append({0: product.int8_routine(name)._library.get_asm_str()})
print(*("vpdpbusd" in "".join(each.values()) for each in code))
"""


def words_about_code(kept: KeptAnswers, cpu: str, features: str, *command: str) -> list[str]:
    """What a program says of the code that it compiles for a CPU, in seconds."""
    own = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}

    def ask() -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [sys.executable, "-c", *command],
                env={**os.environ, **own, "NUMBA_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=False,
            )
        assert run.returncode == 0, run.stderr[-2000:]
        return run.stdout.split()

    rests_on = (own, command, fingerprint_of(SOURCES), versions("numba", "llvmlite"))
    name = hashlib.sha256(f"{cpu}{command}".encode()).hexdigest()[:16]
    return kept.get(f"compiled/{name}", rests_on, ask)


@pytest.fixture
def kept(pytestconfig: pytest.Config) -> KeptAnswers:
    return KeptAnswers(pytestconfig)


@pytest.mark.parametrize("cpu", UNITS)
def test_products_of_bytes_take_the_instruction_that_there_is(kept, cpu):
    features = ",".join(f"+{each}" for each in UNITS[cpu].split())
    assert words_about_code(kept, cpu, features, COMPILE) == ["True"] * 4


CODED = """
import re
import sys

from pagoda.kernels.cpu import page_product
from pagoda.kernels.cpu.vector import UNIT
from pagoda.kernels.vector_code import VectorCode

looks_up = {"levels": "vpermw", "e4m3": "vperm[it]2b.*vpunpcklbw"}
for form in (VectorCode("levels", (3,)), VectorCode("e4m3", (8,)))[: int(sys.argv[1])]:
    for make in (page_product._score_routine, page_product._weigh_routine):
        routine = make(UNIT.pairs, form.head_size, 16, form.text)
        code = routine._library.get_asm_str()
        print("vdpbf16ps" in code, bool(re.search(looks_up[form.numbers], code, re.DOTALL)))
"""


@pytest.mark.parametrize(("cpu", "num_forms"), [("cooperlake", 1), ("sapphirerapids", 2)])
def test_coded_vectors_are_multiplied_in_pairs_where_a_cpu_can(kept, cpu, num_forms):
    """With long tables where it has these, too."""
    features = ",".join(f"+{each}" for each in UNITS["cooperlake"].split())
    if cpu == "sapphirerapids":
        features += ",+avx512vbmi"
    words = words_about_code(kept, cpu, features, CODED, str(num_forms))
    assert words == ["True", str(cpu == "sapphirerapids")] * 2 * num_forms


WHOLE = """
import re
import sys

from pagoda.kernels.cpu import page_product

routine = page_product._score_routine(True, 64, 16, "levels-6.5.4.3---paths", 16)
code = routine._library.get_asm_str()
print(*(bool(re.search(each, code)) for each in sys.argv[1].split()))
"""


def test_whole_queries_are_read_from_memory_by_what_multiplies_bytes_and_shorts(kept):
    features = ",".join(f"+{each}" for each in f"{UNITS['cooperlake']} avx512vbmi".split())
    spread = r"[^\n]*\{1to16\}"
    wanted = f"vpdpbusd{spread} vpdpwssd{spread} vpermb"
    words = words_about_code(kept, "sapphirerapids", features, WHOLE, wanted)
    assert words == ["True"] * 3


def replacing(fields: str) -> str:
    """How a program begins whose CPU has other fields of `UNIT`."""
    return f"""
from dataclasses import replace

import pagoda.kernels.cpu.vector as vector

vector.UNIT = replace(vector.UNIT, {fields})
"""


SHORT_TABLES = replacing("long_tables=False")


def assert_passed_by(kept: KeptAnswers, begins: str, tests: Sequence[str]) -> None:
    """Assert that tests pass, run by a program that begins so.

    It keeps kernels of its own for the next run: nothing in their names says what it has replaced.
    """
    name = hashlib.sha256(begins.encode()).hexdigest()[:16]
    cache = Path(os.environ["XDG_CACHE_HOME"], "kernels", name)
    assert_passed(kept, begins, tests, {"NUMBA_CACHE_DIR": str(cache)})


FOLDER = Path(__file__).parent
STORED = tuple(
    f"{FOLDER}/test_stored_panels.py::test_every_number_is_the_de_quantised_one[{name}]"
    for name in ("Q4_0", "Q5_0", "Q5_K", "Q3_K", "Q6_K", "Q8_0", "IQ4_XS")
)
"""None above the low bits, less an offset; one in spans and in larger blocks, with an addend and
without; two; eight together; a table."""


def test_codes_and_stored_numbers_are_right_on_a_cpu_without_long_tables(kept):
    names = ("test_scores_are_products_with_the_levels", "test_outputs_are_sums_of_the_levels")
    codes = ("fours-True-16", "bytes-True-64", "paths-True-16")
    file = FOLDER / "test_coded_product.py"
    cases = [f"{file}::{name}[{code}]" for name in names for code in codes]
    few_rows = f"{FOLDER}/test_stored_panels.py::test_few_rows_meet_a_panel_in_registers"
    assert_passed_by(kept, SHORT_TABLES, [*cases, *STORED, few_rows])


NO_TABLES = replacing("long_tables=False, looks_up_bytes=False")


def test_paths_are_read_on_a_cpu_that_looks_up_no_bytes(kept):
    case = f"{FOLDER}/test_coded_product.py::test_outputs_are_sums_of_the_levels[paths-False-6]"
    assert_passed_by(kept, NO_TABLES, [case])


ONE_BY_ONE = "pairs=False", "pairs=False, long_tables=False"
"""With long tables, where there are any, and without; never with products of pairs."""


@pytest.mark.parametrize("fields", ONE_BY_ONE)
def test_stored_numbers_are_right_without_products_of_pairs(kept, fields):
    """What is multiplied then, numbers of slices, is the plain form's affair too."""
    assert_passed_by(kept, replacing(fields), STORED)


def test_whole_queries_are_right_without_products_of_pairs(kept):
    """Values are float32 then."""
    file = FOLDER.parent / "execution" / "test_coded_cache.py"
    cases = (
        "test_whole_queries_cost_less_than_bfloat16_does[int4]",
        "test_queries_are_whole_where_keys_are_levels_in_a_basis[int4-16]",
        "test_not_a_bit_depends_on_chunks_companions_or_threads[int4-bfloat16]",
    )
    assert_passed_by(kept, replacing("pairs=False"), [f"{file}::{case}" for case in cases])


NO_HALVES = replacing("halves=False")


def test_halves_are_read_and_written_without_an_instruction_for_them(kept):
    panels = f"{FOLDER}/test_stored_panels.py"
    scales = f"{FOLDER}/test_coded_product.py::test_scales_are_gathered_token_by_token"
    subnormal = f"{panels}::test_scales_without_an_exponent_are_what_they_are"
    assert_passed_by(kept, NO_HALVES, [subnormal, scales, *STORED])


LAYOUT = f"""{replacing("pairs=True, byte_products=0, looks_up_bytes=False")}
from pagoda.kernels.cpu.stored_words import TOGETHER

assert TOGETHER == 2
"""
IN_PAIRS = tuple(
    f"test_int8_product.py::test_a_product_is_that_of_rounded_rows_and_exact_weights[{name}]"
    for name in ("Q5_K", "Q6_K", "Q2_K", "IQ4_XS")
)


def test_panels_of_pairs_are_right_on_a_cpu_without_products_of_them(kept):
    assert_passed_by(kept, LAYOUT, [f"{FOLDER}/{name}" for name in IN_PAIRS])
