"""How many blocks a memory holds, and the words for it: shared by engine and planner."""

from pagoda.sizing.capacity import GIB, Capacity, format_gib, plan_capacity

__all__ = ["GIB", "Capacity", "format_gib", "plan_capacity"]
