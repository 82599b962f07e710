"""`edged board`: the detected board, and what edged can read and set on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from edged.console import options as checks
from edged.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from governors.actuators.base import Setting
    from governors.actuators.writers import Writer
    from governors.power import PowerModel
    from governors.sysfs import Sysfs

HELPER = Path("/run/edged/governor.sock")
GROUP = "edged"


@click.command(name="board")
@checks.board_option("[default: /]")
@click.option("--root", hidden=True, type=checks.Board())
@click.option("--list", "listed", is_flag=True, help="List the profiles and what each knows.")
@click.option("--template", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="REPORT",
              help="Print a profile's skeleton, from `edged doctor --report`.")  # fmt: skip
@click.option("--power-model", "stand_in", metavar="NAME", default="",
              help="A profile whose figures stand in where the board has none.")  # fmt: skip
@click.option("--helper", default=HELPER, type=click.Path(path_type=Path), show_default=True,
              help="The root helper's socket.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON, with every source.")
def command(
    board: str | None, root: str | None, listed: bool, template: Path | None, stand_in: str,
    helper: Path, as_json: bool,
) -> None:  # fmt: skip
    """Show how many of the board's watts edged can influence, then the detected hardware, what may
    be read and set, and why the rest may not.

    Changes nothing.  Figures of the power model carry their error.  A machine without a profile has
    no power model: its watts are what its meters measure.
    """
    from rich.console import Console

    from edged.cli import _board_list
    from governors.board_names import SIMULATED
    from governors.errors import GovernorError

    console = Console(markup=False, highlight=False)
    if template is not None:
        click.echo(_skeleton(template), nl=False)
        return
    if listed:
        found = _board_list.profiles()
        if as_json:
            click.echo(json.dumps(found))
        else:
            _board_list.show(found, console)
        return
    name = board or root or "/"
    try:
        with opened(name) as sysfs:
            simulated = name.startswith(SIMULATED)
            document = describe(sysfs, helper, simulated=simulated, stand_in=stand_in)
    except GovernorError as problem:
        raise ConfigError(str(problem)) from problem
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    _print(document, console)


def _skeleton(report: Path) -> str:
    """A profile's skeleton from a report.  Raises ConfigError."""
    from governors import board_report, profile_template

    try:
        return profile_template.skeleton(board_report.read(report.read_bytes(), str(report)))
    except board_report.ReportError as problem:
        raise ConfigError(f"--template: {problem}") from problem


def describe(sysfs: Sysfs, helper: Path, simulated: bool, stand_in: str = "") -> dict[str, Any]:
    """All findings as plain data; `stand_in`: the profile that gives the board's power model.
    Raises ProfileError."""
    from governors.actuators.base import findings
    from governors.actuators.writers import choose_writer
    from governors.detect import detect
    from governors.energy import Provenance
    from governors.meters.base import survey
    from governors.meters.settings import MeterSettings
    from governors.power_models import described, power_model
    from governors.topology import topology

    board = detect(sysfs)
    model = power_model(board.profile_name, stand_in)
    covers = described(model, board.profile_name) if model else ""
    cores = topology(sysfs, board)
    found = findings(sysfs, board)
    writer = choose_writer(sysfs, found, helper)
    source = Provenance.SIMULATED if simulated else Provenance.MEASURED
    meters = survey(sysfs, board, MeterSettings(provenance=source))
    try:
        return {
            "influence": _influence(sysfs, model, found, writer) | {"covers": covers},
            "board": {
                "name": board.name, "model": board.model, "soc": board.soc,
                "release": board.release, "profile": board.profile_name, "simulated": simulated,
            },
            "cores": {"text": cores.text, **asdict(cores)},
            "writer": {"name": writer.name, "why": writer.why},
            "settings": [_setting(sysfs, setting, writer) for setting in found],
            "meters": [
                {
                    "name": meter.name, "rails": [rail.name for rail in meter.rails],
                    "provenance": meter.provenance.value, "interval_us": meter.interval_us,
                }
                for meter in meters.meters
            ],
            "missing": [
                {"meter": m.meter, "what": m.what, "remedy": m.remedy} for m in meters.missing
                if m.meter != "model"
            ],
            "input": _input(meters.meters, model, covers),
            "profile": _profile(model) if model else None,
        }  # fmt: skip
    finally:
        writer.close()


@contextmanager
def opened(name: str) -> Iterator[Sysfs]:
    """The tree of a board; a simulated board's is removed afterwards.  Raises ConfigError for
    `none`."""
    from governors.board_names import NONE, SIMULATED
    from governors.simulated.board import from_name
    from governors.simulated.kernel import open_root

    if name == NONE:
        raise ConfigError(f"--board: {NONE} has nothing to show; leave it out for this machine")
    if not name.startswith(SIMULATED):
        yield open_root(name)
        return
    with TemporaryDirectory(prefix="edged-board-") as directory:
        yield from_name(name, Path(directory)).sysfs


def _influence(
    sysfs: Sysfs, model: PowerModel | None, found: list[Setting], writer: Writer
) -> dict[str, Any]:
    """The watts that depend on clocks and switches that edged may set."""
    from governors.actuators.base import Knob, limits_now
    from governors.errors import ActuatorError

    limits = {}
    settable = False
    for knob in found:
        if isinstance(knob, Knob):
            try:
                now = limits_now(sysfs, knob)
            except ActuatorError:
                continue
            limits[knob.name] = (now.min_hz, now.max_hz)
            may = not any(writer.refusal(path) for path in knob.files().values())
            settable |= may and not knob.optional
    answer: dict[str, Any] = {"clocks": settable, "provenance": "modelled"}
    if model is not None:
        watts = model.influence(limits)
        answer |= {
            "idle_watts": watts.idle_min, "idle_processors_watts": watts.idle_processors,
            "idle_locked_watts": watts.idle_max, "full_min_watts": watts.full_min,
            "full_max_watts": watts.full_max,
            "idle_error_watts": model.error_watts(model.idle_load()),
            "full_error_watts": model.error_watts(model.full_load(highest=True)),
        }  # fmt: skip
    answer["text"] = _sentence(answer)
    return answer


def _sentence(known: dict[str, Any]) -> str:
    """The first line: the share that edged can influence."""
    head = "edged can influence" if known["clocks"] else "no control: edged can set no clock here"
    if "idle_watts" not in known:
        if not known["clocks"]:
            return f"{head}; no power model describes it"
        return "edged can influence clocks here; no power model says how many watts that is"
    idle, acted_on = known["idle_watts"], known["idle_processors_watts"]
    low, high = known["full_min_watts"], known["full_max_watts"]
    errors = f"± {known['idle_error_watts']:.1f} and {known['full_error_watts']:.1f} W, modelled"
    if not known["clocks"]:
        return (
            f"{head}, only the time of wake-ups; {idle:.1f} W when idle, up to {high:.1f} W with "
            f"every core busy ({errors})"
        )
    part = f"at most {acted_on:.1f} of {idle:.1f} W" if acted_on else f"nothing of {idle:.1f} W"
    return (
        f"{head} {part} when idle, {high - low:.1f} of {high:.1f} W with every core busy ({errors})"
    )


def _setting(sysfs: Sysfs, setting: Setting, writer: Writer) -> dict[str, Any]:
    """A knob or switch: its value, whether it may be set, and what would permit it."""
    from governors.actuators.base import Knob, limits_now, refusal
    from governors.errors import ActuatorError

    paths = list(setting.files().values())
    refused = next((why for path in paths if (why := writer.refusal(path))), "")
    denied = [path for path in paths if refusal(sysfs, path) and sysfs.exists(path)]
    shown: dict[str, Any] = {
        "name": setting.name, "kind": setting.kind, "paths": paths, "may_be_set": not refused,
        "why_not": refused, "remedy": _remedy(sysfs, denied) if refused else "",
    }  # fmt: skip
    if not isinstance(setting, Knob):
        now = sysfs.get(paths[0]) if sysfs.exists(paths[0]) else None
        return shown | {"now": now, "values": list(setting.values), "optional": True}
    try:
        stands = str(limits_now(sysfs, setting))
    except ActuatorError as problem:
        stands = str(problem)
    return shown | {
        "now": stands, "floor_hz": setting.floor_hz, "ceiling_hz": setting.ceiling_hz,
        "table_hz": list(setting.table_hz), "cores": list(setting.cores),
        "optional": setting.optional,
    }  # fmt: skip


def _remedy(sysfs: Sysfs, paths: list[str]) -> str:
    """The command that lets this process's group write; it lasts until the next boot."""
    if not paths:
        return ""
    if any(map(sysfs.read_only, paths)):
        return "run edged-governor-helper where /sys may be written: outside of the container"
    files = " ".join(paths)
    return f"sudo sh -c 'chgrp {GROUP} {files} && chmod g+w {files}', or run edged-governor-helper"


def _input(meters: Any, model: PowerModel | None, covers: str) -> dict[str, Any]:
    """The source of the whole input's power."""
    from governors.meters.rails import wholes

    found = wholes(meters)
    if found:
        best = found[0]
        return {"from": best.name, "covers": best.covers, "provenance": best.provenance.value}
    if model is not None:
        return {
            "from": " + ".join(model.profile.input), "covers": covers, "provenance": "modelled",
        }  # fmt: skip
    return {"from": None, "covers": "", "provenance": None}


def _profile(model: PowerModel) -> dict[str, Any]:
    """Content of the profile, with its sources."""
    p = model.profile
    idle, full = model.idle_load(), model.full_load(highest=True)
    low_watts, high_watts = model.watts(idle), model.watts(full)
    return {
        "name": p.name, "title": p.title, "notes": list(p.notes),
        "clusters": [
            {
                "name": c.name, "cores": list(c.cores), "core": c.core,
                "opps": [{"hz": o.hz, "volts": o.volts} for o in c.opps],
                "continuous": c.continuous, "source": c.source,
                "cheapest_hz": model.optimum_hz(i, len(c.cores)),
            }
            for i, c in enumerate(p.clusters)
        ],
        "gpu": p.gpu and {
            "table_hz": [o.hz for o in p.gpu.opps], "railgate_delay_ms": p.gpu.railgate_delay_ms,
            "source": p.gpu.source,
        },
        "rails": [
            {
                "name": r.name, "feeds": list(r.feeds), "part_of": r.part_of,
                "idle_watts": low_watts.get(r.name), "full_watts": high_watts.get(r.name),
            }
            for r in p.rails
        ],
        "sensor": {"meter": p.sensor.meter, "refresh_ms": p.sensor.refresh_ms,
                   "lsb_mw": p.sensor.lsb_mw, "source": p.sensor.source},
        "terms": [
            {"name": t.name, "rail": t.rail, "value": t.figure.value, "error": t.figure.error,
             "unit": t.figure.unit, "source": t.figure.source}
            for t in p.terms
        ],
    }  # fmt: skip


def _print(document: dict[str, Any], console: Console) -> None:
    """The sentence, then tables."""
    board, profile = document["board"], document["profile"]
    console.print(document["influence"]["text"], style="bold", soft_wrap=True)
    kind = "simulated " if board["simulated"] else ""
    known = f"profile {board['profile']}" if board["profile"] else "no profile"
    if profile and profile["name"] != board["profile"]:
        known += f", figures of the stand-in {profile['name']}"
    title = f"{board['model'] or 'no model'} {board['release']}".rstrip()
    console.print(f"\n{kind}{board['name']}: {title}, {known}", soft_wrap=True)
    if profile:
        for note in profile["notes"]:
            console.print(f"  {note}", style="dim", soft_wrap=True)
    console.print(document["cores"]["text"], soft_wrap=True)
    if not board["profile"]:
        _print_clocks(document["cores"]["domains"], console)
    _print_settings(document, console)
    _print_meters(document, console)
    if profile:
        _print_profile(profile, console)


def _table(title: str, *columns: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_clocks(domains: list[dict[str, Any]], console: Console) -> None:
    """The clocks of the machine's cores, each different range once."""
    cores: dict[str, list[int]] = {}
    for domain in domains:
        if domain["floor_hz"] is None:
            clocks = "the kernel shows no clock"
        elif domain["table_hz"]:
            clocks = " ".join(f"{hz / 1e6:g}" for hz in domain["table_hz"]) + " MHz"
        else:
            low, high = domain["floor_hz"] / 1e6, domain["ceiling_hz"] / 1e6
            clocks = f"any clock from {low:g} to {high:g} MHz"
        cores.setdefault(clocks, []).extend(domain["cores"])
    for clocks, numbers in cores.items():
        console.print(f"  cores {', '.join(map(str, numbers))}: {clocks}", soft_wrap=True)


def _print_settings(document: dict[str, Any], console: Console) -> None:
    table = _table("\nmay be set", "", "now", "of", "may be set")
    for s in document["settings"]:
        if "values" in s:
            span = ", ".join(s["values"])
        else:
            steps = f"{len(s['table_hz'])} clocks" if s["table_hz"] else "continuous"
            span = f"{s['floor_hz'] / 1e6:g} to {s['ceiling_hz'] / 1e6:g} MHz, {steps}"
        may = ("yes, if enabled" if s["optional"] else "yes") if s["may_be_set"] else s["why_not"]
        table.add_row(s["name"], str(s["now"]), span, may)
    if document["settings"]:
        console.print(table)
    else:
        console.print("\nnothing can be set: this machine shows no clock that can be")
    writer = document["writer"]
    console.print(f"writes: {writer['name']} ({writer['why']})", soft_wrap=True)
    for remedy in dict.fromkeys(s["remedy"] for s in document["settings"] if s["remedy"]):
        console.print(f"to allow it: {remedy}", soft_wrap=True)


def _print_meters(document: dict[str, Any], console: Console) -> None:
    if document["meters"]:
        table = _table("\nmay be read", "", "rails", "every", "figures are")
        for m in document["meters"]:
            every = f"{m['interval_us'] / 1000:g} ms"
            table.add_row(m["name"], ", ".join(m["rails"]), every, m["provenance"])
        console.print(table)
    else:
        console.print("\nno power can be read here")
    whole = document["input"]
    if whole["from"]:
        text = f"whole input: {whole['from']} ({whole['covers']}), {whole['provenance']}"
    else:
        text = "whole input: not known; --power-model NAME takes another machine's figures instead"
    console.print(text, soft_wrap=True)
    for missing in document["missing"]:
        text = f"missing: {missing['meter']}: {missing['what']}"
        advice = f": {missing['remedy']}" if missing["remedy"] else ""
        console.print(text + advice, soft_wrap=True)


def _print_profile(profile: dict[str, Any], console: Console) -> None:
    table = _table("\nclusters", "", "cores", "", "MHz", "cheapest a cycle, all cores busy")
    for c in profile["clusters"]:
        cores = ", ".join(map(str, c["cores"]))
        volts = {o["volts"] for o in c["opps"]}
        clocks = [f"{o['hz'] / 1e6:g}" + (f" ({o['volts']:g} V)" if o["volts"] else "")
                  for o in c["opps"]]  # fmt: skip
        listed = " to ".join(clocks) if c["continuous"] else " ".join(clocks)
        hint = "" if volts != {None} else "; voltages are not public"
        table.add_row(c["name"], cores, c["core"], listed + hint, f"{c['cheapest_hz'] / 1e6:g} MHz")
    console.print(table)
    table = _table(
        "\nrails (modelled)", "", "feeds", "part of", "idle", "all busy at the highest clocks"
    )
    for r in profile["rails"]:
        watts = [f"{r[key]:.2f} W" if r[key] is not None else "not known"
                 for key in ("idle_watts", "full_watts")]  # fmt: skip
        joint = "jointly " if len(r["feeds"]) > 1 else ""
        table.add_row(r["name"], joint + ", ".join(r["feeds"]), r["part_of"] or "", *watts)
    console.print(table)
    table = _table("\nthe power model's figures", "", "rail", "value", "source")
    for t in profile["terms"]:
        value = (
            "not known" if t["value"] is None else f"{t['value']:g} ± {t['error']:g} {t['unit']}"
        )
        table.add_row(t["name"], t["rail"], value, t["source"])
    console.print(table)
