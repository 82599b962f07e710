"""Compiling the CUDA kernels without a GPU: PTX by NVVM, machine code by nvJitLink's ptxas.

Both come with `numba-cuda[cu13]` from PyPI; neither needs a driver.  The assembler's figures of the
kernels, with numba-cuda 0.30.4 and CUDA 13.5 (registers a thread; bytes spilled to local memory and
of stack frame on either target; bytes of shared memory a block; machine code in KiB):

    kernel                registers     spill  stack  shared   code KiB
                        sm_87 sm_110                         sm_87 sm_110
    ring.begin             40     36      0      0       0     10.9   12.3
    ring.load              30     36      0      0       0     15.7   17.6
    ring.advance           48     40      0      0      16     25.8   17.9
    ring.totals            42     37      0      0       0     16.4   19.6
    ring.offsets           39     40      0      0    2048     24.5   29.4
    ring.evict             38     29      0      0       8     15.2   15.5
    ring.move              41     40      0      0       0     25.8   19.5
    ring.export            41     36      0      0       0     20.8   16.4
    ring.clear             34     27      0      0       0     12.2   14.1
    chain.link             64     56      0      0   18432     68.3   37.5
    chain.count            46     56      0      0       0     19.0   21.6
    chain.write            40     48      0      0       0     20.5   29.3
    bucket.fill_free       35     30      0      0       0     13.2   15.1
    bucket.tell             8      8      0      0       0      6.3    7.6
    bucket.build           80     56      0      0   18432     69.5   49.5
    bucket.count           48     51      0      0       0     22.7   24.9
    bucket.write           40     56      0      0       0     24.0   26.5
    bucket.cleanup         47     45      0      0       0     21.3   22.3
    hells.predicate        58     63      0      0   33792     27.0   24.9

A test checks the limits below.  A multiprocessor has 65 536 registers: at 64 a thread it
holds four blocks of 256, of `bucket.build`, which is launched as 64 blocks, three.  On a GPU numba
links through LTO, whose figures may differ a little.  Python 3.10, 3.11 and 3.12 give the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels import registry

TARGETS = ((8, 7), (11, 0))
"""Compute capabilities: Jetson Orin (sm_87) and Jetson Thor (sm_110)."""
REGISTERS_MAX = 64
"""Limit of registers a thread, except for the kernels in MORE_REGISTERS."""
MORE_REGISTERS = {"kernels.cuda.bucket.build": 80}
SPILL_BYTES_MAX = 0
"""Bytes that may be spilled to local memory, or lie in a stack frame."""
SHARED_BYTES_MAX = 33 << 10
"""Shared memory that a block may take; 48 KiB is what any block may have."""


@dataclass(frozen=True)
class Figures:
    """What one kernel takes on one target."""

    kernel: str
    target: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    cubin_bytes: int


def rows() -> list[registry.Kernel]:
    """The registered CUDA kernels."""
    registry.load_all("kernels.cuda")
    return [row for row in registry.KERNELS.values() if row.device == "cuda"]


def registers_max(row: registry.Kernel) -> int:
    """The limit of a kernel's registers."""
    return MORE_REGISTERS.get(row.name, REGISTERS_MAX)


def to_ptx(row: registry.Kernel, capability: tuple[int, int]) -> str:
    """A kernel's PTX for a compute capability."""
    from numba import cuda

    ptx, _ = cuda.compile(
        row.dispatcher.py_func,
        row.signatures[0],
        cc=capability,
        device=False,
        abi="numba",
        output="ptx",
    )
    return str(ptx)


def assemble(row: registry.Kernel, ptx: str, capability: tuple[int, int]) -> Figures:
    """Assemble PTX; returns the assembler's figures."""
    from cuda.bindings import nvjitlink

    target = f"sm_{capability[0]}{capability[1]}"
    options = [f"-arch={target}", "-verbose", "-O3", "-Xptxas=-v"]
    handle: Any = nvjitlink.create(len(options), options)
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel")
        nvjitlink.complete(handle)
        answer = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, answer)
        size = int(nvjitlink.get_linked_cubin_size(handle))
    finally:
        nvjitlink.destroy(handle)
    log = answer.decode()
    spilled = [
        read_number(rf"(\d+) bytes spill {kind}", log, "spills") for kind in ("stores", "loads")
    ]
    return Figures(
        row.name,
        target,
        read_number(r"Used (\d+) registers", log, "registers"),
        read_number(r"(\d+) bytes stack frame", log, "a stack frame"),
        max(spilled),
        read_number(r"(\d+) bytes smem", log, "shared memory"),
        size,
    )


def measure() -> Iterator[Figures]:
    """Every kernel's figures on every target."""
    for row in rows():
        for capability in TARGETS:
            yield assemble(row, to_ptx(row, capability), capability)


def read_number(pattern: str, log: str, what: str) -> int:
    """The first number that a pattern finds in the assembler's answer; ValueError if none."""
    found = re.search(pattern, log)
    if found is None:
        raise ValueError(f"the assembler does not say {what}: {log[:500]}")
    return int(found.group(1))
