"""What `edged run` says at its start and at its end, as lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.beat.runtime import JobRuntime
    from edged.daemon.daemon import Daemon


def counted(number: int, word: str) -> str:
    """`1 page`, `1,234 pages`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def begin(daemon: Daemon) -> list[str]:
    """The store, what each source reads, and where each sink writes."""
    parts = daemon.parts
    settings, recovered = parts.settings, parts.recovered
    lines = [f"store {settings.directory.absolute()}, door {daemon.door.path}"]
    for job in parts.heart.jobs:
        lines += _job(job, settings.files, settings.uplink_url)
    lines.append(f"ready, beat {recovered.beat}")
    return lines + recovered.notes


def _job(job: JobRuntime, root: Path, uplink: str | None) -> list[str]:
    name, lines = job.plan.name, []
    for id, stream in job.plan.streams.items():
        source = stream.source
        at = _leads(str(getattr(source, "path", "")), source.file_path(root))
        lines.append(f"{name}: {id} reads {source.kind}, {source.describe()[0]}{at}")
    for id, plan in job.plan.sinks.items():
        target = job.sinks[id].writes_to()
        if plan.schemas():
            target = f"for {uplink}" if uplink else "that stay in the store: there is no uplink"
        at = _leads(str(getattr(plan, "path", "")), target)
        lines.append(f"{name}: {id} writes {plan.describe()[0]}{at}")
    if job.problem:
        lines.append(f"{name} has failed: {job.problem}")
    return lines


def _leads(named: str, path: str) -> str:
    """Where a part's files are, unless its description has said so."""
    return "" if path in ("", named) else f" ({path})"


def totals(status: dict[str, Any]) -> dict[str, Any]:
    """The figures of a whole run, from the status document at its end."""
    jobs = status["jobs"].values()
    sinks = [sink for job in jobs for sink in job["sinks"].values()]
    operators = [operator for job in jobs for operator in job["operators"].values()]
    return {
        "rows": status["rows"],
        "late": sum(s["late"] for job in jobs for s in job["streams"].values()),
        "matches": sum(o.get("matches", 0) for o in operators),
        "rows_out": sum(sink.get("rows", 0) for sink in sinks),
        "pages": status["pages"],
        "files": sum(sink.get("files", 0) for sink in sinks),
        "backlog_pages": status["store"]["backlog_pages"],
        "seconds": status["uptime_s"],
    }


def end(status: dict[str, Any], all_delivered: bool) -> str:
    """The last line: what was read, computed and delivered."""
    found = totals(status)
    words = [f"{counted(found['rows'], 'row')} in"]
    words += [f"{found['late']:,} late"] if found["late"] else []
    words += [f"{found['matches']:,} matches"] if found["matches"] else []
    words.append(f"{counted(found['rows_out'], 'row')} out")
    words.append(f"{counted(found['pages'], 'page')} sealed")
    words += [f"{counted(found['files'], 'file')} written"] if found["files"] else []
    if found["backlog_pages"]:
        where = "in the store" if status["uplink"] is None else "not at the centre yet"
        words.append(f"{counted(found['backlog_pages'], 'page')} {where}")
    state = "all delivered" if all_delivered else "ended"
    return f"{state} after {found['seconds']:.1f} s: {', '.join(words)}"
