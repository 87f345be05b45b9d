from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pagoda.kernels import block_types, page_layout, vector_code
from pagoda.kernels import cpu as kernels
from pagoda.kernels.cpu.fingerprint import SOURCES, fingerprint_of

FIRST_USE = """
import numpy as np
from pagoda.kernels.cpu.panels import pack
from pagoda.kernels.cpu.sums import gate_routine
pack(np.ones((1, 16), np.float32))
print(sum(pack.stats.cache_hits.values()), gate_routine(False, "silu").cache_hits)
"""
"""A kernel, and a routine around a function from outside."""


def test_it_changes_with_any_byte_of_the_sources(tmp_path: Path):
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for file in files:
        file.write_text("x = 1\n")
    before = fingerprint_of(files)
    assert fingerprint_of(files) == before
    files[1].write_text("x = 2\n")
    assert fingerprint_of(files) != before


def test_a_second_process_finds_on_disk_what_is_named_by_the_version_of_the_sources(tmp_path: Path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for hits in ("0 0", "1 1"):
        run = subprocess.run(
            [sys.executable, "-c", FIRST_USE],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == hits
        kept = [path.name for path in tmp_path.rglob("*.nbc")]
        assert len(kept) == 2
        assert all(fingerprint_of(SOURCES) in name for name in kept)


def test_the_sources_are_all_kernels_and_what_says_where_numbers_lie():
    folder = Path(kernels.__file__).parent
    layouts = {Path(each.__file__) for each in (block_types, page_layout, vector_code)}
    assert set(SOURCES) == {*folder.glob("*.py"), *layouts}
