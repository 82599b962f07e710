"""A chain whose second link has a given speed: `tc` on a veth pair, else a shaper in user space.

The sink's daemon is then in a network namespace of its own, and the kernel shapes what the relay
sends it.  That needs the rights of root.  Else a relay of bytes (`edged.bench.shaper`) stands
between the two; its CPU time is this machine's too.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

from edged.bench.relay_chain import Chain, Hops
from edged.platform.processes import ChildProcess, free_port

NEAR, FAR, PREFIX_BITS = "10.201.86.1", "10.201.86.2", 30
PORT = 9100
KERNEL, USER_SPACE = "kernel (tbf on a veth pair)", "user space"
_CLONE_NEWNET = 0x40000000
_BURST, _QUEUE_MS = "1mb", 10


def enter_network(name: str) -> None:
    """Move this process to a network namespace.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(file, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(file)


class VethPair:
    """A veth pair into a namespace, shaped on this side."""

    def __init__(self, mbit_per_s: float) -> None:
        """Raises OSError or CalledProcessError where the kernel or this user's rights do not do."""
        self.name = f"edged-bench-{os.getpid()}"
        near, far = f"eb{os.getpid()}a", f"eb{os.getpid()}b"
        try:
            _run(f"ip netns add {self.name}")
            _run(f"ip link add {near} type veth peer name {far} netns {self.name}")
            _run(f"ip addr add {NEAR}/{PREFIX_BITS} dev {near}")
            _run(f"ip link set {near} up")
            inside = f"ip netns exec {self.name} ip"
            _run(f"{inside} addr add {FAR}/{PREFIX_BITS} dev {far}")
            _run(f"{inside} link set {far} up")
            _run(f"tc qdisc add dev {near} root tbf rate {mbit_per_s}mbit burst {_BURST}"
                 f" latency {_QUEUE_MS}ms")  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            self.close()
            raise

    def close(self) -> None:
        """Remove it; with the namespace goes the pair."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


class ShapedChain(Chain):
    """A chain whose relay has a link of `mbit_per_s` to the sink."""

    mbit_per_s = 1000.0
    shaped_by = ""
    """What shaped the last chain."""

    def __init__(self, directory: Path, hops: Hops) -> None:
        super().__init__(directory, hops)
        self._pair: VethPair | None = None
        self._near = free_port()
        try:
            self._pair = VethPair(self.mbit_per_s)
            self.address["sink"] = f"{FAR}:{PORT}"
        except (OSError, subprocess.CalledProcessError):
            self._pair = None
        ShapedChain.shaped_by = USER_SPACE if self._pair is None else KERNEL

    def target(self, name: str) -> str:
        """The sink is reached through the shaper."""
        shaped = name == "sink" and self._pair is None
        return f"127.0.0.1:{self._near}" if shaped else super().target(name)

    def options(self, name: str) -> list[str]:
        """The sink's daemon is in the namespace."""
        found = super().options(name)
        if name == "sink" and self._pair is not None:
            found += ["--network", self._pair.name]
        return found

    def start(self) -> None:
        """Start the shaper and the daemons."""
        if self._pair is None:
            words: list[Any] = ["edged.bench.shaper", str(self._near), self.address["sink"],
                                str(self.mbit_per_s * 1e6)]  # fmt: skip
            self.parts["shaper"] = ChildProcess("shaper", words, self.directory / "logs")
        super().start()

    def stop(self) -> None:
        """End all processes, and remove the pair."""
        super().stop()
        if self._pair is not None:
            self._pair.close()


def _run(command: str) -> None:
    subprocess.run(command.split(), capture_output=True, check=True)
