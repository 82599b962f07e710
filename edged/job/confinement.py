"""Confinement: what a job document that comes over the control door may name.

The REST API, the centre and every other client of the door define jobs with the daemon's rights.
Their documents may name files below `run.remote_files`, and addresses of `run.remote_listen` and
`run.remote_connect`; never a program.  A kind that does not declare its reach is refused.  Job
files that belong to root or to the daemon's user are not confined.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from edged.config.sections import REMOTE_LISTEN
from edged.documents.reach import Reach
from edged.errors import JobError
from edged.job.plan import JobPlan


@dataclass(frozen=True)
class Confinement:
    """The bounds; `files` is where relative paths of `file` sources and sinks start."""

    roots: tuple[Path, ...] = ()
    listen: tuple[str, ...] = REMOTE_LISTEN
    connect: tuple[str, ...] = ()
    files: Path = Path()

    def check(self, plan: JobPlan) -> None:
        """Raise JobError at the first key of `plan` that names something out of bounds."""
        for where, kind, reach in _reaches(plan, self.files):
            if reach is None:
                raise JobError(
                    f"{where}.type", f"{kind} does not declare what it reaches",
                    "define this job in a job file of root",
                )  # fmt: skip
            self._check(where, reach)

    def _check(self, where: str, reach: Reach) -> None:
        for key in reach.programs:
            raise JobError(
                f"{where}.{key}", "names a program", "define this job in a job file of root"
            )
        for key, path in reach.files.items():
            if not self._holds(path):
                roots = ", ".join(map(str, self.roots)) or "no directory"
                raise JobError(
                    f"{where}.{key}", f"{path!r} is outside {roots}",
                    "name a file inside, or let root set run.remote_files",
                )  # fmt: skip
        for allowed, setting, named in (
            (self.listen, "run.remote_listen", reach.listens),
            (self.connect, "run.remote_connect", reach.connects),
        ):
            for key, address in named.items():
                if not any(covers(entry, address) for entry in allowed):
                    raise JobError(
                        f"{where}.{key}", f"{address!r} is none of {', '.join(allowed) or 'none'}",
                        f"name another address, or let root set {setting}",
                    )  # fmt: skip

    def _holds(self, path: str) -> bool:
        """Whether a path is below a root, with all symbolic links followed."""
        if ".." in PurePath(path).parts or "\0" in path:
            return False
        real = Path(path).resolve()
        return any(real.is_relative_to(root.resolve()) for root in self.roots)


def covers(entry: str, address: str) -> bool:
    """Whether `entry` allows `address`.  An entry is `host:port`, `host:first-last` or `host:*`,
    with the host `*` for any.  Port 0, a free one, goes with a range that ends at 65535."""
    host, _, ports = entry.rpartition(":")
    named, _, port = address.rpartition(":")
    if host not in ("*", named) or not port.isdecimal():
        return False
    if ports == "*":
        return True
    first, _, last = ports.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        return False
    top = int(last or first)
    return int(first) <= int(port) <= top or (int(port) == 0 and top == 65535)


def is_confined(path: Path) -> bool:
    """Whether a job file belongs to a user other than root and the daemon's."""
    return path.stat().st_uid not in (0, os.geteuid())


def _reaches(plan: JobPlan, files: Path) -> Iterator[tuple[str, str, Reach | None]]:
    parts: Sequence[tuple[str, str, Reach | None]] = [
        *((f"{s.section}.{name}.source", s.source.kind, s.source.reach(files))
          for name, s in plan.streams.items()),
        *((f"sinks.{id}", sink.kind, sink.reach(files)) for id, sink in plan.sinks.items()),
    ]  # fmt: skip
    yield from parts
