"""Runs decoders on a GPU: launches of kernels and products, captured in CUDA graphs."""
