"""Runs any decoder for a batch on CPUs, with compiled kernels."""
