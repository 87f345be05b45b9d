"""Schemes of quantised weights in safetensors checkpoints, one file each."""
