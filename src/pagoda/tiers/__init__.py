"""Where blocks live when they are not in the pool: one file per tier."""
