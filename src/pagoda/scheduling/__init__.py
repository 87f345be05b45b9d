"""Deciding each step: the scheduler, the sequences it keeps, and the plan it makes."""

from pagoda.scheduling.ending import Ending, FinishReason
from pagoda.scheduling.in_hand import InHand
from pagoda.scheduling.judging import judge
from pagoda.scheduling.run_ahead import RunAhead
from pagoda.scheduling.scheduler import Scheduler
from pagoda.scheduling.sequence import Sequence, Status
from pagoda.scheduling.stats import SchedulerStats
from pagoda.scheduling.step import (
    ScheduledSequence,
    StepPlan,
)

__all__ = [
    "Ending",
    "FinishReason",
    "InHand",
    "RunAhead",
    "ScheduledSequence",
    "Scheduler",
    "SchedulerStats",
    "Sequence",
    "Status",
    "StepPlan",
    "judge",
]
