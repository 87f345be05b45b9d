"""How much fits, in the figures that engines print; and how fast a machine could be at best."""

from pagoda.planning.capacity import Capacity, plan_capacity
from pagoda.planning.floor import MachineLimits, floor_seconds
from pagoda.planning.workloads import WORKLOADS, Work, WorkItem, draw

__all__ = [
    "WORKLOADS",
    "Capacity",
    "MachineLimits",
    "Work",
    "WorkItem",
    "draw",
    "floor_seconds",
    "plan_capacity",
]
