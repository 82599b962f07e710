"""The report of `edged store check` and `repair`, and of `edged central check` and `repair`.

One form for both: what is damaged (file, offset, kind, problem), what is lost with it, and the exit
code.  As JSON:

    {"place", "kind": "store" or "landing", "format", "repaired", "left", "read": {what: number},
     "findings": [{"file", "offset", "kind", "problem", "state", "lost": [{…}]}],
     "losses": [{…}], "damaged": number of findings, "lost": number of those with state `lost`,
     "notes": [text]}

`losses` are ranges that are lost and that no single place held.

Exit codes: 0 nothing is damaged, or a repair has mended everything; EXIT_MENDABLE: something is
damaged and nothing is lost; EXIT_LOST.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import click

from edged.console.consoles import figures_console

EXIT_MENDABLE, EXIT_LOST = 10, 65
MENDABLE, LOST = "mendable", "lost"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Loss:
    """What was in a damaged place and is nowhere else; empty and None where unknown or not meant.

    Sequence numbers, beats and times are ranges with both ends; times are microseconds since 1970
    UTC.
    """

    what: str
    """`pages`, `batches`, `beats`, or what else is lost, in words."""
    stream: str = ""
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    job: str = ""
    producer: str = ""
    rows: int | None = None
    first_us: int | None = None
    last_us: int | None = None
    device: str = ""
    epoch: int | None = None
    """Of the device's store."""
    landed_at_us: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are known."""
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place."""

    file: str
    """Relative to the store or landing."""
    problem: str
    state: str
    """`mendable`: a repair, or the program that the problem names, loses nothing; `lost`: what it
    held is nowhere else."""
    kind: str = ""
    """What is damaged there, such as `page` or `snapshot`."""
    offset: int | None = None
    """Byte in the file; None: the file as a whole."""
    lost: tuple[Loss, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        lost = [loss.to_json() for loss in self.lost]
        return {"file": self.file, "offset": self.offset, "kind": self.kind,
                "problem": self.problem, "state": self.state, "lost": lost}  # fmt: skip


@dataclass
class DamageReport:
    """What was read of a store or landing, and the damage in it."""

    kind: str
    """`store` or `landing`."""
    place: str
    format: int = 0
    read: dict[str, int] = field(default_factory=dict)
    """Number of things that were read, by name in the plural."""
    findings: list[Damage] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    """What is lost beside what the findings name."""
    repaired: bool = False
    left: int = 0
    """Damaged places that a repair leaves to the program that the problem or a note names."""
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and no damage."""

    @property
    def lost(self) -> list[Damage]:
        """The damage that no repair undoes."""
        return [finding for finding in self.findings if finding.state == LOST]

    @property
    def exit_code(self) -> int:
        """See the module."""
        if self.lost or self.losses:
            return EXIT_LOST
        return EXIT_MENDABLE if self.left or (self.findings and not self.repaired) else 0

    def count(self, what: str, number: int = 1) -> None:
        """Add to `read`."""
        self.read[what] = self.read.get(what, 0) + number

    def to_json(self) -> dict[str, Any]:
        """See the module."""
        return {
            "kind": self.kind, "place": self.place, "format": self.format,
            "repaired": self.repaired, "left": self.left, "read": dict(self.read),
            "findings": [finding.to_json() for finding in self.findings],
            "losses": [loss.to_json() for loss in self.losses], "damaged": len(self.findings),
            "lost": len(self.lost), "notes": list(self.notes),
        }  # fmt: skip


def show(report: DamageReport, as_json: bool) -> int:
    """Print a report; returns its exit code."""
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        _print(report)
    return report.exit_code


def _print(report: DamageReport) -> None:
    console = figures_console(stderr=False)
    if report.findings:
        console.print(_table(_DAMAGE, (_damage_row(found) for found in report.findings)))
    losses = [*(loss for found in report.lost for loss in found.lost), *report.losses]
    if losses:
        console.print("\nlost:", style="bold")
        console.print(_table(_LOSS, (_loss_row(loss) for loss in losses), used_only=True))
    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)
    read = ", ".join(f"{number:,} {what}" for what, number in report.read.items())
    found = len(report.findings)
    left = f", {report.left} left" if report.repaired else ""
    places = "1 damaged place" if found == 1 else f"{found} damaged places"
    told = f"{places}{left}, {len(report.lost)} with losses" if found else "everything is whole"
    console.print(f"{report.kind} of format {report.format}: {read}: {told}", soft_wrap=True)


_DAMAGE = ("file", "offset", "kind", "state", "problem")
_LOSS = ("what", "device", "stream or job", "partition", "numbers", "rows", "times")


def _damage_row(found: Damage) -> tuple[str, ...]:
    offset = "" if found.offset is None else f"{found.offset:,}"
    return found.file, offset, found.kind, found.state, found.problem


def _loss_row(loss: Loss) -> tuple[str, ...]:
    of = " of job ".join(name for name in (loss.stream, loss.job) if name)
    sender = f", {loss.producer}" if loss.producer else ""
    return (
        loss.what, loss.device, of + sender, _text(loss.partition),
        _span(_text(loss.first), _text(loss.last)), _text(loss.rows),
        _span(_time(loss.first_us), _time(loss.last_us)),
    )  # fmt: skip


def _table(titles: Iterable[str], rows: Iterable[tuple[str, ...]], used_only: bool = False) -> Any:
    """A table of rich; with `used_only` without columns that no row fills."""
    from rich.table import Table
    from rich.text import Text

    cells = list(rows)
    table, shown = Table(box=None, pad_edge=False), []
    for number, title in enumerate(titles):
        if not used_only or any(row[number] for row in cells):
            shown.append(number)
            table.add_column(title, overflow="fold")
    for row in cells:
        table.add_row(*(Text(row[number], _STYLES.get(row[number], "")) for number in shown))
    return table


_STYLES: Mapping[str, str] = {LOST: "bold red", MENDABLE: "yellow"}


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _span(first: str, last: str) -> str:
    return first if first == last or not last else f"{first} to {last}"


def _time(at_us: int | None) -> str:
    if at_us is None:
        return ""
    try:
        return f"{_EPOCH + timedelta(microseconds=at_us):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{at_us} us"
