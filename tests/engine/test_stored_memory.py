"""Loading a file whose weights stay as stored: it is never in memory twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pagoda.models.locate import locate

FIXED_BYTES = 40e6

MEASURE = """
import gc, sys
import psutil
from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions

process = psutil.Process()
options = EngineOptions(model=sys.argv[1], threads=1)  # two would wait for a core
load_model(options)  # what is imported and compiled is no part of a file
gc.collect()
base = process.memory_info().rss
sizes = []
model = load_model(options, lambda done, total: sizes.append(process.memory_info().rss))
mapped = [each.rss for each in process.memory_maps() if each.path == sys.argv[1]]
print(max(sizes) - base, model.weights.size_bytes, sum(mapped))
"""


@pytest.mark.model
def test_loading_grows_by_the_file_and_gives_its_pages_back() -> None:
    path = locate().path
    file_bytes = path.stat().st_size
    command = [sys.executable, "-c", MEASURE, str(path.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    growth, weight_bytes, mapped_bytes = map(int, done.stdout.split())
    assert weight_bytes < file_bytes
    assert growth < 1.15 * file_bytes + FIXED_BYTES
    assert mapped_bytes < 0.05 * file_bytes
