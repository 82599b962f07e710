"""Telemetry: what a device tells the centre of itself, as rows of a built-in stream of pages.

    daemon: row(snapshot) ──► Uplink.report ──► uplink's process: page(…) ──► collector, landing

The stream is `edged.telemetry`; the dot keeps it apart from every job's streams.  Its pages
are of the ordinary format (`edged/pages/format.py`), one row each, its schema is registered like
any, so Spark reads it like any: `SELECT at, watts, backlog_bytes FROM telemetry`.

A report is not durable on the device, and the newest wins: one that waits is replaced by the next,
so a backlog of reports is never built up.  The stream's sequence therefore has gaps, which the
collector allows here and nowhere else (`edged/central/admission.py`), and its numbers are

    seq = session << 40 | n        n = 1, 2, … in the daemon's process

The store's session counter rises with every start and is durable before the daemon does anything,
so a number is never given to two reports, whoever is killed when, though nothing is kept for it:
what has landed lands never again, and what comes late, behind a newer one, does not land at all.

This module and what it imports are the standard library's: the uplink's process makes the pages.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

STREAM, VERSION = "edged.telemetry", 2
INTERVALS_SILENT = 3
"""A device that has not been heard of for so many of its intervals is silent."""
TEXT_BYTES_MAX = 512
"""Longer texts are cut, but for `jobs`, which is left empty where it does not fit."""
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
)
"""Name, type and whether it may be null.  Counters count since `started_at`; `latency_s` is the
99th percentile of the last 1024 beats, arrival to durable; `energy_source` is measured, modelled or
simulated; `jobs` is JSON, `{name: {"state", "version", "rows"}}`; `rails_silent` are those whose
meters cannot be read any more; `budget_forecast_joules` is what the policy's budget has left at its
end at the present power."""

_COLUMNS_OF = {1: 36, VERSION: len(COLUMNS)}
SCHEMAS = {
    version: json.dumps(
        [{"name": name, "type": kind, "nullable": null} for name, kind, null in COLUMNS[:count]],
        separators=(",", ":"),
    )
    for version, count in _COLUMNS_OF.items()
}
"""The canonical text of each version's schema."""
SCHEMA = SCHEMAS[VERSION]

_HEADER = struct.Struct("<4sBBBBIIIIIIQQQIIqqqII64s64s")
_SLOT = struct.Struct("<III")
_CHECKSUM_AT = 28
_CAPACITY = 1 << 20
_JOBS_AT = [name for name, _, _ in COLUMNS].index("jobs")
_FIXED = {"timestamp": "q", "int64": "q", "float64": "d", "bool": "B"}


def number(session: int, count: int) -> int:
    """The sequence number of the `count`-th report of a session."""
    return (session & 0xFFFFFF) << 40 | count


def row(snapshot: Mapping[str, Any], interval_s: float, desired: Mapping[str, Any]) -> list[Any]:
    """A report's values, in the order of COLUMNS, of a daemon's snapshot (docs/control.md).

    `desired` has `version`, `applied` and `problem` (`edged.centre_link.desired_state`).
    """
    energy = snapshot["energy"]
    return [
        *_daemon(snapshot, interval_s), *_energy(energy),
        desired["version"], desired["applied"], desired["problem"], _jobs(snapshot["jobs"]),
        *_warnings(energy),
    ]  # fmt: skip


def _daemon(s: Mapping[str, Any], interval_s: float) -> list[Any]:
    store, uplink, process = s["store"], s["uplink"], s["process"]
    latency_ms = s["latency_ms_p99"]
    promised = [job["promises"]["latency_us"] for job in s["jobs"].values()]
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


def _energy(told: Mapping[str, Any] | None) -> list[Any]:
    if told is None:
        return [None] * 7
    total, now = told["input"], told["watts"]
    return [
        told["board"]["name"], told["policy"]["policy"],
        None if now is None else now["input"],
        None if total is None else total["joules"],
        None if total is None else total["provenance"],
        told["taken_over"], len(told["missing"]),
    ]  # fmt: skip


def _warnings(told: Mapping[str, Any] | None) -> list[Any]:
    if told is None:
        return [None] * 2
    budget = told["policy"]["budget"]
    return [
        sum(bool(rail["problem"]) for rail in told["rails"]),
        None if budget is None else budget["forecast_j"],
    ]


def _jobs(jobs: Mapping[str, Any]) -> str:
    told = {
        name: {
            "state": job["state"],
            "version": job["version"],
            "rows": sum(stream["rows"] for stream in job["streams"].values()),
        }
        for name, job in list(jobs.items())[:JOBS_MAX]
    }
    return json.dumps(told, separators=(",", ":"))


def page(
    device: str, epoch: int, seq: int, values: Sequence[Any], bytes_max: int = _CAPACITY
) -> bytes:
    """The page of a report, at most `bytes_max` bytes; without `jobs` where that does not fit, and
    nothing at all where that does not help."""
    made = _page(device, epoch, seq, values)
    if len(made) > bytes_max:
        made = _page(device, epoch, seq, [*values[:_JOBS_AT], "{}", *values[_JOBS_AT + 1 :]])
    return made if len(made) <= bytes_max else b""


def _page(device: str, epoch: int, seq: int, values: Sequence[Any]) -> bytes:
    tuple_ = _tuple(values)
    body = _SLOT.pack(0, len(tuple_), len(tuple_)) + tuple_
    size, at_us = _HEADER.size + len(body), int(values[0])
    header = _HEADER.pack(
        b"EDGP", 1, 2, 1, 0, max(_CAPACITY, size), size, size, 1, _SLOT.size, 0, epoch, seq, 0, 0,
        VERSION, at_us, at_us, at_us, 0, 0, device.encode(), STREAM.encode(),
    )  # fmt: skip
    whole = bytearray(header + body)
    struct.pack_into("<I", whole, _CHECKSUM_AT, zlib.crc32(whole))
    return bytes(whole)


def _tuple(values: Sequence[Any]) -> bytes:
    """A slotted tuple: presence bitmap, fixed columns, ends of the variable ones, their bytes."""
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
