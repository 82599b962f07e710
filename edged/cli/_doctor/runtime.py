"""Interpreter, kernels, GPU, plug-ins, configuration."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from edged.cli._doctor.base import Finding, Machine, check, failure, ok, optional, warning

PYTHONS = ((3, 10), (3, 13))
"""Oldest and newest version that edged is tested with."""
FILES_MIN = 4096
"""Open files: a connection takes one, the store and the API some dozens."""
MEMORY_MIN = 512 << 20
DEVICES = ("dev/nvidia0", "dev/nvhost-gpu", "dev/nvgpu")
"""A discrete GPU's, and a Jetson's by release."""


@check("run")
def python(machine: Machine) -> Iterator[Finding]:
    """The interpreter's version."""
    del machine
    version = sys.version.split()[0]
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        yield ok("python", f"{version}, {sys.executable}")
    else:
        span = " to ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        yield warning("python", f"{version}: edged is tested with {span}")


@check("run")
def kernels(machine: Machine) -> Iterator[Finding]:
    """Whether a start finds its machine code."""
    del machine
    from edged.platform.libraries import loops
    from kernels.ahead import library_paths, target_paths, targets
    from kernels.ahead.library import is_whole

    found = {"": library_paths(loops())}
    found |= {f" for {name}": target_paths(name, loops()) for name in targets.fitting()}
    for words, paths in found.items():
        if all(is_whole(path) for path in paths.values()):
            yield ok("kernels", f"compiled ahead of time{words}")
            return
    from kernels import registry

    compiled, total = registry.compiled()
    if compiled == total:
        text = f"{total} compiled, but no object of them: each start loads numba and its memory"
        yield warning("kernels", text, "edged compile")
    else:
        text = (
            f"{total - compiled} of {total} are not compiled: the first start takes a minute longer"
        )
        yield warning("kernels", text, "edged compile")


@check("run")
def resources(machine: Machine) -> Iterator[Finding]:
    """Memory, and open files."""
    memory = machine.root / "proc/meminfo"
    try:
        lines = dict(line.split(":", 1) for line in memory.read_text().splitlines() if ":" in line)
        available = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        available = None
    if available is not None and available < MEMORY_MIN:
        yield warning("memory", f"{available >> 20} MiB available; a job's default cap is 512 MiB",
                      'set [promises] memory = "128MiB" in jobs')  # fmt: skip
    elif available is not None:
        yield ok("memory", f"{available >> 20} MiB available, {os.cpu_count()} cores")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files != resource.RLIM_INFINITY and files < FILES_MIN:
        text = f"at most {files} open files, which bounds the connections"
        yield warning("open files", text, f"ulimit -Hn {FILES_MIN}, or LimitNOFILE= of the unit")


@check("run")
def gpu(machine: Machine) -> Iterator[Finding]:
    """An NVIDIA GPU, and the package that compiles for it."""
    device = next(
        (p for p in ("dev/nvidia0", "dev/nvhost-gpu", "dev/nvgpu") if (machine.root / p).exists()),
        None,
    )
    if device is None:
        yield optional("gpu", "no NVIDIA GPU; joins run on the CPU")
    elif find_spec("numba_cuda") is None:
        command = f"{sys.executable} -m pip install 'edged[cuda]'"
        yield optional("gpu", f"/{device}, without numba-cuda: joins run on the CPU", command)
    else:
        yield ok("gpu", f"/{device}, with numba-cuda")


@check("run")
def plugins(machine: Machine) -> Iterator[Finding]:
    """Plug-ins that do not load."""
    del machine
    from edged.plugin.installed import failures, installed

    for broken in failures():
        yield failure("plug-ins", str(broken), "edged plugins")
    packages = {kind.distribution for kind in installed()} - {"edged"}
    if packages:
        yield ok("plug-ins", ", ".join(sorted(packages)))


@check("run")
def configuration(machine: Machine) -> Iterator[Finding]:
    """The configuration with its jobs."""
    from edged.daemon.configuration import problems

    if machine.config_file is None and not machine.faults:
        yield optional("configuration", "none: edged run takes flags and jobs")
        return
    found = list(machine.faults) or problems(machine.config)
    remedy = f"edged validate {machine.config_file}"
    for problem in found[:3]:
        yield failure("configuration", str(problem), remedy)
    if not found:
        yield ok("configuration", str(machine.config_file))
