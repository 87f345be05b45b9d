from __future__ import annotations

import numpy as np
import torch
from kept import kept

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import exp2, number_at, put_number, tanh


@kept
def powers(out: Array, x: Array) -> None:
    for i in range(len(x)):
        out[i] = exp2(x[i])


@kept
def tangents(out: Array, x: Array) -> None:
    for i in range(len(x)):
        out[i] = tanh(x[i])


@kept
def narrowed(out: int, x: int, count: int) -> None:
    for i in range(count):
        put_number(out, i, number_at(x, i, False), True)


@kept
def widened(out: int, x: int, count: int) -> None:
    for i in range(count):
        put_number(out, i, number_at(x, i, True), False)


def test_powers_of_two_are_within_their_bound_and_end_in_zero():
    x = np.concatenate((-np.logspace(-9, 2.1, 20_000), -np.arange(127.0), [0.0])).astype(np.float32)
    out = np.empty_like(x)
    powers(out, x)
    exact = np.exp2(x.astype(np.float64))
    assert np.abs(out / exact - 1).max() < 2e-7
    assert np.array_equal(out[-128:], np.exp2(x[-128:])), "whole powers are exact"
    far = np.array([-126.5, -1e4, -1e30, -np.inf], np.float32)
    powers(far, far.copy())
    assert np.array_equal(far, np.zeros(4))


def test_hyperbolic_tangents_are_within_their_bound_and_end_in_one():
    sizes = np.concatenate((np.logspace(-30, 2, 40_000), np.linspace(0.1, 2, 20_000)))
    x = np.concatenate((sizes, -sizes)).astype(np.float32)
    out = np.empty_like(x)
    tangents(out, x)
    assert np.abs(out / np.tanh(x.astype(np.float64)) - 1).max() < 3e-7
    far = np.array([0, 30, -30, 1e30, -np.inf, np.nan], np.float32)
    tangents(far, far.copy())
    assert np.array_equal(far, [0, 1, -1, 1, -1, np.nan], equal_nan=True)


def test_bfloat16_is_rounded_as_pytorch_rounds():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = np.arange(0, 2**16, 7, dtype=np.uint32) << 16 | 0x8000
    x = np.concatenate((bits, ties, ties + 1, ties - 1)).view(np.float32)
    x = x[~np.isnan(x)]
    narrow = np.empty(len(x), np.uint16)
    narrowed(narrow.ctypes.data, x.ctypes.data, len(x))
    expected = torch.from_numpy(x).to(torch.bfloat16)
    assert np.array_equal(narrow, expected.view(torch.uint16).numpy())
    wide = np.empty_like(x)
    widened(wide.ctypes.data, narrow.ctypes.data, len(x))
    assert np.array_equal(wide, expected.float().numpy())
