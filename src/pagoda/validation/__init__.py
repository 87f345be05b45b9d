"""Start-ups of engines that people posted, and how the planner's predictions compare with them."""
