"""`edged simulate` and `edged run --board` charge the same work with the same energy.

What is compared is the rule: both get the CPU time of `edged.simulate.work`, for beats of the same
length. The tolerance of 1.3 above idle covers what stays apart: memory traffic is bytes of the bus
here and stalls there, and the simulator's beats vary in length.
"""

from __future__ import annotations

import pytest

from edged.bench.rig import join_job
from edged.energy import board as boards
from edged.energy.board import SimulatedWork
from edged.job.plan import parse_job
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine
from edged.simulate.report import Question, _setup
from edged.simulate.work import HOST_HZ, ArrivalLoad, job_work, scale_of
from governors.profile_reader import load
from governors.simulated.board import SimulatedBoard

RATIO_MAX = 1.3
SECONDS = 30


def simulated(plan, board, rate):
    """W above idle of `edged simulate`, and its beats a second."""
    device = SimulatedDevice(board)
    asked = Question(plan, board, ArrivalLoad(rate), "hands_off", {}, seconds=float(SECONDS))
    outcome = Engine(_setup(asked, device), device).run()
    watts = outcome.joules / outcome.seconds - outcome.idle_watts
    return watts, outcome.beats / outcome.seconds


def charged(plan, board, rate, beats_per_s, directory):
    """W above idle that a simulated board of `edged run` is charged with for the same CPU time."""
    work = job_work(plan, board, ArrivalLoad(rate))
    cost, period_us = work.cost, round(1e6 / beats_per_s)
    rows = work.rows_per_s / beats_per_s
    each_us = 1e6 / (scale_of(board)[0] * HOST_HZ)
    made = SimulatedBoard(board, directory, noise=False)
    site, idle = SimulatedWork(made, 0), made.model.input_watts(made.model.idle_load())
    race_us = each_us * cost.cores * (cost.cycles + cost.cycles_per_unit * rows)
    now_us = 0
    while now_us < 1_000_000 * SECONDS:
        now_us += period_us
        site.pass_time(now_us, each_us * cost.beside_cycles, 2)
        site.race(now_us, race_us, cost.cores, cost.bytes_per_unit * rows)
    return made.input_joules / (made.now_us / 1e6) - idle


@pytest.mark.parametrize("rate", [15_000, 131_072])
@pytest.mark.parametrize("name", ["jetson-nano", "orin-nano"])
def test_both_commands_charge_the_same_work_alike(name, rate, tmp_path, monkeypatch):
    monkeypatch.setattr(boards, "host_hz", lambda: HOST_HZ)
    plan, board = parse_job(join_job("127.0.0.1:1", 2_000, "1s")), load(name)
    watts, beats_per_s = simulated(plan, board, rate)
    other = charged(plan, board, rate, beats_per_s, tmp_path)
    assert 1 / RATIO_MAX <= watts / other <= RATIO_MAX, (watts, other)


def test_the_clock_of_this_machine_is_timed():
    assert 3e8 < boards.host_hz() < 8e9
