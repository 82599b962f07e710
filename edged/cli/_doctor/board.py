"""Meters, clocks, power modes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edged.cli._doctor.base import Finding, Machine, check, ok, optional, warning
from governors.sysfs import CPUFREQ, Sysfs

NVPMODEL = "/var/lib/nvpmodel/status"
STEADY = frozenset({"performance", "powersave", "userspace"})
"""Governors that do not follow the load."""


@check("measure")
def detected(machine: Machine) -> Iterator[Finding]:
    """The board, and its profile."""
    board = machine.described["board"]
    text = " ".join(filter(None, (board["name"], f"({board['model']})" if board["model"] else "",
                                  board["release"])))  # fmt: skip
    if board["profile"]:
        yield ok("board", f"{text}, profile {board['profile']}")
    else:
        yield optional("board", f"{text}: no profile, so nothing is modelled", "docs/boards.md")


@check("measure")
def meters(machine: Machine) -> Iterator[Finding]:
    """The whole input's power, and what is missing."""
    document = machine.described
    whole = document["input"]
    if whole["from"]:
        yield ok("input", f"{whole['from']} ({whole['covers']}), {whole['provenance']}")
    else:
        text = "no meter gives the board's whole power: joules are not known"
        yield warning("input", text, "an external meter: [[meters.external]], docs/energy.md")
    for meter in document["meters"]:
        rails = ", ".join(meter["rails"])
        yield ok("meter", f"{meter['name']}: {rails}, {meter['provenance']}")
    for missing in document["missing"]:
        state = optional if missing["meter"] == "uplink" else warning
        yield state("meter", f"{missing['meter']}: {missing['what']}", missing["remedy"])


@check("set")
def clocks(machine: Machine) -> Iterator[Finding]:
    """Clocks and switches that may be set, and why the others may not."""
    document = machine.described
    settings = [s for s in document["settings"] if not s["optional"]]
    if not settings:
        yield optional("clocks", "no clock can be set here; batching works without")
        return
    may = [s["name"] for s in settings if s["may_be_set"]]
    if may:
        yield ok("clocks", f"{', '.join(may)}, by {document['writer']['name']}")
    refused: dict[str, list[dict[str, Any]]] = {}
    for setting in settings:
        if not setting["may_be_set"]:
            refused.setdefault(setting["remedy"] or setting["why_not"], []).append(setting)
    for group in refused.values():
        names = ", ".join(s["name"] for s in group)
        yield warning("clocks", f"{names}: {group[0]['why_not']}", group[0]["remedy"])


@check("set")
def governors(machine: Machine) -> Iterator[Finding]:
    """The kernel's own governor of each clock policy."""
    from edged.energy.settings import SIMULATED

    if machine.board.startswith(SIMULATED):
        return
    sysfs = Sysfs(machine.board)
    policies = [p for p in sysfs.list(CPUFREQ) if p.startswith("policy")]
    names = {name for p in policies if (name := sysfs.get(f"{CPUFREQ}/{p}/scaling_governor"))}
    drivers = {sysfs.get(f"{CPUFREQ}/{p}/scaling_driver") or "" for p in policies}
    own = any(driver.startswith(("intel_pstate", "amd-pstate-epp")) for driver in drivers)
    steady = {name for name in names & STEADY if not (own and name == "powersave")}
    if steady:
        remedy = f"echo schedutil | sudo tee {CPUFREQ}/policy*/scaling_governor"
        text = f"{', '.join(sorted(steady))}: clocks do not follow the load"
        yield warning("governor", text, remedy)
    elif names:
        yield ok("governor", ", ".join(sorted(names)))


@check("set")
def power_mode(machine: Machine) -> Iterator[Finding]:
    """nvpmodel's mode of a Jetson, within whose limits every policy plans."""
    from edged.energy.settings import SIMULATED

    if machine.board.startswith(SIMULATED):
        return
    sysfs = Sysfs(machine.board)
    if "tegra" not in machine.described["board"]["soc"]:
        return
    status = sysfs.get(NVPMODEL)
    if status is None:
        yield warning("nvpmodel", f"{NVPMODEL} cannot be read: no power mode is set",
                      "sudo nvpmodel -q; sudo nvpmodel -m MODE")  # fmt: skip
    else:
        yield ok("nvpmodel", f"mode {status.partition(':')[2] or status}; policies plan within it")


@check("set")
def limits(machine: Machine) -> Iterator[Finding]:
    """Limits that a daemon left behind."""
    from edged.energy.settings import JOURNAL

    journal = machine.root / str(JOURNAL).lstrip("/")
    try:
        left = journal.stat().st_size
    except FileNotFoundError:
        return
    except OSError as problem:
        yield optional("limits", f"{journal}: {problem.strerror}")
        return
    if left:
        yield warning("limits", f"{journal} holds clock limits that edged has set",
                      "sudo edged governor restore, unless a daemon runs")  # fmt: skip


@check("set")
def sleep_states(machine: Machine) -> Iterator[Finding]:
    """Idle states, on which the joules between beats depend."""
    from edged.energy.settings import SIMULATED
    from governors.actuators.sleep import IdleStates

    if machine.board.startswith(SIMULATED):
        return
    counts = IdleStates(Sysfs(machine.board)).read(0)
    if not counts.cores:
        yield optional("idle states", "not visible here, as in most virtual machines")
        return
    off = sorted({s.name for states in counts.cores.values() for s in states if s.disabled})
    names = ", ".join(dict.fromkeys(s.name for states in counts.cores.values() for s in states))
    if off:
        text = f"{', '.join(off)} disabled (jetson_clocks does that): idle cores stay awake"
        yield warning("idle states", text, "sudo jetson_clocks --restore")
    else:
        yield ok("idle states", names)
