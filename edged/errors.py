"""The errors that edged raises on purpose.

    EdgedError                  problem, place and remedy; has an exit code
    ├── JobError                a job document is wrong; `path` points at the fault       exit 65
    │   ├── JobFaults           several faults of one part of it
    │   └── ExpressionError     a SQL expression in it does not parse, type or compile
    ├── ConfigError             the daemon's own settings are wrong                        exit 78
    │   └── CommandError        a command to the running daemon failed; `kind` says why; exit 69 if
    │                           the daemon does not answer
    ├── PeerError               the peer of a socket broke the protocol; only its connection ends
    │   ├── ProtocolError       garbage, half a message, a sequence gap
    │   ├── SchemaMismatch      well-formed, but with other columns than agreed
    │   └── Unauthorized        token missing or wrong
    ├── RowsLost                sent rows were acknowledged and dropped by their times     exit 65
    ├── PageError               a page is damaged or of an unknown version         exit 65
    ├── StoreError              the store cannot continue                          exit 75
    │   ├── StoreFailed         a write or fsync failed; nothing is acked afterwards
    │   ├── StoreFull           (in edged.store) no room for a record; nothing was written
    │   ├── StoreBusy           another daemon holds the store                              exit 73
    │   ├── StoreFormatUnknown  another version wrote it                                    exit 78
    │   └── StoreCorrupt        damage that a start cannot get past
    ├── CentralError            the collector or the landing cannot continue       exit 75
    │   └── LandingFormatUnknown  another version wrote it                                  exit 78
    ├── RolloutError            (in edged.graph) a graph's deployment cannot go on   exit 75
    └── KernelError             a kernel refused its input (capacity, limits)               exit 70

Messages say what was wrong, where, and what to do.  Exit codes are those of sysexits.h.  `check`
and `repair` of stores and landings end without an error: exit 0 where everything is whole, exit 10
where damage can be mended, exit 65 where something is lost (edged/console/damage_report.py).
"""

from __future__ import annotations

from collections.abc import Sequence


class EdgedError(Exception):
    """Base of the tree.  `exit_code` is the CLI's exit code."""

    exit_code = 1


class JobError(EdgedError):
    """A job document is wrong.  `path` is the dotted path to the fault, e.g. `operators.j.left`."""

    exit_code = 65

    def __init__(self, path: str, problem: str, advice: str = "") -> None:
        self.path, self.problem, self.advice = path, problem, advice
        super().__init__(f"{path}: {problem}" + (f" ({advice})" if advice else ""))


class JobFaults(JobError):
    """Several faults of one part of a document; path, problem and advice are the first one's."""

    def __init__(self, faults: Sequence[JobError]) -> None:
        first = faults[0]
        super().__init__(first.path, first.problem, first.advice)
        self.faults = tuple(faults)


class ExpressionError(JobError):
    """A SQL expression does not parse, does not type or cannot be compiled."""


class ConfigError(EdgedError):
    """A setting or a command-line argument is wrong."""

    exit_code = 78


class CommandError(ConfigError):
    """A command to the running daemon failed.  Raised on both sides of the control door.

    `kind` is one of KINDS, `where` the path of the fault, `what` the fault, `do` the remedy;
    `retry_s` is the pause before a retry.
    """

    KINDS = ("invalid", "missing", "conflict", "busy", "unsupported", "failed", "unreachable")

    def __init__(
        self, kind: str, what: str, *, where: str = "", do: str = "", retry_s: float | None = None
    ) -> None:
        self.kind, self.what, self.where, self.do, self.retry_s = kind, what, where, do, retry_s
        if kind == "unreachable":
            self.exit_code = 69
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text} ({do})" if do else text)


class PeerError(EdgedError):
    """The peer of a connection broke the protocol; only that connection ends."""


class ProtocolError(PeerError):
    """Garbage, half a message or a gap in the sequence."""


class SchemaMismatch(PeerError):
    """A well-formed message with other columns than agreed."""


class Unauthorized(PeerError):
    """The token is missing, wrong or expired."""


class RowsLost(EdgedError):
    """Rows that were sent are acknowledged and dropped, because of their times."""

    exit_code = 65


class PageError(EdgedError):
    """A page is damaged, truncated or of an unknown version."""

    exit_code = 65


class StoreError(EdgedError):
    """The store cannot continue."""

    exit_code = 75


class StoreFailed(StoreError):
    """A write or an fsync failed.  Latched: the process must end and recover on restart."""


class StoreBusy(StoreError):
    """Another process holds the store."""

    exit_code = 73


class StoreFormatUnknown(StoreError):
    """The store has a format that this version neither reads nor migrates; a retry cannot help."""

    exit_code = 78


class StoreCorrupt(StoreError):
    """The store is damaged in a way that a start cannot get past."""


class CentralError(EdgedError):
    """The collector, the landing or the aggregation cannot continue."""

    exit_code = 75


class LandingFormatUnknown(CentralError):
    """The landing has a format that this version does not read; a retry cannot help."""

    exit_code = 78


class KernelError(EdgedError):
    """A kernel refused its input."""

    exit_code = 70
