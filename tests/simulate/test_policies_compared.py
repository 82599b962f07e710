"""What policies take beside each other over rates, as `docs/policies.png` draws it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from edged.bench.policies import JOB
from edged.job.plan import JobPlan, load_job, parse_job
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine
from edged.simulate.report import Question, _setup
from edged.simulate.work import ArrivalLoad
from governors.cost import PLAN_ERROR
from tests.simulate.common import ORIN

EXAMPLE = Path(__file__).parents[2] / "examples" / "power_curve.toml"
CASES = [("join", 1e3), ("join", 1e5), ("join", 3e5), ("join", 1e6)]
CASES += [("power_curve", 1e3), ("power_curve", 3e4), ("power_curve", 1e5), ("power_curve", 3e5)]
MHZ = (729.6, 1190.4, 1344.0)


@cache
def job(name: str) -> JobPlan:
    """A join over a second; the example with short acks, buffers that fill up and big windows."""
    return parse_job(JOB) if name == "join" else load_job(str(EXAMPLE))


def driven(name: str, rate: float, policy: str, **settings: float) -> tuple[float, Engine]:
    """W above idle over half a minute, and the engine as it stands then."""
    device = SimulatedDevice(ORIN)
    asked = Question(job(name), ORIN, ArrivalLoad(rate), policy, settings, seconds=30.0)
    engine = Engine(_setup(asked, device), device)
    outcome = engine.run()
    return outcome.joules / outcome.seconds - outcome.idle_watts, engine


@pytest.mark.parametrize("name, rate", CASES)
def test_racing_to_idle_is_beaten_by_no_clock_and_not_by_the_kernel(name, rate):
    raced, engine = driven(name, rate, "race_to_idle")
    others = [driven(name, rate, "fixed", cpu_mhz=mhz)[0] for mhz in MHZ]
    best = min(*others, driven(name, rate, "hands_off")[0])
    assert raced <= (1 + PLAN_ERROR) * best
    seen = engine._observation(engine.device.at_us)
    plan = engine.policy.policy.model.plan(seen.work, seen.dials, seen.write_j, seen.write_us)
    planned = plan.watts - engine.device.idle_watts
    assert planned == pytest.approx(raced, rel=PLAN_ERROR), "the bound is what plans are off by"
