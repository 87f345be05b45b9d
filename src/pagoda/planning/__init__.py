"""The planner: from a config, a machine and flags to what fits and what an engine prints."""
