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
pack(np.ones((1, 16), np.float32))
print(sum(pack.stats.cache_hits.values()))
"""


def test_it_changes_with_any_byte_of_the_sources(tmp_path: Path):
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for file in files:
        file.write_text("x = 1\n")
    before = fingerprint_of(files)
    assert fingerprint_of(files) == before
    files[1].write_text("x = 2\n")
    assert fingerprint_of(files) != before


def test_a_second_process_finds_the_kernel_on_disk(tmp_path: Path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    hits = [
        subprocess.run(
            [sys.executable, "-c", FIRST_USE],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]


def test_what_is_kept_on_disk_is_named_by_the_version_of_the_sources(tmp_path: Path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FIRST_USE], env=environment, check=True)
    kept = [path.name for path in tmp_path.rglob("*.nb?")]
    assert len(kept) == 2
    assert all(fingerprint_of(SOURCES) in name for name in kept)


def test_the_sources_are_all_kernels_and_what_says_where_numbers_lie():
    folder = Path(kernels.__file__).parent
    layouts = {Path(each.__file__) for each in (block_types, page_layout, vector_code)}
    assert set(SOURCES) == {*folder.glob("*.py"), *layouts}
