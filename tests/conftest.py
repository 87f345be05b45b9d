"""What all tests share: Hypothesis's profiles, and how many processes run them.

The default profile is quick, `--hypothesis-profile=long` is for a night.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pagoda.engine.devices.cores import num_usable_cores

# One thread for NumPy: others would wait for cores that another process computes on. It is said
# here, since the conftest of a folder may import NumPy before any hook is called.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "quick", max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=CHECKS
)
settings.register_profile(
    "long", max_examples=1000, stateful_step_count=100, deadline=None, suppress_health_check=CHECKS
)
settings.load_profile("quick")

MOST_CORES = 4
"""Each process takes half a gigabyte, and some tests have the machine to themselves."""
DRIVERS = [Path("/dev", name) for name in ("nvidiactl", "kfd", "dxg")]
"""One of them is there where a GPU can be used: PyTorch, which could tell, takes 200 MB to ask."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes",
        dest="num_processes",
        type=num_processes,
        default=1,
        metavar="N",
        help="processes that run tests, `auto` for one more than there are cores",
    )


def num_processes(given: str) -> int:
    """One with a GPU, whose memory tests measure, or where a fork is not safe."""
    if given != "auto":
        return int(given)
    cores = min(num_usable_cores(), MOST_CORES)
    alone = any(map(Path.exists, DRIVERS)) or sys.platform != "linux"
    return 1 if alone or cores == 1 else cores + 1


def pytest_configure(config: pytest.Config) -> None:
    """What is kept of a model, its calibrations, lies in the checkout and not with the user's."""
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache" / "kept")
    config.pluginmanager.import_plugin("each_process")
    config.pluginmanager.import_plugin("log_lines")
    num_processes = config.getoption("num_processes")
    if num_processes > 1:
        import torch

        from forks import Forks
        from side_by_side import MACHINE

        torch.set_num_threads(1)  # so that nothing starts others while tests are collected
        config.pluginmanager.register(Forks(num_processes, MACHINE.share))
