"""Hypothesis profiles: the default one is quick, `--hypothesis-profile=long` is for a night."""

# First of all, because other libraries import triton as well, and it cannot be chosen again.
import triton_device  # noqa: F401  # isort: skip

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from pagoda.engine import devices

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
    wants_gpu = devices.wants_gpu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            devices,
            "wants_gpu",
            lambda given, look: given.device != "auto" and wants_gpu(given, look),
        )
        yield
