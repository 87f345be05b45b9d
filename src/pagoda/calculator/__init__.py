"""The interactive page "feel the bytes": the planner in one HTML file."""
