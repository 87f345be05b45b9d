"""What an engine takes of a device, and how many blocks that holds; the planner asks it too."""

from pagoda.sizing.capacity import GIB, Capacity, format_gib, plan_capacity

__all__ = ["GIB", "Capacity", "format_gib", "plan_capacity"]
