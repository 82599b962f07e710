"""The tables, figures and files of `edged bench relay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edged.console.figures import COLOURS, new_figure, save


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write the figures so far; a run that is ended early leaves its rows."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def show(console: Any, result: dict[str, Any]) -> None:
    """Print the table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title="Packets through three daemons", title_justify="left", box=SIMPLE_HEAD,
                  padding=(0, 0))  # fmt: skip
    jobs = "last_of_peak" in result
    headings = ["jobs"] if jobs else ["mode", "bytes", "buffer\nKiB"]
    headings += ["M/s", "MB/s\nwire", "CPU-s\na M"]
    if not jobs:
        headings += ["p50\nms", "p99\nms", "switches\nin 5 s", "faults\na s"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "mode" else "right", no_wrap=True)
    table.add_column("in\norder", justify="right", no_wrap=True)
    for r in result["rows"]:
        cells = _job_cells(r) if jobs else _cells(r)
        table.add_row(*cells, "once" if r["in_order_once"] else "[red]NO[/]")
    console.print(table)
    for line in _lines(result):
        console.print(f"  {line}")


def _rates(r: dict[str, Any]) -> list[str]:
    return [f"{r['packets_per_s'] / 1e6:.3f}", f"{r['wire_bytes_per_s'] / 1e6:.1f}",
            f"{r['cpu_s_per_mpacket']:.3f}"]  # fmt: skip


def _job_cells(r: dict[str, Any]) -> list[str]:
    return [str(r["jobs"]), *_rates(r)]


def _cells(r: dict[str, Any]) -> list[str]:
    mode = r["mode"] + ("" if r["sender"] == "bulk" else ", single")
    return [
        mode, f"{r['packet_bytes']:,}", f"{r['buffer_bytes'] / 1024:g}", *_rates(r),
        f"{r['ms_p50']:.1f}", f"{r['ms_p99']:.1f}",
        f"{r['voluntary_per_5s']:,}+{r['involuntary_per_5s']:,}", f"{r['page_faults_per_s']:,}",
    ]  # fmt: skip


def _lines(result: dict[str, Any]) -> list[str]:
    """What stands below the table."""
    if "last_of_peak" in result:
        return [f"the peak is at {result['saturated_at_jobs']} jobs; with the most jobs "
                f"{result['last_of_peak']:.0%} of it are left"]  # fmt: skip
    found = [
        f"raw sockets: {result['raw']['packets_per_s'] / 1e6:.2f} M packets of 50 B a second",
        f"disk: {result['disk']['bytes_per_s'] / 1e6:.0f} MB/s durably",
    ]
    found += [
        f"{r['load']} load, {r['packets_per_s']:,} packets/s: p50 {r['ms_p50']} ms, "
        f"p99 {r['ms_p99']} ms"
        for r in result["latency"]
    ]
    if one := result.get("fresh"):
        found.append(f"memory of columns allocated for each beat: {one['packets_per_s']:,} "
                     f"packets/s, {one['cpu_s_per_mpacket']} CPU-s / M")  # fmt: skip
    found += [
        f"a link of 1 Gbit/s, {r['shaper']}, packets of {r['packet_bytes']} B: "
        f"{r['share_of_link']:.1%} of it"
        for r in result.get("shaped", ())
    ]
    if s := result.get("switches"):
        for arm in ("batched", "single"):
            found.append(
                f"a race for {'each packet' if arm == 'single' else 'all packets'}: "
                f"{s[f'{arm}_voluntary']:,} voluntary and {s[f'{arm}_involuntary']:,} involuntary "
                f"switches in 5 s at {s[f'{arm}_packets_per_s']:,} packets/s"
            )
    found += [
        f"{r['name']}: {r['packets_per_s'] / 1e6:.2f} M packets of 50 B a second, "
        f"{r['rss_mib']} MiB"
        for r in result["peers"]
    ]
    return found + [f"not measured: {text}" for text in result["not_measured"]]


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure as PNG."""
    figure, (left, right) = new_figure(1, 2, 3.8)
    if "last_of_peak" in result:
        _draw_jobs(left, right, result)
    else:
        _draw_grid(left, right, result)
    save(figure, path)


def _draw_jobs(left: Any, right: Any, result: dict[str, Any]) -> None:
    counts = [r["jobs"] for r in result["rows"]]
    for axes, key, label in ((left, "packets_per_s", "M packets/s"),
                             (right, "wire_bytes_per_s", "MB/s on the wire")):  # fmt: skip
        axes.plot(counts, [r[key] / 1e6 for r in result["rows"]], marker="o", color=COLOURS[0])
        axes.set(xlabel="jobs", ylabel=label, xscale="log", xticks=counts, ylim=(0, None))
        axes.set_xticklabels([str(n) for n in counts])


def _draw_grid(left: Any, right: Any, result: dict[str, Any]) -> None:
    rows = [r for r in result["rows"] if r["sender"] == "bulk"]
    kinds = sorted({(r["mode"], r["packet_bytes"]) for r in rows})
    for i, (mode, size) in enumerate(kinds):
        own = sorted(((r["buffer_bytes"], r) for r in rows
                     if (r["mode"], r["packet_bytes"]) == (mode, size)),
                     key=lambda pair: pair[0])  # fmt: skip
        buffers = [max(0.5, b / 1024) for b, _ in own]
        colour = COLOURS[i % len(COLOURS)]
        marker = "os^Dv"[i // len(COLOURS) % 5]
        label = f"{mode}, {size:,} B"
        left.plot(buffers, [r["packets_per_s"] for _, r in own], marker=marker, color=colour,
                  label=label)  # fmt: skip
        right.plot(buffers, [r["ms_p99"] for _, r in own], marker=marker, color=colour)
    left.set(xlabel="buffer (KiB)", ylabel="packets/s", xscale="log", yscale="log",
             title="Throughput")  # fmt: skip
    right.set(xlabel="buffer (KiB)", ylabel="ms", xscale="log", yscale="log",
              title="Latency at that load, 99th percentile")  # fmt: skip
    left.legend(loc="best", fontsize=7)
