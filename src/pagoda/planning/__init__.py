"""How much fits: the KV cache's capacity, in the figures that engines print."""

from pagoda.planning.capacity import Capacity, plan_capacity

__all__ = ["Capacity", "plan_capacity"]
