"""A door with a simulated board behind it, as a process: `python -m tests.ab_board DOOR DIR SEED`.

It speaks the daemon's door and answers `governor` and `energy` as the daemon does, with the real
simulated board, its sensors, the real meters and sampler; but its work is known: CYCLES_PER_S on
CORES cores, RATE tuples a second.  Its policies are `fixed` and `hands_off`.  Time passes only when
the command `pass` says so, so that half an hour takes a second or two and a busy machine changes
nothing.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from edged.control.door import Door
from edged.events.log import Events, LineLog
from edged.platform.clock import SystemClock
from governors.detect import detect
from governors.energy import Provenance
from governors.meters.base import survey
from governors.meters.sampler import Sampler
from governors.meters.settings import MeterSettings
from governors.simulated.board import BoardWork, from_name

BOARD = "simulated:orin-nano"
CYCLES_PER_S, CORES, RATE = 1.5e9, 6.0, 1_000_000
"""Of all cores together; so many busy in a race; tuples."""
BEATS_PER_S = 11.3
"""A reading's period is no multiple of a beat's, or all readings would meet the same part of it."""
LIMITS = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_{}_freq"


class Host:
    """The board, and the two commands."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.board = from_name(BOARD, directory, seed=seed)
        found = detect(self.board.sysfs)
        settings = MeterSettings(provenance=Provenance.SIMULATED)
        self.sampler = Sampler(survey(self.board.sysfs, found, settings).meters, lambda: 0.0)
        self.policy, self.settings = "hands_off", {}
        self.saved = [self._limits(policy) for policy in (0, 4)]
        self.at_us, self.beat = 0, 0

    def _limits(self, policy):
        read = self.board.sysfs.read_int
        return tuple(read(LIMITS.format(policy, end)) for end in ("min", "max"))

    def answer(self, request):
        """Of `governor`, `energy` and `status`, as `edged.energy` has them."""
        if request["cmd"] == "pass":
            self.turn(self.at_us + round(1e6 * request["seconds"]))
            return {}
        if request["cmd"] == "status":
            beat_us = round(1e6 / BEATS_PER_S)
            return {"jobs": {"known": {"promises": {"latency_us": beat_us}}}}
        if request["cmd"] == "governor":
            was = self.policy
            if "policy" in request:
                self.switch(request["policy"], request["settings"])
            return {"policy": self.policy, "was": was, "settings": self.settings, "reason": "",
                    "own": {"policy": self.policy, "settings": self.settings, "origin": "command"},
                    "forecast": "", "problem": ""}  # fmt: skip
        told = self.sampler.input_energy({})
        return {
            "at_us": told.until_us, "tuples": round(RATE * told.until_us / 1e6), "beats": self.beat,
            "policy": self.policy, "idle_watts": 3.37, "rails": [],
            "lag_us": self.sampler.lag_us(told.rail.name),
            "input": {"rail": told.rail.name, "covers": "VDD_IN", "joules": told.joules,
                      "provenance": told.provenance.value, "since_us": told.since_us,
                      "until_us": told.until_us, "gap_us": told.gap_us},
        }  # fmt: skip

    def switch(self, policy, settings):
        """Pin, or give the limits back."""
        self.policy, self.settings = policy, settings
        for number, (low, high) in zip((0, 4), self.saved, strict=True):
            if policy == "fixed":
                low = high = round(1e3 * settings["cpu_mhz"])
            least = min(low, self._limits(number)[1])
            for end, khz in (("min", least), ("max", high), ("min", low)):
                self.board.sysfs.write(LIMITS.format(number, end), str(khz))

    def turn(self, now_us):
        """Up to a time, beat by beat, with every reading when it is due."""
        while self.at_us < now_us:
            due = self.sampler.due_us(self.at_us)
            beat_us = round((self.beat + 1) * 1e6 / BEATS_PER_S)
            ends = min(now_us, beat_us, now_us if due is None else due)
            self.at_us = max(self.at_us + 1, ends)
            self.board.advance(self.at_us)
            if self.at_us >= beat_us:
                self.beat += 1
                work = BoardWork(cycles=CYCLES_PER_S / BEATS_PER_S, cores=CORES)
                self.board.advance(self.at_us, work)
            if due is not None and self.at_us >= due:
                self.sampler.sample(self.at_us, 0.0)


def main():
    door, directory, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    host = Host(directory, seed)
    host.turn(1)
    clock = SystemClock()
    served = Door(door, host.answer, clock, Events(clock, LineLog(lambda *_: None)), dict)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        select.select([served.fileno()], [], [])
        served.serve()


if __name__ == "__main__":
    main()
