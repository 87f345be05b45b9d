"""The random machine finds the faults that running ahead had, when they are put back."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from test_scheduler_machine import SchedulerMachine

from pagoda.scheduling import ScheduledSequence, Scheduler, Sequence, Status, StepPlan

THOROUGH = settings(
    max_examples=1000,
    stateful_step_count=50,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def expect_a_find(words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        run_state_machine_as_test(SchedulerMachine, settings=THOROUGH)


def test_publishing_what_an_earlier_stay_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that was preempted and runs again is not told from one that stayed."""
    update = Scheduler.update

    def forget_stays(self: Scheduler, plan: StepPlan, sampled: Mapping[int, int]) -> list[Sequence]:
        def now(scheduled: ScheduledSequence) -> ScheduledSequence:
            sequence = self._sequences.get(scheduled.sequence_id)
            runs = sequence is not None and sequence.status is Status.RUNNING
            return scheduled._replace(stay=sequence.stay) if sequence and runs else scheduled

        return update(self, replace(plan, sequences=tuple(map(now, plan.sequences))), sampled)

    monkeypatch.setattr(Scheduler, "update", forget_stays)
    expect_a_find("publish")


def test_admitting_whoever_has_tokens_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that was preempted comes back before its own tokens are known."""
    monkeypatch.setattr(
        Scheduler, "_is_held_up", lambda self, sequence: sequence.fork_parent is not None
    )
    expect_a_find("")
