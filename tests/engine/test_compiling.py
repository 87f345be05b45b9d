"""Kernels that are compiled are told of, and those that are there already are not."""

from __future__ import annotations

import logging
import threading

import pytest
from numba import cfunc, njit, types

from pagoda.engine.devices.compiling import told_if_compiling


def test_compiling_is_told_and_running_is_not(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()
    caplog.set_level(logging.INFO, "pagoda")
    caplog.handler.addFilter(lambda record: told.set() is None)
    kernel = njit(lambda number: number)
    for compile_anew in (
        lambda: kernel(1),
        lambda: cfunc(types.intp(types.intp))(lambda number: number),
    ):
        with told_if_compiling("compiling", after_s=0.0):
            compile_anew()
            compile_anew()
            assert told.wait(20)
        assert caplog.messages == ["compiling"]
        caplog.clear()
        told.clear()
    with told_if_compiling("compiling", after_s=0.0):
        assert kernel(1) == 1
        assert not told.wait(0.05)
