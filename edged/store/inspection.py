"""Inspection of a store: what is damaged, and what is lost with it.

`inspect` starts the store on a disk whose changes stay in memory and reads everything that a start
leaves unread: so it reports exactly what a start would find and lose, by the code of a start.
`repair` does the same on the real disk, under the store's lock.  Both read all of

    identity, session, acks, gaps, log, snapshots, spool    as a start does (edged.store.salvage)
    waiting pages, in log and spool                         each page's checksum
    shelf/, snapshots/                                      every file, also those not in use
    policy.json                                             its checksum

A store is inspected while a daemon uses it, too.  It changes meanwhile, so damage counts only where
several readings find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edged.console.damage_report import LOST, MENDABLE, Damage, DamageReport, Loss
from edged.documents import checked_json
from edged.errors import StoreBusy, StoreFailed
from edged.platform.disk import Disk, SystemDisk
from edged.platform.overlay_disk import OverlayDisk
from edged.store import identity
from edged.store.checked_lines import read_checked
from edged.store.gaps import Gap
from edged.store.lock import holder
from edged.store.records import Hole
from edged.store.salvage import Salvaged
from edged.store.snapshots import Damaged, read_snapshot
from edged.store.store import SEGMENT_BYTES, Store

WallOf = Callable[[bytes], "int | None"]
"""The wall clock (µs) in the facts of a record."""
READINGS, READINGS_MAX = 3, 20
"""Complete readings of a store that is in use, where the first finds damage; attempts at most."""
_DIRECTORIES = {
    "log": (".log", "log segments"), "snapshots": (".snap", "snapshots"),
    "spool": (".pages", "spool files"), "shelf": (".shelf", "shelved jobs"),
}  # fmt: skip
POLICY = "policy.json"
_LEFT = (
    "damage of log, snapshot and shelf is left to the next start of the daemon, which knows the "
    "jobs: it goes on past it, and records what is lost"
)


def inspect(store: str, wall_of: WallOf = lambda facts: None) -> DamageReport:
    """The damage in the store at an absolute path; nothing is changed.

    Raises StoreError for an unknown format, for a disk that fails, and where a daemon changes the
    store faster than it is read.
    """
    pid = holder(store)
    if pid is None:
        return examine(store, OverlayDisk(), wall_of)
    reports: list[DamageReport] = []
    for _ in range(READINGS_MAX):
        found = _reading(store, wall_of)
        reports += [found] if found is not None else []
        if len(reports) == READINGS or (reports and not reports[-1].findings):
            return _agreed(reports, pid)
    raise StoreBusy(f"{store}: process {pid} changes the store faster than it is read; stop it")


def _agreed(reports: list[DamageReport], pid: str) -> DamageReport:
    """The last of several reports, with the damage and losses that all have."""
    last = reports[-1]
    keys = [{(f.file, f.kind, f.problem) for f in report.findings} for report in reports]
    last.findings = [
        f for f in last.findings if all((f.file, f.kind, f.problem) in known for known in keys)
    ]
    losses = [set(report.losses) for report in reports]
    last.losses = [loss for loss in last.losses if all(loss in known for known in losses)]
    last.notes.insert(0, f"process {pid} uses the store: damage counts where each reading finds it")
    return last


def _reading(store: str, wall_of: WallOf) -> DamageReport | None:
    """One reading of a store that is in use; None where a file went meanwhile."""
    try:
        return examine(store, OverlayDisk(), wall_of)
    except StoreFailed as problem:
        if isinstance(problem.__cause__, FileNotFoundError):
            return None
        raise
    except FileNotFoundError:
        return None


def repair(store: str, wall_of: WallOf = lambda facts: None) -> DamageReport:
    """Do what a start does past damage, and report it as `inspect` does.

    Raises StoreBusy where a daemon uses the store, and what `Store.open` raises.
    """
    report = examine(store, SystemDisk(), wall_of)
    report.repaired = True
    if report.findings:
        report.left = len(inspect(store).findings)
    if report.left:
        report.notes.append(_LEFT)
    return report


def examine(
    store: str,
    disk: Disk,
    wall_of: WallOf = lambda facts: None,
    segment_bytes: int = SEGMENT_BYTES,
) -> DamageReport:
    """Start the store on `disk`, read all that the start left unread, and report both."""
    report = DamageReport("store", store)
    _count_files(store, disk, report)
    acks = _acks(store, disk)
    with Store.open(store, disk, segment_bytes=segment_bytes) as opened:
        _Examination(store, disk, opened, report, wall_of).run()
        found, present = opened.migrated or (identity.FORMAT, identity.FORMAT)
    report.findings += acks
    report.format = found
    if found != present:
        report.notes.append(f"the next start brings the store to format {present}")
    return report


def _acks(store: str, disk: Disk) -> list[Damage]:
    """Damage of `acks`, of which a start says nothing: it is written without a sync."""
    path = f"{store}/acks"
    if not disk.exists(path) or read_checked(disk, path) is not None:
        return []
    problem = "it does not match its checksum, as after a power cut: pages are sent again"
    return [Damage("acks", problem, MENDABLE, "acks")]


def _count_files(store: str, disk: Disk, report: DamageReport) -> None:
    for directory, (suffix, what) in _DIRECTORIES.items():
        place = f"{store}/{directory}"
        names = disk.listdir(place) if disk.exists(place) else []
        report.count(what, sum(name.endswith(suffix) for name in names))


@dataclass
class _Examination:
    """One reading of an open store."""

    store: str
    disk: Disk
    opened: Store
    report: DamageReport
    wall_of: WallOf

    def run(self) -> None:
        gaps: list[Gap] = []
        before = self.opened.gaps.count
        self.opened.gaps.listen(gaps.append)
        self._records()
        self._waiting_pages()
        self.report.findings = [_damage(found) for found in self.opened.salvaged]
        self._unused_files("snapshots", "snapshot", "")
        self._unused_files("shelf", "shelf file", "the state of a shelved job")
        self._policy()
        self.report.losses += [_lost_range(gap) for gap in gaps]
        known = before - len(gaps)
        if known > 0:
            self.report.notes.append(f"{known} gaps were recorded before (`edged status` has them)")

    def _records(self) -> None:
        """Read the records that a start replays."""
        recovery, last_us = self.opened.recover(), None
        for record in recovery.records:
            self.report.count("beats to replay")
            at_us = self.wall_of(record.facts)
            if record.hole is not None:
                self.report.losses += _lost_beats(record.hole, last_us, at_us)
            last_us = at_us
        if recovery.end is not None:
            self.report.losses += _lost_beats(recovery.end, last_us, None)

    def _waiting_pages(self) -> None:
        """Read the waiting pages; a damaged one is set aside as when it is sent."""
        self.report.count("waiting pages", self.opened.backlog_pages)
        self.opened.check_pages()

    def _unused_files(self, directory: str, kind: str, lost: str) -> None:
        """Check the files of a directory that the start did not read."""
        known = {found.file for found in self.report.findings}
        for name in self.disk.listdir(f"{self.store}/{directory}"):
            file = f"{directory}/{name}"
            if file in known or not name.endswith((".snap", ".shelf")):
                continue
            try:
                read_snapshot(self.disk, f"{self.store}/{file}", self.opened.device_epoch)
            except Damaged as problem:
                state, losses = (LOST, (Loss(lost),)) if lost else (MENDABLE, ())
                damage = Damage(file, str(problem), state, kind, lost=losses)
                self.report.findings.append(damage)

    def _policy(self) -> None:
        path = f"{self.store}/{POLICY}"
        if not self.disk.exists(path):
            return
        file = self.disk.open(path)
        try:
            checked_json.unpack(file.pread(file.size(), 0))
        except ValueError as found:
            problem = str(found)
        else:
            return
        finally:
            file.close()
        lost = Loss("the policy that a command chose: the configuration's applies")
        self.report.findings.append(Damage(POLICY, problem, LOST, "policy", lost=(lost,)))


def _damage(found: Salvaged) -> Damage:
    lost = (Loss(found.lost),) if found.lost else ()
    kept = f"; its bytes are in {found.kept}" if found.kept else ""
    return Damage(
        found.file, found.problem + kept, LOST if lost else MENDABLE, found.kind, found.offset, lost
    )


def _lost_range(gap: Gap) -> Loss:
    return Loss(
        "batches" if gap.partition is None else "pages", gap.stream, gap.partition, gap.first,
        gap.last, gap.job, gap.producer, gap.rows, gap.first_us, gap.last_us,
    )  # fmt: skip


def _lost_beats(hole: Hole, from_us: int | None, until_us: int | None) -> list[Loss]:
    """The beats of a hole; their times are those of the beats around them."""
    if hole.before - hole.after < 2:
        return []
    return [
        Loss("beats", first=hole.after + 1, last=hole.before - 1, first_us=from_us,
             last_us=until_us)
    ]  # fmt: skip
