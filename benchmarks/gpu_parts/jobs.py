"""The jobs of a run.

Each takes a process of its own on a GPU: a kernel that reads where it must not spoils its process
for good, and one that hangs can be ended from outside. What a job needs is imported when it runs,
so that a library that is missing or broken fails the jobs that want it, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module

from gpu_parts.results import Job, Results
from gpu_parts.setting import Limits, Setting

Measure = Callable[[Setting, Job, Limits], None]

_FUNCTIONS = {
    "kernels:decode": ("attention", "measure_decode"),
    "kernels:prefill": ("attention", "measure_prefill"),
    "kernels:streaming": ("streaming", "measure_streaming"),
    "kernels:accuracy": ("accuracy", "measure_accuracy"),
    "promises": ("promises", "measure_promises"),
}
"""Module and function of the jobs that are not of one model; engine:NAME is of one."""


def run_job(setting: Setting, results: Results, name: str) -> None:
    """Run one job; its figures go into the results. The first must be the limits."""
    with results.timed(name) as job:
        if name == "limits":
            from gpu_parts.limits import measure_limits

            results.content["limits"] = asdict(measure_limits(setting, job))
        elif "limits" in results.content:
            _measure_of(name)(setting, job, Limits(**results.content["limits"]))
        else:
            job.left_out(name, "the device's limits are not known")


def _measure_of(name: str) -> Measure:
    part, _, model = name.partition(":")
    if part == "engine":
        from gpu_parts.engine import measure_engine

        return partial(measure_engine, model)
    module, function = _FUNCTIONS[name]
    return getattr(import_module(f"gpu_parts.{module}"), function)
