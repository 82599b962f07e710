"""`edged status`: the state of a running daemon."""

from __future__ import annotations

import json
from typing import Any

import click

from edged.cli._api import as_json, on_api, snapshot
from edged.console.link_lines import address_of, link_line
from edged.rest import Client


@click.command(name="status")
@on_api
@as_json
def command(client: Client, as_json: bool) -> None:
    """Show rates, backlog and latency of a running daemon; as JSON its whole snapshot."""
    status = snapshot(client)
    if as_json:
        click.echo(json.dumps(status))
    else:
        _show(status)


def uplink(state: dict[str, Any] | None) -> list[str]:
    """State of the uplink: a line, and one for each partition that is stopped."""
    if state is None:
        return ["uplink: none, pages stay here"]
    why = f": {state['problem']}" if state["problem"] else ""
    lines = [f"uplink: {state['state']}{why}, {state['pages_acked']:,} pages acknowledged"]
    for one in state["stuck"]:
        what = f"{one['problem']}: {one['detail']}" if one["detail"] else one["problem"]
        lines.append(f"  {one['stream']}, partition {one['partition']}, waits: {what}")
    return lines


def _latency(status: dict[str, Any]) -> str:
    """Of this host, which is not the simulated board."""
    p50, p99, energy = status["latency_ms_p50"], status["latency_ms_p99"], status["energy"]
    here = " (this host)" if energy is not None and energy["board"]["simulated"] else ""
    return f"latency{here} " + ("no rows lately" if p50 is None else f"p50 {p50} ms p99 {p99} ms")


def _store(store: dict[str, Any]) -> str:
    """Size of the store, its limit, and what its file system has free."""
    from edged.cli._top import amount

    most = store["bytes_max"]
    limit = "no limit" if most is None else f"limit {amount(most)}B"
    return (
        f"store {amount(store['bytes'])}B, {limit}, room for {amount(store['room_bytes'])}B; its"
        f" file system has {amount(store['disk_free_bytes'])}B free of"
        f" {amount(store['disk_bytes'])}B"
    )


def _show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    store = status["store"]
    console.print(
        f"[bold]{escape(status['device'])}[/] session {status['session']}, "
        f"up {status['uptime_s']:.0f} s, "
        f"beat {status['beat']}, {status['rows']:,} tuples, {status['pages']:,} pages, "
        f"{_latency(status)}, "
        f"backlog {store['backlog_pages']} pages ({store['backlog_bytes']:,} bytes)"
    )
    console.print(_store(store), highlight=False)
    if status["promise_missed"]:
        console.print("late: a latency promise is missed")
    if status["saturated"]:
        console.print("saturated: input arrives faster than it is processed, so senders wait")
    if store["full"]:
        console.print("the store is full: the sources wait until the centre has taken pages")
    for found in store.get("salvaged", ()):
        line = f"damage: {found['file']}, offset {found['offset']}: {found['problem']}; lost: "
        line += found["lost"] or "nothing"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for gap in store.get("gaps", {}).get("newest", ()):
        unit = "batches" if gap["partition"] is None else f"partition {gap['partition']}, pages"
        line = f"lost: {gap['stream']}: {unit} {gap['first']} to {gap['last']} {gap['reason']}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in uplink(status["uplink"]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if status["energy"] is not None:
        from edged.energy.render import lines

        for line in lines(status["energy"]):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for job, parts in status["jobs"].items():
        if parts["problem"]:
            line = f"job {job} is {parts['state']}: {parts['problem']}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            continue
        table = Table(title=job, title_justify="left")
        for heading in ("part", "id", "figures"):
            table.add_column(heading)
        for part in ("streams", "operators", "sinks"):
            for id, figures in parts[part].items():
                shown = {k: v for k, v in figures.items() if k != "links"}
                text = ", ".join(f"{k} {v}" for k, v in shown.items() if v not in (None, False))
                table.add_row(part[:-1], id, escape(text))
                for link in figures.get("links", ()):
                    table.add_row("link", address_of(link), escape(link_line(link)))
        console.print(table)
