"""State and rendering of `edged top`: figures of two snapshots."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from edged.cli._api import Snapshot
from edged.cli.events import text_of
from edged.console.link_lines import address_of, link_line
from edged.rest import LiveMessage

RATE_US = 5_000_000
"""Period over which rates are computed."""
STALE_S = 5.0
FEW_BEATS, FEW_US = 3, 3_000_000
"""Beats that make a picture of its own, or the time without so many."""
EVENTS = 8
RATE_COLUMN, GAP = 2, 4
LEVELS = {"warning": "yellow", "error": "red"}


class LiveView:
    """The messages received so far; `figures` and `render` show them."""

    def __init__(self) -> None:
        self._recent: deque[Snapshot] = deque()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._problem = ""
        self._at_s = time.monotonic()

    def on_message(self, message: LiveMessage | str) -> None:
        """Process a message of the live events, or the reason why the connection is lost."""
        if isinstance(message, str):
            self._problem = message
        elif message.kind == "snapshot":
            self._take(message.data)
        elif message.kind == "event":
            self._events.append(message.data)
        elif message.kind == "daemon":
            self._problem = "" if message.data["up"] else "the daemon does not answer"

    def has_rates(self) -> bool:
        """Whether rates are known: two snapshots of different times have arrived."""
        recent = self._recent
        return len(recent) > 1 and recent[-1]["wall_us"] > recent[0]["wall_us"]

    def knows_beats(self) -> bool:
        """Whether the snapshots span FEW_BEATS beats, or FEW_US."""
        if not self.has_rates():
            return False
        first, last = self._recent[0], self._recent[-1]
        beats, us = (int(last[key] - first[key]) for key in ("beats", "wall_us"))
        return beats >= FEW_BEATS or us >= FEW_US

    def figures(self) -> dict[str, Any]:
        """Everything that is shown, as JSON; rates are a second, null where unknown.  Rates,
        `beats` and `latency_ms_mean` are over the last `span_s` seconds, the percentiles over
        the last minute."""
        now = self._recent[-1]
        energy, store = now["energy"] or {}, now["store"]
        return {
            "device": now["device"], "state": now["state"], "wall_us": now["wall_us"],
            "uptime_s": now["uptime_s"], "problem": self._problem,
            "promise_missed": now["promise_missed"], "saturated": now["saturated"],
            "span_s": (now["wall_us"] - self._recent[0]["wall_us"]) / 1e6,
            "beats": now["beats"] - self._recent[0]["beats"],
            "latency_ms_mean": self._latency_ms(),
            "rows_in_per_s": self.rate(lambda s: s["rows"]),
            "rows_out_per_s": self.rate(_rows_out),
            "pages_per_s": self.rate(lambda s: s["pages"]),
            "bytes_in_per_s": self.rate(lambda s: sum(x["bytes"] for x in s["sources"])),
            "latency_ms_p50": now["latency_ms_p50"], "latency_ms_p99": now["latency_ms_p99"],
            "backlog_pages": store["backlog_pages"], "backlog_bytes": store["backlog_bytes"],
            "uplink": None if now["uplink"] is None else now["uplink"]["state"],
            "cpu_share": self.rate(lambda s: s["process"]["cpu_s"]),
            "board": energy.get("board"),
            "watts": energy.get("watts"),
            **{key: energy.get(key, []) for key in ("temperatures", "throttling", "gpu_load")},
            "joules_per_mtuple": energy.get("joules_per_mtuple"),
            "policy": (energy.get("policy") or {}).get("policy"),
            "jobs": {name: self._job(name) for name in now["jobs"]},
        }  # fmt: skip

    def render(self, width: int, height: int | None = None) -> RenderableType:
        """The current picture, `width` columns wide; with `height`, only as many events as fit, a
        line each."""
        if not self._recent:
            return Text(self._problem or "connecting")
        figures = self.figures()
        numbers = _numbers(figures, width)
        lines = EVENTS
        if height is not None:
            parts = sum(2 + len(job["parts"]) for job in figures["jobs"].values())
            lines = max(0, height - 5 - numbers.row_count - parts)
        events = [_event(event) for event in list(self._events)[-lines:] if lines]
        for event in events:
            event.no_wrap, event.overflow = height is not None, "ellipsis"
        return Group(
            self._head(figures), Text(), numbers, Text(),
            *(_table(name, job) for name, job in figures["jobs"].items()), Text(), *events,
        )  # fmt: skip

    def _take(self, snapshot: Snapshot) -> None:
        recent = self._recent
        if recent and recent[-1]["session"] != snapshot["session"]:
            recent.clear()
        recent.append(snapshot)
        while len(recent) > 2 and snapshot["wall_us"] - recent[1]["wall_us"] > RATE_US:
            recent.popleft()
        self._problem, self._at_s = "", time.monotonic()

    def rate(self, read: Callable[[Snapshot], float]) -> float | None:
        """Growth a second of what `read` finds in a snapshot; None where it is unknown."""
        first, last = self._recent[0], self._recent[-1]
        span_us = last["wall_us"] - first["wall_us"]
        try:
            grown = read(last) - read(first)
        except KeyError:  # a job of the second snapshot only
            return None
        return 1e6 * grown / span_us if span_us > 0 and grown >= 0 else None

    def _latency_ms(self) -> float | None:
        """Mean from the arrival of a beat's oldest row to durable, of the beats in the period."""
        first, last = (s["legs"]["arrival_to_durable"] for s in (self._recent[0], self._recent[-1]))
        count = last["count"] - first["count"]
        return (last["sum_us"] - first["sum_us"]) / count / 1e3 if count > 0 else None

    def _job(self, name: str) -> dict[str, Any]:
        job = self._recent[-1]["jobs"][name]
        parts = []
        for kind, counter in (("streams", "rows"), ("operators", "matches"), ("sinks", "rows")):
            for id, counters in job[kind].items():
                rate = self.rate(_counter(name, kind, id, counter))
                parts.append({"part": kind[:-1], "id": id, "rows_per_s": rate, **counters})
                parts += [
                    {"part": "link", "id": address_of(link), "does": link_line(link)}
                    for link in counters.get("links", ())
                ]
        return {"state": job["state"], "version": job["version"], "parts": parts}

    def _head(self, figures: dict[str, Any]) -> Text:
        age_s = time.monotonic() - self._at_s
        text = Text.assemble((figures["device"], "bold"), f"  {figures['state']}, ")
        text.append(f"up {figures['uptime_s']:.0f} s")
        if figures["promise_missed"]:
            text.append("  LATE: a latency promise is missed", style="bold yellow")
        if figures["saturated"]:
            text.append("  SATURATED: input waits", style="bold yellow")
        if self._problem or age_s > STALE_S:
            why = self._problem or "no message"
            text.append(f"  STALE for {age_s:.0f} s: {why}", style="bold red")
        return text


def _counter(job: str, kind: str, id: str, key: str) -> Callable[[Snapshot], float]:
    return lambda snapshot: float(snapshot["jobs"][job][kind][id][key])


def _rows_out(snapshot: Snapshot) -> float:
    sinks = (sink for job in snapshot["jobs"].values() for sink in job["sinks"].values())
    return float(sum(sink.get("rows", 0) for sink in sinks))


def _numbers(figures: dict[str, Any], width: int) -> Table:
    """The figures below their names, in two rows of both, or more on a narrow terminal."""
    watts, pair, board = figures["watts"], figures["joules_per_mtuple"], figures["board"]
    here = " (this host)" if board and board["simulated"] else ""
    latency = f"{_ms(figures['latency_ms_p50'])} / {_ms(figures['latency_ms_p99'])}"
    columns = {
        "tuples in": f"{amount(figures['rows_in_per_s'])}/s",
        "rows out": f"{amount(figures['rows_out_per_s'])}/s",
        f"latency{here} p50 / p99": latency,
        "latency now": _ms(figures["latency_ms_mean"]),
        "backlog": f"{figures['backlog_pages']} pages, {amount(figures['backlog_bytes'])}B",
        "uplink": figures["uplink"] or "none",
    }
    if board is not None:
        columns["board"] = f"{board['name']}{' (simulated)' if board['simulated'] else ''}"
    if watts is not None:
        columns[f"power ({watts['provenance']})"] = f"{watts['input']:.2f} W"
    elif board is not None:
        columns["power"] = "not known"
    columns |= _health(figures)
    if pair is not None:
        above = "?" if pair["above_idle"] is None else f"{pair['above_idle']:.3g}"
        heading = f"J/M tuples above idle, in all ({pair['provenance']})"
        columns[heading] = f"{above}, {pair['input']:.3g}"
    if figures["policy"]:
        columns["policy"] = figures["policy"]
    rows = _rows(columns, width)
    grid = Table.grid(padding=(0, GAP))
    for row in rows:
        grid.add_row(*(Text(name, style="dim") for name in row))
        grid.add_row(*(Text(columns[name], style="bold") for name in row))
    return grid


def _health(figures: dict[str, Any]) -> dict[str, str]:
    """The highest temperature, throttling that acts now, and the load of GPUs, where known."""
    zones = [zone for zone in figures["temperatures"] if zone["celsius"] is not None]
    columns = {}
    if zones:
        top = max(zones, key=lambda zone: float(zone["celsius"]))
        columns[f"hottest: {top['zone']}"] = f"{top['celsius']:.0f} °C"
    if causes := [found["cause"] for found in figures["throttling"] if found["now"]]:
        columns["throttled"] = ", ".join(causes)
    for gpu in figures["gpu_load"]:
        if gpu["share"] is not None:
            columns[f"load: {gpu['gpu']}"] = f"{gpu['share']:.0%}"
    return columns


def _rows(columns: dict[str, str], width: int) -> list[list[str]]:
    """The names in rows: two, or the fewest whose columns fit into `width`."""
    names = list(columns)
    for count in range(-(-len(names) // 2), 0, -1):
        rows = [names[at : at + count] for at in range(0, len(names), count)]
        widest = [
            max(max(len(name), len(columns[name])) for name in names[at::count])
            for at in range(count)
        ]
        if sum(widest) + GAP * (count - 1) <= width:
            break
    return rows


def _table(name: str, job: dict[str, Any]) -> Table:
    state = "" if job["state"] == "running" else f" [yellow]{job['state']}[/]"
    title = f"[bold]{escape(name)}[/] [dim]version {job['version']}[/]{state}"
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
    for at in range(4):
        table.add_column(justify="right" if at == RATE_COLUMN else "left")
    for part in job["parts"]:
        rate = "" if part.get("rows_per_s") is None else f"{amount(part['rows_per_s'])}/s"
        details = [f"{key} {part[key]}" for key in ("kernel", "late", "pages") if part.get(key)]
        details += [part["does"]] if "does" in part else []
        details += _population(part)
        table.add_row(Text(part["part"], style="dim"), Text(part["id"]), rate,
                      Text(", ".join(details), style="dim"))  # fmt: skip
    return table


def _population(part: dict[str, Any]) -> list[str]:
    """How far a table is that is being populated."""
    if part.get("populated", True):
        return []
    rows, expected, share = part["rows"], part.get("rows_expected"), part.get("read_share")
    text = f"populating: {amount(rows)}" + (f" of {amount(expected)}" if expected else "") + " rows"
    return [text if share is None else f"{text}, {share:.0%} read"]


def _event(event: dict[str, Any]) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(event["at_us"] / 1e6))
    style = LEVELS.get(event["level"], "")
    return Text.assemble((f"{at}  ", "dim"), (event["kind"], style), f"  {text_of(event)}")


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f} ms"


def amount(value: float | None) -> str:
    """Three digits and a prefix: 19284 becomes `19.3 k`."""
    if value is None:
        return "?"
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "
