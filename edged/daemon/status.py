"""The status document of the daemon: one immutable JSON document (docs/control.md).

It is made on the heart's thread between beats and must be quick: sums and copies of counters, two
system calls, nothing that waits.  It takes 0.16 ms with its JSON text, for one job and no board
(2-core VM; `tests/test_control.py` bounds it).
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edged import __version__
from edged.beat.jobs import state_of
from edged.beat.runtime import JobRuntime
from edged.beat.shelf import SHELVED, ShelvedJob
from edged.beat.stream_runtime import StreamRuntime
from edged.daemon.job_counts import stream_counters
from edged.daemon.parts import Parts
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US
from edged.energy import status
from edged.platform.disk import filesystem_bytes
from edged.sinks.base import Sink
from edged.sources.base import Source
from edged.uplink.link_states import together
from kernels import ahead
from kernels.ahead.identity import numba_version

SCHEMA = 2
SALVAGED_SHOWN = 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BUILD = {
    "version": __version__,
    "python": platform.python_version(),
    "numba": numba_version(),
    "platform": f"{platform.system()}-{platform.machine()}",
    "kernels": ahead.form(),
}


def status_document(parts: Parts) -> dict[str, Any]:
    """The answer to the control door's command `status`."""
    heart, store, clock, stats = parts.heart, parts.store, parts.clock, parts.stats
    recovered, now_us = parts.recovered, clock.monotonic_us()
    return {
        "schema": SCHEMA,
        "version": __version__,
        "build": _BUILD,
        "pid": os.getpid(),
        "device": parts.settings.device,
        "epoch": f"{store.device_epoch:016x}",
        "session": store.session[0],
        "restarts": store.session[0] - 1,
        "state": heart.state,
        "wall_us": clock.wall_us(),
        "started_wall_us": parts.started_wall_us,
        "uptime_s": round((now_us - parts.started_us) / 1e6, 3),
        "process": _process(parts.event_loop.wakes),
        "recovered": {
            "beat": recovered.beat,
            "replayed_beats": recovered.replayed_beats,
            "replayed_rows": recovered.replayed_rows,
            "notes": recovered.notes,
        },
        "beat": heart.beat,
        "wakes": parts.event_loop.wakes,
        "workers": parts.workers.count,
        **stats.snapshot(),
        "jobs": {
            job.plan.name: {**_job(job, parts), "latency": stats.latency(job.plan.name)}
            for job in heart.jobs
        }
        | {
            name: {**_shelved(job, parts), "latency": stats.latency(name)}
            for name, job in parts.registry.shelved.items()
        },
        "sources": _sources(parts, now_us),
        "store": _store(parts),
        "drops": {**parts.job_host.counts.drops(), "set_aside": heart.quarantine.rows},
        "events": parts.events.counts(),
        "set_aside_rows": heart.quarantine.rows,
        "uplink": parts.uplink.status(),
        "energy": None if parts.energy is None else status.status(parts.energy, now_us),
    }


def _sources(parts: Parts, now_us: int) -> list[dict[str, Any]]:
    """The running sources: the streams that they feed, and their counters."""
    found, heart = [], parts.heart
    for source in heart.sources:
        counters = parts.inputs.counters(source)
        refused = {k: v for k, v in counters.items() if k.startswith("refused_")}
        found.append(
            {
                "name": source.name,
                "kind": source.kind,
                "address": source.address,
                "takes_http": source.takes_http,
                "streams": [{"job": job, "stream": stream} for job, stream in source.feeds],
                "connected": counters.get("connections", 1),
                "bytes": counters.get("bytes", 0),
                "refused": sum(refused.values()),
                "backpressure_us": heart.stalls.total_us(source.name, now_us),
                "problem": source.problem(),
                **counters,
            }
        )
    return found


def _process(wakes: int) -> dict[str, Any]:
    """CPU time, memory, threads and context switches of the process, including ended threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return {
        "cpu_s": round(used.ru_utime + used.ru_stime, 6),
        "rss_bytes": int(fields[21]) * _PAGE_BYTES,
        "threads": int(fields[17]),
        "context_switches": used.ru_nvcsw + used.ru_nivcsw,
        "wakeups": wakes,
    }


def _store(parts: Parts) -> dict[str, Any]:
    store, gate, uplink = parts.store, parts.committer.gate, parts.uplink.status()
    used, most = store.bytes_used, store.bytes_max
    free, whole = filesystem_bytes(str(parts.settings.directory))
    room = free if most is None else max(0, min(most - used, free))
    return {
        "bytes": used,
        "bytes_max": most,
        "disk_bytes": whole,
        "disk_free_bytes": free,
        "room_bytes": room,
        "fill": round(1 - room / max(1, whole if most is None else most), 6),
        "backlog_bytes": store.backlog_bytes,
        "backlog_pages": store.backlog_pages,
        "held_pages": _held_pages(uplink, store.backlog_pages),
        "oldest_page_us": store.oldest_page_us,
        "log_bytes_since_snapshot": store.log_bytes_since_snapshot,
        "full": gate.full,
        "full_us": gate.full_us(),
        "fsyncs": store.syncs,
        "gaps": store.gaps.status(),
        "salvaged": [found.to_json() for found in store.salvaged[-SALVAGED_SHOWN:]],
        "salvaged_count": len(store.salvaged),
    }


def _waiting(job: JobRuntime, operator: str) -> dict[str, int]:
    """Rows that wait for an operator to run, where any may."""
    rows = job.schedules.rows(operator)
    return {} if rows is None else {"rows_before": rows}


def _held_pages(uplink: dict[str, Any] | None, backlog: int) -> int:
    """Pages of the backlog that wait by design: for an upload window, or for others."""
    if uplink is None:
        return 0
    return int(uplink["held"]["pages"]) if uplink["open"] else backlog


def _job(job: JobRuntime, parts: Parts) -> dict[str, Any]:
    """A job's part.  `ended`: all streams are at their end and all results are durable;
    `pages_waiting`: pages of a draining job that the centre has not acknowledged."""
    pages_waiting = parts.job_host.pages_pending(job.shipped()) if job.draining else None
    shown = partial(parts.job_host.counts.shown, job.plan.name)
    return {
        "state": state_of(job),
        "version": job.meta.version,
        "created_us": job.meta.created_us,
        "problem": job.problem,
        "promises": job.footprint.promises,
        "throttled": job.throttled,
        "streams": {
            name: {
                **_stream(s, shown("streams", name, stream_counters(s)), parts),
                **_population(job, name, parts.heart.sources),
            }
            for name, s in job.streams.items()
        },
        "operators": {
            name: {
                "type": job.plan.operators[name].kind,
                "state_bytes": o.state_bytes(),
                **_waiting(job, name),
                **shown("operators", name, o.counters()),
                **_placement(job, name),
            }
            for name, o in job.operators.items()
        },
        "sinks": {
            name: {
                "open_rows": sink.open_rows(),
                "open_bytes_max": job.open_page_shares.get(name, 0),
                **shown("sinks", name, sink.counters()),
                **_links(sink, parts),
            }
            for name, sink in job.sinks.items()
        },
        "ended": job.ended() and not job.open_rows() and parts.heart.settled,
        "pages_waiting": pages_waiting,
    }


def _shelved(job: ShelvedJob, parts: Parts) -> dict[str, Any]:
    """A job that is kept aside: its keys are those of `_job`, its parts are empty."""
    return {
        "state": SHELVED,
        "version": job.meta.version,
        "created_us": job.meta.created_us,
        "problem": job.problem,
        "promises": job.footprint.promises,
        "throttled": False,
        "streams": {},
        "operators": {},
        "sinks": {},
        "ended": False,
        "pages_waiting": parts.job_host.pages_pending(job.shipped()),
    }


def _stream(s: StreamRuntime, counted: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """A stream's part.  `silent_us` is null where no rows are expected: before the first, after the
    last, and while the stream is not read."""
    watermark_us = s.time.watermark_us
    known = WATERMARK_MIN_US < watermark_us < WATERMARK_MAX_US
    ended = watermark_us == WATERMARK_MAX_US
    held = s.staging.held or parts.committer.gate.full
    read = not (ended or held or s.plan.table is not None)
    return {
        "rows": counted["rows"],
        "staged": s.staging.rows,
        "late": counted["late"],
        "refused_ahead": counted["refused_ahead"],
        "producers": len(s.staging.producers.ids) - 1,
        "producers_behind": int(s.staging.producers.behind.sum()),
        "watermark_us": watermark_us if known else None,
        "silent_us": s.silence.silent_us(parts.heart.looked_us) if read else None,
        "silent_after_us": s.silence.limit_us() if read else None,
        "ended": ended,
    }


def _population(job: JobRuntime, name: str, sources: Sequence[Source]) -> dict[str, Any]:
    """Of a table, whether its first rows are there, how many its source has and which part of them
    is read, where the source knows; of a stream that waits for tables, which."""
    s, tables = job.streams[name], job.table_waits.waits_for(name, job.streams)
    found: dict[str, Any] = {} if s.plan.table is None else {"populated": s.populated}
    if found:
        feeding = (x for x in sources if (job.plan.name, name) in x.feeds)
        if (source := next(feeding, None)) is not None:
            found["rows_expected"] = source.rows_total(name)
            found["read_share"] = source.read_share(name)
    return {**found, "waits_for": ", ".join(tables)} if tables else found


def _links(sink: Sink, parts: Parts) -> dict[str, Any]:
    """Of a link, state and figures of each of its instances, over all producers of a hop; of
    `forward`, of each device."""
    found = [parts.uplink.links(name) for name in sink.links_shown()]
    return {"links": found[0] if len(found) == 1 else together(found)} if found else {}


def _placement(job: JobRuntime, name: str) -> dict[str, Any]:
    placer = job.placers.get(name)
    if placer is None:
        return {}
    failed = {"kernels_failed": dict(placer.problems)} if placer.problems else {}
    return {"kernel_pinned": placer.pinned, **failed}
