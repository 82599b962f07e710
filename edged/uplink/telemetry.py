"""Telemetry: reports of a device about itself, as rows of a built-in stream of pages.

    daemon: row(snapshot) ──► Uplink.report ──► uplink process: page(…) ──► collector, landing

The stream is `edged.telemetry`; the dot keeps its name apart from every job's streams.  Its pages
have the ordinary format (`edged/pages/format.py`), one row each, and its schema is registered like
any other.  Spark reads it like any stream: `SELECT at, watts, backlog_bytes FROM telemetry`.

A report is not durable on the device, and the newest wins: it replaces a waiting one, so reports
never queue up.  The stream's sequence therefore has gaps, which the collector allows for this
stream only (`edged/central/admission.py`).  Its numbers are

    seq = session << 40 | n        n = 1, 2, … in the daemon's process

The store's session counter rises with every start and is durable before the daemon does anything.
No number is therefore used twice, even after a kill.  A landed report never lands again, and a
report that arrives after a newer one is dropped.

This module and its imports use only the standard library: the uplink process makes the pages.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from edged.pages.header import CHECKSUM_AT, HEADER, MAGIC, checksum

STREAM, VERSION = "edged.telemetry", 4
INTERVALS_SILENT = 3
"""A device is silent after this many intervals without a report."""
TEXT_BYTES_MAX = 512
"""Longer texts are cut, except `jobs`, which is left empty if it does not fit."""
JOBS_MAX = 32

COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("at", "timestamp", False),
    ("interval_s", "float64", False),
    ("session", "int64", False),
    ("started_at", "timestamp", False),
    ("version", "string", False),
    ("state", "string", False),
    ("beats", "int64", False),
    ("rows", "int64", False),
    ("rows_dropped", "int64", False),
    ("pages", "int64", False),
    ("latency_s", "float64", True),
    ("latency_promise_s", "float64", True),
    ("backlog_pages", "int64", False),
    ("backlog_bytes", "int64", False),
    ("backlog_age_s", "float64", False),
    ("store_bytes", "int64", False),
    ("store_limit_bytes", "int64", True),
    ("store_full", "bool", False),
    ("sent_bytes", "int64", False),
    ("acked_pages", "int64", False),
    ("retries", "int64", False),
    ("alarms", "int64", False),
    ("cpu_s", "float64", False),
    ("resident_bytes", "int64", False),
    ("context_switches", "int64", False),
    ("board", "string", True),
    ("policy", "string", True),
    ("watts", "float64", True),
    ("joules", "float64", True),
    ("energy_source", "string", True),
    ("taken_over", "int64", True),
    ("meters_missing", "int64", True),
    ("desired_version", "int64", False),
    ("applied_version", "int64", False),
    ("desired_problem", "string", False),
    ("jobs", "string", False),
    ("rails_silent", "int64", True),
    ("budget_forecast_joules", "float64", True),
    ("held_pages", "int64", False),
    ("upload_windows", "string", False),
    ("gaps", "int64", False),
    ("gap_pages", "int64", False),
    ("gap_rows", "int64", False),
    ("newest_gap", "string", False),
)
"""Name, type and whether it may be null.  Counters count since `started_at`; `latency_s` is the
99th percentile of the last minute, arrival to durable; `energy_source` is measured, modelled or
simulated; `jobs` is JSON, `{name: {"state", "version", "rows"}}`; `rails_silent` is the number of
rails whose meters cannot be read any more; `budget_forecast_joules` is the rest of the policy's
budget at its end, at the present power; `held_pages` are pages of the backlog that wait by design,
for an upload window or within a job's `upload_within`; `upload_windows` is JSON,
`[[from, until], …]` in seconds since midnight UTC; `gaps`, `gap_pages` and `gap_rows` count what
the store has lost for good since it was made, and `newest_gap` is the newest of it in words."""

_COLUMNS_OF = {1: 36, 2: 38, 3: 40, VERSION: len(COLUMNS)}
SCHEMAS = {
    version: json.dumps(
        [{"name": name, "type": kind, "nullable": null} for name, kind, null in COLUMNS[:count]],
        separators=(",", ":"),
    )
    for version, count in _COLUMNS_OF.items()
}
"""The canonical text of each version's schema."""
SCHEMA = SCHEMAS[VERSION]

_SLOT = struct.Struct("<III")
_CAPACITY = 1 << 20
_JOBS_AT = [name for name, _, _ in COLUMNS].index("jobs")
_FIXED = {"timestamp": "q", "int64": "q", "float64": "d", "bool": "B"}


def number(session: int, count: int) -> int:
    """The sequence number of the `count`-th report of a session."""
    return (session & 0xFFFFFF) << 40 | count


def row(snapshot: Mapping[str, Any], interval_s: float, desired: Mapping[str, Any]) -> list[Any]:
    """The values of a report, in the order of COLUMNS, from a daemon's snapshot (docs/control.md).

    `desired` has `version`, `applied` and `problem` (`edged.centre_link.desired_state`).
    """
    energy = snapshot["energy"]
    return [
        *_daemon(snapshot, interval_s), *_energy(energy),
        desired["version"], desired["applied"], desired["problem"], _jobs(snapshot["jobs"]),
        *_warnings(energy), snapshot["store"]["held_pages"],
        json.dumps(snapshot["uplink"]["windows"], separators=(",", ":")),
        *_gaps(snapshot["store"]["gaps"]),
    ]  # fmt: skip


def _daemon(s: Mapping[str, Any], interval_s: float) -> list[Any]:
    store, uplink, process = s["store"], s["uplink"], s["process"]
    latency_ms = s["latency_ms_p99"]
    promised = [
        job["promises"]["latency_us"] for job in s["jobs"].values() if job["state"] != "paused"
    ]
    oldest_us = store["oldest_page_us"]
    age_s = 0.0 if oldest_us is None else max(0.0, (s["wall_us"] - oldest_us) / 1e6)
    return [
        s["wall_us"], interval_s, s["session"], s["started_wall_us"], s["version"], s["state"],
        s["beats"], s["rows"], sum(s["drops"].values()), s["pages"],
        latency_ms / 1e3 if latency_ms else None,
        min(promised) / 1e6 if promised else None,
        store["backlog_pages"], store["backlog_bytes"], age_s, store["bytes"], store["bytes_max"],
        bool(store["full"]), uplink["bytes_sent"], uplink["pages_acked"], uplink["retries"],
        uplink["alarms"], process["cpu_s"], process["rss_bytes"], process["context_switches"],
    ]  # fmt: skip


def _energy(energy: Mapping[str, Any] | None) -> list[Any]:
    if energy is None:
        return [None] * 7
    total, now = energy["input"], energy["watts"]
    return [
        _board(energy["board"]), energy["policy"]["policy"],
        None if now is None else now["input"],
        None if total is None else total["joules"],
        None if total is None else total["provenance"],
        energy["taken_over"], len(energy["missing"]),
    ]  # fmt: skip


def _board(board: Mapping[str, Any]) -> str:
    return f"simulated:{board['name']}" if board["simulated"] else str(board["name"])


def _warnings(energy: Mapping[str, Any] | None) -> list[Any]:
    if energy is None:
        return [None] * 2
    budget = energy["policy"]["budget"]
    return [
        sum(bool(rail["problem"]) for rail in energy["rails"]),
        None if budget is None else budget["forecast_j"],
    ]


def _gaps(gaps: Mapping[str, Any]) -> list[Any]:
    newest = gaps["newest"][-1:]
    words = [f"{gap['stream']} {gap['first']} to {gap['last']}: {gap['reason']}" for gap in newest]
    return [gaps["count"], gaps["pages"], gaps["rows"], "".join(words)]


def _jobs(jobs: Mapping[str, Any]) -> str:
    found = {
        name: {
            "state": job["state"],
            "version": job["version"],
            "rows": sum(stream["rows"] for stream in job["streams"].values()),
        }
        for name, job in list(jobs.items())[:JOBS_MAX]
    }
    return json.dumps(found, separators=(",", ":"))


def page(
    device: str, epoch: int, seq: int, values: Sequence[Any], bytes_max: int = _CAPACITY
) -> bytes:
    """The page of a report, at most `bytes_max` bytes.  If it is too large, `jobs` is emptied; if
    it is still too large, the result is empty."""
    made = _page(device, epoch, seq, values)
    if len(made) > bytes_max:
        made = _page(device, epoch, seq, [*values[:_JOBS_AT], "{}", *values[_JOBS_AT + 1 :]])
    return made if len(made) <= bytes_max else b""


def _page(device: str, epoch: int, seq: int, values: Sequence[Any]) -> bytes:
    tuple_ = _tuple(values)
    body = _SLOT.pack(0, len(tuple_), len(tuple_)) + tuple_
    size, at_us = HEADER.size + len(body), int(values[0])
    header = HEADER.pack(
        MAGIC, 1, 2, 1, 0, max(_CAPACITY, size), size, size, 1, _SLOT.size, 0, epoch, seq, 0, 0,
        VERSION, at_us, at_us, at_us, 0, 0, device.encode(), STREAM.encode(),
    )  # fmt: skip
    whole = bytearray(header + body)
    struct.pack_into("<I", whole, CHECKSUM_AT, checksum(whole))
    return bytes(whole)


def _tuple(values: Sequence[Any]) -> bytes:
    """A slotted tuple: presence bitmap, fixed columns, ends of variable ones, their bytes."""
    bitmap = bytearray(-(-len(COLUMNS) // 8))
    fixed, ends, texts = bytearray(), bytearray(), bytearray()
    for i, ((name, kind, _), value) in enumerate(zip(COLUMNS, values, strict=True)):
        if value is not None:
            bitmap[i // 8] |= 1 << i % 8
        if kind == "string":
            texts += _text(name, value)
            ends += struct.pack("<I", len(texts))
        else:
            code = _FIXED[kind]
            fixed += struct.pack("<" + code, (float if code == "d" else int)(value or 0))
    return bytes(bitmap + fixed + ends + texts)


def _text(name: str, value: object) -> bytes:
    if value is None:
        return b""
    data = str(value).encode(errors="replace")
    if name == "jobs" or len(data) <= TEXT_BYTES_MAX:
        return data
    return data[:TEXT_BYTES_MAX].decode(errors="ignore").encode()
