"""A small job and setups for the simulator's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import governors.profile_reader
from edged.job.plan import JobPlan, parse_job
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine, Setup, SimulationOutcome
from edged.simulate.report import Question
from edged.simulate.work import ArrivalLoad, JobWork
from governors.work import RaceCost

ORIN = governors.profile_reader.load("orin-nano")


def join_plan(
    latency: str = "100ms", bound: str = "1s", memory: str = "1GiB", ack: str | None = None
) -> JobPlan:
    """Two streams of 16 bytes a row, joined."""
    stream = {
        "source": {"type": "tcp", "listen": "127.0.0.1:7400"},
        "columns": {"key": "int32", "value": "float32", "ts": "timestamp"},
        "time": "ts",
    }
    return parse_job(
        {
            "name": "join",
            "promises": {"latency": latency, "memory": memory, "ack_within": ack or latency},
            "streams": {"r": dict(stream), "s": dict(stream)},
            "operators": {
                "j": {"type": "interval_join", "left": "r", "right": "s", "on": ["key"],
                      "before": bound, "after": bound}
            },
            "sinks": {"p": {"type": "pages", "input": "j", "stream": "p", "version": 1}},
        }
    )  # fmt: skip


def question(rate: float = 10_000, latency: str = "100ms", **more: Any) -> Question:
    """The join on an Orin Nano."""
    load = ArrivalLoad(rate, more.pop("sends", 20.0))
    return replace(Question(join_plan(latency), ORIN, load, seconds=60.0), **more)


def plain_work(rate: float, messages: float, cost: RaceCost) -> JobWork:
    """Work that is made up."""
    return JobWork(cost, rate, messages, 0, 0.0, 16.0, 0.0, 0.5, ())


def simulated(setup: Setup, **more: Any) -> tuple[SimulationOutcome, SimulatedDevice]:
    """Run it, with every piece logged."""
    device = SimulatedDevice(ORIN, log=[], **more)
    return Engine(setup, device).run(), device
