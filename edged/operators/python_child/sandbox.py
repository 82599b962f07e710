"""What the kernel enforces on a child process: before any of the user's code is loaded.

- It dies with the daemon, and gains no privileges (`PR_SET_NO_NEW_PRIVS`).  Signals that ask the
  daemon to end, which a terminal sends to both, do not end it: the daemon's last beats need it.
- It reaches no network: a network namespace of its own where the kernel permits one, and a filter
  of system calls (seccomp) that refuses new sockets, io_uring, and access to other processes'
  memory.
- Its memory is bounded (`RLIMIT_DATA`), and it leaves no core dumps.

Each function returns what it enforces, as words for the status; where the kernel refuses, nothing
is said, and the child runs all the same.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4
"""Offsets in what the filter reads."""
_X32 = 0x40000000
"""Numbers from here on are of another interface on x86-64."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = {
    "x86_64": {"socket": 41, "ptrace": 101, "readv": 310, "writev": 311},
    "aarch64": {"socket": 198, "ptrace": 117, "readv": 270, "writev": 271},
}
"""`readv`, `writev`: of another process."""
_COMMON = {"io_uring_setup": 425, "pidfd_getfd": 438}


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("filters", ctypes.c_char_p))


def confine(parent: int) -> list[str]:
    """Confine this process, which must have one thread, the child of process `parent`."""
    libc = ctypes.CDLL(None, use_errno=True)
    enforced = []
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for ends in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, signal.SIG_IGN)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        enforced.append("no new privileges")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    spaces = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    if libc.unshare(spaces) == 0:
        enforced.append("no network (namespace)")
    if _filter(libc):
        enforced.append("no sockets (seccomp)")
    return enforced


def limit_memory(limit_bytes: int) -> list[str]:
    """Bound the memory of this process to what it has and `limit_bytes`."""
    with open("/proc/self/status") as lines:
        have = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
    most = 1024 * have + limit_bytes
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    except (OSError, ValueError):
        return []
    return [f"memory {limit_bytes >> 20} MiB"]


def _filter(libc: ctypes.CDLL) -> bool:
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return False
    refused = [*_CALLS[machine].values(), *_COMMON.values()]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, len(refused) + 1, 0, _X32),
    ]
    code += [(_EQUAL, len(refused) - i, 0, number) for i, number in enumerate(refused)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EACCES)]
    data = b"".join(struct.pack("<HBBI", *line) for line in code)
    program = _Program(len(code), data)
    done = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    return bool(done == 0)
