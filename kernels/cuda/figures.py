"""Compiling the CUDA kernels without a GPU: PTX by NVVM, machine code by nvJitLink.

Both come with `numba-cuda[cu13]` from PyPI; neither needs a driver.  `measure` says, for each
registered CUDA kernel and signature, what the assembler answers: registers a thread, bytes of stack
frame, bytes spilled to local memory, shared memory a block.

`BOUNDS` is what the kernels may use at most on either target; a test holds them to it.  Without
spills no register is kept in memory; up to REGISTERS of them, 65 536 registers a multiprocessor
hold at least 1024 threads, four blocks of 256.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels import registry

TARGETS = ((8, 7), (11, 0))
"""Compute capabilities: Jetson Orin (sm_87) and Jetson Thor (sm_110)."""


@dataclass(frozen=True)
class Figures:
    """What one kernel takes on one target."""

    kernel: str
    target: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    ptx_bytes: int
    cubin_bytes: int


def rows() -> list[registry.Kernel]:
    """The registered CUDA kernels."""
    registry.load_all("kernels.cuda")
    return [row for row in registry.KERNELS.values() if row.device == "cuda"]


def to_ptx(row: registry.Kernel, signature: str, capability: tuple[int, int]) -> str:
    """A kernel's PTX for a compute capability."""
    from numba import cuda

    ptx, _ = cuda.compile(
        row.dispatcher.py_func, signature, cc=capability, device=False, abi="numba", output="ptx"
    )
    return str(ptx)


def assemble(ptx: str, capability: tuple[int, int]) -> tuple[int, str]:
    """The size of a kernel's machine code, and what the assembler says of it."""
    from cuda.bindings import nvjitlink

    options = [f"-arch=sm_{capability[0]}{capability[1]}", "-verbose", "-O3", "-Xptxas=-v"]
    handle: Any = nvjitlink.create(len(options), options)
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel")
        nvjitlink.complete(handle)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
        return nvjitlink.get_linked_cubin_size(handle), log.decode()
    finally:
        nvjitlink.destroy(handle)


def measure() -> Iterator[Figures]:
    """Every kernel's figures on every target."""
    for row in rows():
        for capability in TARGETS:
            ptx = to_ptx(row, row.signatures[0], capability)
            size, log = assemble(ptx, capability)
            yield Figures(
                row.name,
                f"sm_{capability[0]}{capability[1]}",
                _number(r"Used (\d+) registers", log),
                _number(r"(\d+) bytes stack frame", log),
                _number(r"(\d+) bytes spill stores", log),
                _number(r"(\d+) bytes smem", log),
                len(ptx),
                size,
            )


def _number(pattern: str, log: str) -> int:
    found = re.search(pattern, log)
    return int(found.group(1)) if found else 0
