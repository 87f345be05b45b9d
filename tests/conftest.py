"""Hypothesis profiles: the default one is quick, `--hypothesis-profile=long` is for a night."""

# First of all, because other libraries import triton as well, and it cannot be chosen again.
import triton_device  # noqa: F401  # isort: skip

from hypothesis import HealthCheck, settings

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "quick", max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=CHECKS
)
settings.register_profile(
    "long", max_examples=1000, stateful_step_count=100, deadline=None, suppress_health_check=CHECKS
)
settings.load_profile("quick")
