"""The versions of the graphs that this daemon takes part in: `STORE/graphs.json`.

    {"graphs": {name: {"version", "digest", "state", "daemons", "at_us"}}, "crc": …}

A deployment claims a version at every daemon before it changes a job at any.  A claim is a
compare-and-set: it names the version and digest that it has read, and is refused where another
deployment was faster.  A job of a graph is put only at the version that is claimed, which is
checked on the heart's thread together with the change.  The versions of a graph never fall.

It is not part of the log: no beat depends on it, and a graph can be claimed while the store is
full.  `put` and `delete` are called on the heart's thread and write on the planner's, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edged.beat.jobs import Precondition
from edged.beat.runtime import JobRuntime
from edged.beat.shelf import ShelvedJob
from edged.control.futures import resolve
from edged.documents import checked_json
from edged.errors import CommandError
from edged.job.graph_tag import GraphTag
from edged.platform.disk import SystemDisk, replace_file

NAME = "graphs.json"
STATES = DEPLOYING, RESCALING, DEPLOYED, STOPPED = (
    "deploying", "rescaling", "deployed", "stopped",
)  # fmt: skip
GRAPHS_MAX = 200
Answer = dict[str, Any]


@dataclass(frozen=True)
class GraphRecord:
    """A graph at this daemon."""

    version: int
    digest: int
    """Of the jobs that belong to the version."""
    state: str = DEPLOYING
    daemons: tuple[str, ...] = ()
    """Names of the graph's daemons in its document."""
    at_us: int = 0
    """Wall clock of the last change."""


@dataclass(frozen=True)
class GraphPrecondition(Precondition):
    """The definition of a job that a change applies to, and the version of the job's graph."""

    records: GraphRecords | None = None
    tag: GraphTag | None = None

    def check(self, name: str, job: JobRuntime | ShelvedJob | None) -> None:
        """Raise CommandError where either is another one."""
        super().check(name, job)
        if self.records is not None and self.tag is not None:
            self.records.check(self.tag)


class GraphRecords:
    """The records of one store.  `problem` says what is wrong with a file that cannot be read: no
    graph is known then, and the next deployment claims its version again."""

    def __init__(self, directory: str | Path, planner: ThreadPoolExecutor) -> None:
        self._path, self._planner = Path(directory) / NAME, planner
        self._disk = SystemDisk()
        self.problem = ""
        self._records = self._load()

    def all(self) -> list[Answer]:
        """The records, by name."""
        return [_answer(name, self._records[name]) for name in sorted(self._records)]

    def get(self, name: str) -> Answer:
        """The record of a graph.  Raises CommandError."""
        if name not in self._records:
            raise CommandError("missing", f"no graph {name} is known here", where="name")
        return _answer(name, self._records[name])

    def check(self, tag: GraphTag) -> None:
        """Raise CommandError where a graph is at another version here."""
        found = self._records.get(tag.name)
        if found is None or found.version != tag.version:
            have = "is not known here" if found is None else f"is at version {found.version} here"
            what = f"graph {tag.name} {have}, the job belongs to version {tag.version}"
            do = "another deployment was faster: see `edged graph status`"
            raise CommandError("conflict", what, where="graph.version", do=do)

    def put(
        self, name: str, new: GraphRecord, known: GraphTag | None, digest: int
    ) -> Future[Answer]:
        """Claim a version, or change the state of the claimed one.

        `known` and `digest` are what the caller has read; None: that there was no record.  The
        future is resolved when the claim is durable.  Raises CommandError.
        """
        old = self._records.get(name)
        self._compare(name, old, None if known is None else known.version, digest)
        same = old is not None and (new.version, new.digest) == (old.version, old.digest)
        if old is not None and not same and new.version <= old.version:
            what = f"graph {name} is at version {old.version}"
            raise CommandError("conflict", what, where="version", do="claim a later one")
        if old is None and len(self._records) >= GRAPHS_MAX:
            raise CommandError("conflict", f"{GRAPHS_MAX} graphs are known here", do="remove one")
        if old is not None and replace(new, at_us=old.at_us) == old:
            new = old
        self._records = {**self._records, name: new}
        return self._written(lambda: _answer(name, new))

    def delete(self, name: str, known: GraphTag | None, digest: int) -> Future[Answer]:
        """Forget a graph.  `known` None: whatever its version is.  Raises CommandError."""
        answer = self.get(name)
        if known is not None:
            self._compare(name, self._records[name], known.version, digest)
        self._records = {k: v for k, v in self._records.items() if k != name}
        return self._written(lambda: answer)

    def _compare(
        self, name: str, old: GraphRecord | None, version: int | None, digest: int
    ) -> None:
        have = None if old is None else (old.version, old.digest)
        if have == (None if version is None else (version, digest)):
            return
        what = f"graph {name} is not known here"
        if old is not None:
            what = f"graph {name} is at version {old.version} here, another one than was read"
        do = "another deployment was faster: look at its outcome, then deploy again"
        raise CommandError("conflict", what, where="if_version", do=do)

    def _written(self, answer: Callable[[], Answer]) -> Future[Answer]:
        """Write all records; the answer comes after that."""
        data = checked_json.pack(
            {"graphs": {name: asdict(record) for name, record in self._records.items()}}
        )
        done: Future[Answer] = Future()

        def write() -> Answer:
            replace_file(self._disk, str(self._path), [data + b"\n"])
            return answer()

        self._planner.submit(resolve, done, write)
        return done

    def _load(self) -> dict[str, GraphRecord]:
        try:
            found = checked_json.unpack(self._path.read_bytes())["graphs"]
            return {
                name: GraphRecord(**{**fields, "daemons": tuple(fields["daemons"])})
                for name, fields in found.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            self.problem = f"{self._path} is damaged ({problem!r}): no graph is known here"
            return {}


def _answer(name: str, record: GraphRecord) -> Answer:
    return {"name": name, **asdict(record), "daemons": list(record.daemons)}
