"""What all tests share: Hypothesis's profiles, and how tests are dealt out to processes.

The default profile is quick, `--hypothesis-profile=long` is for a night.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pagoda.engine.devices.cores import num_usable_cores

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "quick", max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=CHECKS
)
settings.register_profile(
    "long", max_examples=1000, stateful_step_count=100, deadline=None, suppress_health_check=CHECKS
)
settings.load_profile("quick")

MOST_PROCESSES = 4
"""Each takes most of a gigabyte, and some tests have the machine to themselves."""
DRIVERS = [Path("/dev", name) for name in ("nvidiactl", "kfd", "dxg")]
"""One of them is there where a GPU can be used: PyTorch, which could tell, takes 200 MB to ask."""


def pytest_configure(config: pytest.Config) -> None:
    """PyTorch and Numba are loaded where tests are run: not where they are only handed out.

    What is kept of a model, its calibrations, lies in the checkout and not with the user's.
    """
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache" / "kept")
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("each_process")
        config.pluginmanager.import_plugin("log_lines")
    else:  # NumPy's threads would wait for cores that another process computes on
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: a process for each core. None with a GPU: tests measure its memory."""
    num_processes = min(num_usable_cores(), MOST_PROCESSES)
    return 0 if any(map(Path.exists, DRIVERS)) or num_processes == 1 else num_processes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    from by_file import ByFile

    return ByFile(config, log)
