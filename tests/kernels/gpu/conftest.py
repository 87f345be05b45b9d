"""Kernels written in Triton are tested on a GPU, or in Triton's interpreter where there is none."""

from __future__ import annotations

import pytest
import torch

import triton_device


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where tensors have to lie that a kernel is launched with."""
    return triton_device.DEVICE
