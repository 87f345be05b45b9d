"""What `benchmarks/gpu.py` measures, one noun per file."""
