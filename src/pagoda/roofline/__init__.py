"""The least time that a machine's limits allow, and the workloads engines are compared on."""

from pagoda.roofline.least_time import MachineLimits, roofline_seconds
from pagoda.roofline.workloads import WORKLOADS, Work, WorkItem, draw

__all__ = ["WORKLOADS", "MachineLimits", "Work", "WorkItem", "draw", "roofline_seconds"]
