"""What all tests share: Hypothesis's profiles, engines on CPUs, and cores between processes.

The default profile is quick, `--hypothesis-profile=long` is for a night.
"""

# First of all, because other libraries import triton as well, and it cannot be chosen again.
import triton_device  # isort: skip

from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import side_by_side
from pagoda.engine.devices import find

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "quick", max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=CHECKS
)
settings.register_profile(
    "long", max_examples=1000, stateful_step_count=100, deadline=None, suppress_health_check=CHECKS
)
settings.load_profile("quick")


@pytest.fixture(autouse=True, scope="session")
def engines_on_cpus() -> Iterator[None]:
    """An engine whose device is not named is the CPU's in tests, whatever the machine has."""
    wants_gpu = find.wants_gpu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            find,
            "wants_gpu",
            lambda given, look: given.device != "auto" and wants_gpu(given, look),
        )
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: a process for each core. None with a GPU: tests measure its memory."""
    num_processes = min(side_by_side.ALL_CORES, side_by_side.MOST_PROCESSES)
    return 0 if triton_device.HAS_GPU or num_processes == 1 else num_processes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    from by_file import ByFile

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Between processes, tests are handed out in the order in which they were collected."""
    if side_by_side.NUM_PROCESSES > 1:
        from by_file import place_of, scope_of

        items.sort(key=lambda item: place_of(item.nodeid))
        for item in items:
            if scope_of(item.nodeid) == "alone":
                item.add_marker(pytest.mark.threads)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """A test waits for its cores before its time begins to count."""
    alone = is_alone(item)
    stays = alone and nextitem is not None and is_alone(nextitem)
    with side_by_side.MACHINE.cores(alone=alone, stays=stays):
        result = yield
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and item.get_closest_marker("model") is not None:
        side_by_side.give_back_memory()
    return result


def is_alone(item: pytest.Item) -> bool:
    """Whether a test has the machine to itself."""
    return item.get_closest_marker("threads") is not None
