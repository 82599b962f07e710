"""What the demo shows of energy: now, on the mean, and where it is from."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from edged.demo.screen import Scene

TOLD = {
    "watts": {"input": 3.36, "rail": "VDD_IN", "provenance": "simulated"},
    "joules_per_mtuple": {"above_idle": 241.77, "input": 1080.66, "provenance": "simulated"},
    "wakeups_per_s": 0.0,
    "race_clock_s": {"1344000000": 30.0, "729600000": 10.0},
    "board": {"name": "orin-nano", "simulated": True},
    "input": {
        "joules": 294.8,
        "provenance": "simulated",
        "since_us": 0,
        "until_us": 100_000_000,
        "gap_us": 33_000_000,
    },
    "sleep_s": {"awake": 49.8, "states": {"c7": 585.0}, "wakeups": 42},
}


def shown(**more) -> str:
    scene = Scene(10, daemon={"energy": {**TOLD, **more}})
    out = StringIO()
    Console(file=out, width=80).print(scene.render())
    return " ".join(out.getvalue().split())


def test_power_clock_wakeups_and_joules_are_shown_with_the_mean_and_marked():
    assert "3.36 W (4.40) 1190 MHz 0.0 (0.4)" in shown()
    assert "241.8 above idle, 1081 total simulated" in shown()


@pytest.mark.parametrize("lacks", ["input", "sleep_s", "watts", "wakeups_per_s"])
def test_what_nobody_told_is_left_out(lacks):
    assert "orin-nano" in shown(**{lacks: None})
