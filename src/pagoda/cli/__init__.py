"""The commands of `pagoda`."""
