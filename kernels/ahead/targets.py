"""Processors that kernels are compiled for by name: a library that a package brings.

    x86-64-v2    every 64-bit x86 since 2009: SSE4.2, popcnt
    x86-64-v3    since 2013: AVX2, BMI, FMA
    armv8-a      every 64-bit Arm

Such a library holds no code of Python's or numpy's version: it calls the stable ABI of the one, and
reads the array objects of the other, which have one layout since numpy 1.7.  Kernels are compiled
for the target from their source: LLVM's passes know its vectors, and so do the kernels that ask for
the machine.  On another machine nothing of it runs.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple


class Target(NamedTuple):
    """A processor by name."""

    machine: str
    """As `platform.machine` has it."""
    processor: str
    """LLVM's name."""
    flags: frozenset[str] = frozenset()
    """What /proc/cpuinfo must list."""

    @property
    def triple(self) -> str:
        """LLVM's name of machine and system."""
        return f"{self.machine}-unknown-linux-gnu"


_V2 = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
_V3 = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
TARGETS = {
    "x86-64-v3": Target("x86_64", "x86-64-v3", frozenset(_V2 | _V3)),
    "x86-64-v2": Target("x86_64", "x86-64-v2", frozenset(_V2)),
    "armv8-a": Target("aarch64", "generic"),
}
"""By name; of those that a machine runs, the first is its best."""


def fitting() -> list[str]:
    """Names of the targets whose code this machine runs, best first."""
    machine, flags = platform.machine(), _flags()
    return [
        name
        for name, target in TARGETS.items()
        if target.machine == machine and target.flags <= flags
    ]


def _flags() -> set[str]:
    text = Path("/proc/cpuinfo").read_text()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return set(value.split())
    return set()
