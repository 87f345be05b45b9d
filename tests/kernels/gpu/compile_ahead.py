"""Compile launches of every kernel for chips that are not here; print what came of it.

Run in a process of its own, without Triton's interpreter, with the names of chips of one vendor, of
`TARGETS`. Each line is a JSON object: the launch, the kernel, the chip, bytes of shared memory,
bytes of registers spilled per thread, how many instructions copy to shared memory 16 bytes at once,
how many copy fewer, how many are products of a whole warp group, Hopper's fast ones, and how many
round to a whole number what was rounded before, or a product that was not. The last line names the
files of Pagoda's, and of those beside this one, that all of it follows from.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import torch

if sys.argv[1].startswith("gfx"):
    torch.version.hip = "7.0"  # launchers choose by it, and nothing runs here

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TARGETS = {
    "80": GPUTarget("cuda", 80, 32),
    "90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages")
WHOLE = "0f4B400000"
"""1.5 · 2 ** 23 in PTX: what is added to a float32 to round it to a whole number."""


class Recorder:
    """Takes the place of `JITFunction.run`: keeps what would be launched, as source to compile."""

    def __init__(self) -> None:
        self.kernels: list[tuple[str, ASTSource, dict[str, int]]] = []

    def run(self, kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        """In place of a launch."""
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        signature, constants, attributes = {}, {}, {}
        for place, parameter in enumerate(kernel.params):
            value = values[parameter.name]
            kind, divisible = describe(value, parameter)
            signature[parameter.name] = kind
            if kind == "constexpr":
                constants[parameter.name] = value
            if divisible:
                attributes[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
        self.kernels.append((kernel.__name__, source, options))


def describe(value: Any, parameter: Any) -> tuple[str, bool]:
    """An argument's type in a signature, and whether it is known to be a multiple of 16."""
    if parameter.is_constexpr or value is None:
        return "constexpr", False
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype], True
    if isinstance(value, float):
        return "fp32", False
    free = not parameter.do_not_specialize
    if value == 1 and free:
        return "constexpr", False
    return ("i32" if abs(value) < 2**31 else "i64"), free and value % 16 == 0


def spilled_bytes(compiled: Any, target: GPUTarget) -> int:
    """Bytes per thread, as the assembler says."""
    if target.backend == "hip":
        return 4 * int(re.findall(r"\.vgpr_spill_count:\s*(\d+)", compiled.asm["amdgcn"])[0])
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(compiled.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run(
            [tool, "-res-usage", cubin], capture_output=True, text=True, check=True
        ).stdout
    return int(re.findall(r"STACK:(\d+)", usage)[0])


def main(chip: str) -> None:
    """Print a line for each kernel."""
    target = TARGETS[chip]
    from attention_launches import attention_launches
    from expert_launches import expert_launches
    from latent_launches import latent_launches
    from row_launches import row_launches

    recorder = Recorder()
    JITFunction.run = lambda *args, **kwargs: recorder.run(*args, **kwargs)
    for launch in chain(attention_launches(), latent_launches(), expert_launches(), row_launches()):
        recorder.kernels.clear()
        launch.call()
        assert recorder.kernels, f"{launch.name} launched nothing"
        for name, source, options in recorder.kernels:
            compiled = triton.compile(source, target=target, options=options)
            ptx = compiled.asm.get("ptx", "")
            figures = {
                "launch": launch.name,
                "kernel": name,
                "chip": chip,
                "shared_bytes": compiled.metadata.shared,
                "spilled_bytes": spilled_bytes(compiled, target),
                "narrow_copies": ptx.count("cp.async.ca"),
                "wide_copies": ptx.count("cp.async.cg"),
                "warpgroup_products": ptx.count("wgmma.mma_async"),
                "whole_sums": len(re.findall(rf"\badd\S* .*{WHOLE}", ptx)),
                "whole_products": len(re.findall(rf"\bfma\S* .*{WHOLE}", ptx)),
            }
            print(json.dumps(figures), flush=True)


def loaded_files() -> list[str]:
    """Those that modules were loaded from."""
    import pagoda

    folders = Path(pagoda.__file__).parent, Path(__file__).parent
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = [Path(each).resolve() for each in found if each]
    return [str(path) for path in paths if any(map(path.is_relative_to, folders))]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(name)
    print(json.dumps({"files": loaded_files()}))
