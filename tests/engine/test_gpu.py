"""What a machine must have for its GPU to be used, and what is said where it has not."""

from __future__ import annotations

import dataclasses
import logging
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch
import triton

from pagoda.engine.devices import numerics
from pagoda.engine.devices.find import find_backend, wants_gpu
from pagoda.engine.devices.gpu import Surroundings, policy_of
from pagoda.engine.devices.gpu_backend import GPUBackend
from pagoda.engine.devices.gpu_meter import GPUMeter
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.sizing.device_policy import GPUPolicy
from pagoda.sizing.gpu_memory import GPUUsage

CUDA = Surroundings("2.13.0+cu130", "13.0", None, sees_device=True, triton_version="3.7.1")
ROCM = Surroundings("2.13.0+rocm7.1", None, "7.1", sees_device=True, triton_version="3.7.1")
CPU_BUILD = Surroundings("2.13.0+cpu", None, None, sees_device=False, triton_version=None)

OBSTACLES = {
    "built for CPUs": (CPU_BUILD, r"PyTorch 2\.13\.0\+cpu is built for CPUs alone; install a"),
    "no driver": (
        dataclasses.replace(CUDA, sees_device=False),
        r"PyTorch 2\.13\.0\+cu130 is built for CUDA 13\.0 but sees no GPU: look whether nvidia-smi",
    ),
    "no AMD device": (
        dataclasses.replace(ROCM, sees_device=False),
        r"built for ROCm 7\.1 but sees no GPU: look whether rocminfo",
    ),
    "no Triton": (
        dataclasses.replace(CUDA, triton_version=None),
        r"Triton, .* is missing: pip install 'pagoda-llm\[cuda\]'",
    ),
    "old PyTorch": (
        dataclasses.replace(CUDA, torch_version="2.9.1"),
        r"PyTorch 2\.9\.1 is too old: it takes 2\.11 or newer",
    ),
    "old Triton": (
        dataclasses.replace(CUDA, triton_version="3.5.0"),
        r"Triton 3\.5\.0 is too old: it takes 3\.6 or newer",
    ),
    "a device that will not do": (
        dataclasses.replace(CUDA, device_obstacle="the Tesla T4 has compute capability 7.5"),
        r"the Tesla T4 has compute capability 7\.5",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_gpu_that_cannot_be_used_is_refused_with_what_would_help(name: str) -> None:
    surroundings, reason = OBSTACLES[name]
    with pytest.raises(InvalidOptionError, match=reason) as refusal:
        wants_gpu(EngineOptions(device="cuda"), lambda: surroundings)
    assert (refusal.value.field, refusal.value.value) == ("device", "cuda")
    assert not wants_gpu(EngineOptions(device="auto"), lambda: surroundings)
    assert not wants_gpu(EngineOptions(device="cpu"), lambda: surroundings)


@pytest.mark.parametrize("surroundings", [CUDA, ROCM])
def test_a_gpu_that_can_be_used_is_taken_unless_the_cpu_is_named(
    surroundings: Surroundings,
) -> None:
    assert wants_gpu(EngineOptions(device="cuda"), lambda: surroundings)
    assert wants_gpu(EngineOptions(device="auto"), lambda: surroundings)
    assert not wants_gpu(EngineOptions(device="cpu"), lambda: surroundings)


def test_a_gpu_that_is_left_alone_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    without_triton = dataclasses.replace(CUDA, triton_version=None)
    with caplog.at_level(logging.WARNING, logger="pagoda"):
        assert not wants_gpu(EngineOptions(), lambda: without_triton)
        assert not wants_gpu(EngineOptions(), lambda: CPU_BUILD)
    [message] = caplog.messages
    assert message.startswith("the GPU is left alone: Triton")


def test_this_machine_is_looked_at_without_an_error() -> None:
    surroundings = Surroundings.look()
    assert surroundings.torch_version == torch.__version__
    assert surroundings.sees_device == torch.cuda.is_available()
    assert find_backend(EngineOptions(device="cpu")).policy.kind == "CPU"


def test_a_chip_that_the_kernels_do_not_fit_is_an_obstacle() -> None:
    old = GPUPolicy("Tesla T4", 15 * 2**30, (7, 5))
    assert old.obstacle == (
        "the Tesla T4 has compute capability 7.5, and the kernels take 8.0 or newer"
    )
    assert dataclasses.replace(old, capability=(8, 0)).obstacle is None
    assert dataclasses.replace(old, capability=None).obstacle is None


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A PyTorch whose calls on a device answer with figures that are made up."""
    notes: list[str] = []

    def note(name: str, answer: object) -> None:
        def call(*_: object, **__: object) -> object:
            notes.append(name)
            return answer

        double = create_autospec(getattr(torch.cuda, name), side_effect=call)
        monkeypatch.setattr(torch.cuda, name, double)

    properties = SimpleNamespace(name="Test Card", total_memory=1000)
    for name, answer in {
        "mem_get_info": (600, 1000),
        "memory_reserved": 300,
        "memory_allocated": 200,
        "max_memory_allocated": 250,
        "reset_peak_memory_stats": None,
        "synchronize": None,
        "empty_cache": None,
        "get_device_properties": properties,
        "get_device_capability": (9, 0),
    }.items():
        note(name, answer)
    return notes


def test_the_driver_and_pytorch_are_asked_for_memory(noted: list[str]) -> None:
    meter = GPUMeter(torch.device("cuda", 0))
    assert meter.usage() == GPUUsage(1000, 600, 300, 200)
    assert noted[:3] == ["synchronize", "empty_cache", "mem_get_info"]
    assert meter.usage().outside_bytes == 100
    meter.start_peak()
    assert meter.peak_bytes() == 250
    noted.clear()
    meter.settle()
    assert noted == ["synchronize", "empty_cache"]


def test_what_compiles_the_kernels_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its distribution has other names on ROCm."""

    def no_such(name: str) -> str:
        raise PackageNotFoundError(name)

    chip = SimpleNamespace(name="Test Card", major=9, minor=4, multi_processor_count=304)
    monkeypatch.setattr(numerics, "version", no_such)
    monkeypatch.setattr(triton, "__version__", "3.99.9")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    told = numerics.gpu_numerics(torch.device("cuda", 0))
    assert "triton 3.99.9, " in told
    assert told.endswith("Test Card 9.4, 304 processors")


class FakeDriver:
    """In place of Triton's."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def get_current_target(self) -> None:
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class Beside:
    """A GPU that is seen and that no kernel can run on."""

    capability: tuple[int, int] = (9, 0)
    triton_error: Exception | None = None
    driver_error: Exception | None = None


BESIDE = {
    "no compiler": (
        Beside(triton_error=RuntimeError("Failed to find C compiler. Please specify\nmore")),
        r"\(Failed to find C compiler\. Please specify\); .* gcc .* python3-dev",
    ),
    "an old chip": (Beside(capability=(7, 5)), r"the Test Card has compute capability 7\.5"),
    "a device that somebody has": (
        Beside(driver_error=RuntimeError("CUDA error: busy or unavailable\nmore")),
        r"the GPU is there but does not answer \(CUDA error: busy or unavailable\)",
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_beside_a_gpu_that_cannot_be_used_an_engine_starts_on_the_cpu(
    name: str,
    noted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    beside, reason = BESIDE[name]

    def describe(device: torch.device) -> tuple[int, int]:
        if beside.driver_error is not None:
            raise beside.driver_error
        return beside.capability

    monkeypatch.setattr(torch.cuda, "get_device_capability", describe)
    monkeypatch.setattr(triton.runtime.driver, "_active", FakeDriver(beside.triton_error))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with caplog.at_level(logging.WARNING, logger="pagoda"):
        assert not wants_gpu(EngineOptions(device="auto"), Surroundings.look_closely)
    [message] = caplog.messages
    assert re.match(f"the GPU is left alone: .*{reason}", message)
    with pytest.raises(InvalidOptionError, match=reason) as refusal:
        find_backend(EngineOptions(device="cuda"))
    assert (refusal.value.field, refusal.value.value) == ("device", "cuda")


def test_the_first_device_is_opened(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.runtime.driver, "_active", FakeDriver())
    streams = iter(("first", "second"))
    opened: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: next(streams))
    monkeypatch.setattr("pagoda.engine.devices.gpu_backend.CUDAGraphs", opened.append)
    backend = GPUBackend.open()
    for _ in range(2):
        backend.new_capture()
    assert opened == ["first", "second"], "graphs of two engines share a stream"
    assert backend.policy.kind == "GPU"
    assert policy_of(torch.device("cuda", 0)) == GPUPolicy("Test Card", 1000, (9, 0))
    backend.prepare(EngineOptions(gpu_memory_utilization=0.6))
    with pytest.raises(CapacityError):
        backend.prepare(EngineOptions(gpu_memory_utilization=0.61))
    backend.prepare(EngineOptions(kv_cache_memory_bytes=10**12))
