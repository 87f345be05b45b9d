"""The jobs of a run, in the order in which their figures are wanted.

Each takes a process of its own on a GPU: a kernel that reads where it must not spoils its process
for good, and one that hangs can be ended from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from gpu_parts.accuracy import measure_accuracy
from gpu_parts.attention import measure_decode, measure_prefill
from gpu_parts.engine import measure_engine
from gpu_parts.limits import measure_limits
from gpu_parts.promises import measure_promises
from gpu_parts.results import Job, Results
from gpu_parts.setting import Limits, Setting
from gpu_parts.streaming import measure_streaming

Measure = Callable[[Setting, Job, Limits], None]


def run_job(setting: Setting, results: Results, name: str) -> None:
    """Run one job; its figures go into the results. The first must be the limits."""
    with results.timed(name) as job:
        if name == "limits":
            results.content["limits"] = asdict(measure_limits(setting, job))
        elif "limits" in results.content:
            _measure_of(name)(setting, job, Limits(**results.content["limits"]))
        else:
            job.left_out(name, "the device's limits are not known")


def _measure_of(name: str) -> Measure:
    part, _, which = name.partition(":")
    return partial(measure_model, which) if part == "engine" else MEASURES[name]


def measure_model(name: str, setting: Setting, job: Job, limits: Limits) -> None:
    """`measure_engine`, of one model."""
    measure_engine(setting, job, limits, name)


MEASURES: dict[str, Measure] = {
    "kernels:decode": measure_decode,
    "kernels:prefill": measure_prefill,
    "kernels:streaming": measure_streaming,
    "kernels:accuracy": lambda setting, job, limits: measure_accuracy(setting, job),
    "promises": lambda setting, job, limits: measure_promises(setting, job),
}
"""Jobs that are not of one model."""
