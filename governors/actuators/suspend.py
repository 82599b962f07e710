"""Suspends the machine until an alarm of its real-time clock.

    /sys/power/state                 the states that can be written to it: freeze, mem
    /sys/power/mem_sleep             what `mem` means: s2idle or [deep]; absent before Linux 4.10,
                                     where it means deep
    /sys/class/rtc/rtcN/wakealarm    seconds since 1970 on that clock, or +SECONDS; 0 clears it.
                                     The file is there only where the clock can wake the machine
    /sys/class/rtc/rtcN/since_epoch  the time of that clock

Sources: Linux Documentation/admin-guide/pm/sleep-states.rst and drivers/rtc/sysfs.c.  A write to
`state` returns after the resume.  An alarm that another program has set is left alone, and nothing
suspends meanwhile: the kernel refuses a second one (EBUSY).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from governors.suspend import MEM, STATES
from governors.sysfs import Sysfs, SysfsError

POWER_STATE = "/sys/power/state"
MEM_SLEEP = "/sys/power/mem_sleep"
RTC = "/sys/class/rtc"
SECONDS_MAX = 86_400
"""Longest alarm; not every clock can wait longer."""
DEEP = "deep"


@dataclass(frozen=True, slots=True)
class SuspendReply:
    """What came of a request."""

    problem: str = ""
    """Why the machine did not suspend; empty: it did."""


Sleeper = Callable[[str, int], SuspendReply]
"""Suspends into a state for seconds."""


def alarms(sysfs: Sysfs) -> list[str]:
    """Directories of the clocks that can wake the machine."""
    found = [f"{RTC}/{name}" for name in sysfs.list(RTC) if re.fullmatch(r"rtc\d+", name)]
    return [clock for clock in found if sysfs.exists(f"{clock}/wakealarm")]


def cannot_suspend(sysfs: Sysfs, state: str) -> str:
    """Why this machine cannot suspend into a state and wake by itself; empty where it can."""
    if state not in STATES:
        return f"there is no state {state[:20]!r}: write one of {', '.join(STATES)}"
    known = (sysfs.get(POWER_STATE) or "").split()
    if state not in known:
        return f"{POWER_STATE} has {' '.join(known) or 'nothing'}, not {state}"
    meaning = re.search(r"\[(\w+)\]", sysfs.get(MEM_SLEEP) or f"[{DEEP}]")
    if state == MEM and meaning is not None and meaning[1] != DEEP:
        return f"mem means {meaning[1]} here: write {DEEP} to {MEM_SLEEP}, or ask for freeze"
    if not alarms(sysfs):
        return f"no clock in {RTC} has a wakealarm"
    return ""


def suspend(sysfs: Sysfs, state: str, seconds: int) -> SuspendReply:
    """Suspend for so many seconds.  Never without an alarm that the clock confirms."""
    if problem := cannot_suspend(sysfs, state):
        return SuspendReply(problem)
    if not 1 <= seconds <= SECONDS_MAX:
        return SuspendReply(f"{seconds} s are not within 1 and {SECONDS_MAX}")
    clock = alarms(sysfs)[0]
    try:
        sysfs.write(f"{clock}/wakealarm", f"+{seconds}")
    except SysfsError as problem:
        return SuspendReply(str(problem))
    try:
        due, now = (sysfs.read_int(f"{clock}/{name}") for name in ("wakealarm", "since_epoch"))
        if not 0 < due - now <= seconds:
            return SuspendReply(f"{clock}/wakealarm reads {due} at {now}: it would not wake")
        sysfs.write(POWER_STATE, state)
    except SysfsError as problem:
        return SuspendReply(str(problem))
    finally:
        _clear(sysfs, clock)
    return SuspendReply()


def _clear(sysfs: Sysfs, clock: str) -> None:
    """Clear an alarm that has not fired, so that it wakes nothing later."""
    try:
        if sysfs.read(f"{clock}/wakealarm"):
            sysfs.write(f"{clock}/wakealarm", "0")
    except SysfsError:
        return
