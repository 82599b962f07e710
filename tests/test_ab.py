"""`edged ab`: the interval covers, drift cancels, known differences are found, and none is not."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edged.cli.ab import _show, command
from edged.control.door import ask
from edged.energy import policy_comparison
from edged.errors import ConfigError
from governors.board_tariffs import ModelTariff
from governors.power import PowerModel
from governors.profile_reader import load
from tests import ab_board
from tests.beat.support import Daemon
from tests.energy.common import switch

FINITE = st.floats(-100, 100, allow_nan=False)


def reading(at_s=0.0, joules=0.0, tuples=0, gap_s=0.0):
    us = round(1e6 * at_s)
    return policy_comparison.EnergyReading(
        us, tuples, joules, us, round(1e6 * gap_s), "simulated", "VDD_IN"
    )


def block(arm="A", watts=5.0, seconds=10.0, tuples=1000, gap_s=0.0):
    last = reading(seconds, watts * (seconds - gap_s), tuples, gap_s)
    return policy_comparison.Block(arm, reading(), last)


class TestInterval:
    @pytest.mark.parametrize(
        "probability, freedom, expected",
        [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 7, 2.365),
         (0.975, 10, 2.228), (0.975, 30, 2.042), (0.995, 5, 4.032), (0.95, 4, 2.132)],
    )  # fmt: skip
    def test_students_t_is_that_of_the_printed_tables(self, probability, freedom, expected):
        assert policy_comparison.t_quantile(probability, freedom) == pytest.approx(
            expected, abs=5e-4
        )

    @pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 40])
    def test_the_distribution_function_is_the_integral_of_the_density(self, freedom):
        x = np.linspace(0, 2.5, 20_001)
        density = (1 + x * x / freedom) ** (-(freedom + 1) / 2)
        log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
        density *= math.exp(log) / math.sqrt(freedom * math.pi)
        integral = float(((density[1:] + density[:-1]) / 2 * np.diff(x)).sum())
        assert policy_comparison.t_below(2.5, freedom) == pytest.approx(0.5 + integral, abs=1e-8)

    @pytest.mark.parametrize("difference", [0.0, -0.2])
    @pytest.mark.parametrize("quads", [3, 8])
    def test_it_holds_the_truth_in_95_of_100_through_noise_and_drift(self, quads, difference):
        dice = np.random.default_rng([quads, round(-10 * difference)])
        runs, held = 4_000, 0
        slopes = dice.uniform(-0.1, 0.1, runs)
        noise = dice.normal(0, 0.3, (runs, quads, 4))
        place = np.arange(4 * quads).reshape(quads, 4)
        arms = np.array([0.0, difference, difference, 0.0])
        values = 5 + slopes[:, None, None] * place + arms + noise
        for run in values.tolist():
            found = policy_comparison.interval(run)
            held += found.low <= difference <= found.high
        assert 0.95 - 0.0145 < held / runs < 0.95 + 0.0145, "four standard errors of a share"

    def test_without_a_difference_zero_is_told_from_zero_once_in_twenty(self):
        dice = np.random.default_rng(7)
        runs = dice.normal(0, 1, (4_000, 6, 4)).tolist()
        told = [policy_comparison.interval(run).excludes_zero for run in runs]
        assert 0.05 - 0.0145 < np.mean(told) < 0.05 + 0.0145

    @given(FINITE, FINITE, FINITE, st.integers(2, 12))
    def test_a_linear_drift_is_in_neither_arms_favour(self, start, slope, difference, quads):
        arms = (0.0, difference, difference, 0.0)
        values = [[start + slope * (4 * i + k) + arms[k] for k in range(4)] for i in range(quads)]
        found = policy_comparison.interval(values)
        assert found.mean == pytest.approx(difference, abs=1e-9)
        assert found.half_width == pytest.approx(0.0, abs=1e-7)

    def test_the_order_matters_a_a_b_b_would_take_drift_for_a_difference(self):
        values = [[4.0 * i + k for k in (0, 2, 3, 1)] for i in range(4)]
        assert policy_comparison.interval(values).mean == 2.0

    @given(st.lists(st.lists(FINITE, min_size=4, max_size=4), min_size=2, max_size=10))
    def test_exchanging_the_arms_mirrors_it(self, values):
        there = policy_comparison.interval(values)
        back = policy_comparison.interval([[b1, a1, a2, b2] for a1, b1, b2, a2 in values])
        assert back.mean == pytest.approx(-there.mean, abs=1e-9)
        assert back.half_width == pytest.approx(there.half_width, abs=1e-9)

    def test_one_quad_has_no_interval(self):
        assert policy_comparison.interval([[1.0, 2.0, 2.0, 1.0]]) is None


class TestBlocks:
    def test_gaps_are_no_time_and_rates_are_of_all_of_it(self):
        one = block(watts=4.0, seconds=10.0, gap_s=0.5, tuples=2_000_000)
        assert one.joules == pytest.approx(38.0) and one.watts == pytest.approx(4.0)
        assert one.joules_per_mtuple == pytest.approx(4.0 * 10 / 2)

    @pytest.mark.parametrize(
        "bad, reason",
        [(block(gap_s=1.1), "a gap of 1.1 s"), (block(tuples=0), "no tuples"),
         (block(seconds=0.0), "no reading"), (block(watts=-1.0), "restarted")],
    )  # fmt: skip
    def test_a_block_that_does_not_count_takes_its_quad_with_it(self, bad, reason):
        assert reason in bad.problem()
        blocks = [block() for _ in range(12)]
        blocks[6] = bad
        assert len(policy_comparison.quads(blocks)) == 2
        told = policy_comparison.report(blocks, "a", "b", 2.0)
        assert (told["quads"], told["blocks_counted"], told["blocks_excluded"]) == (2, 8, 4)
        assert reason in told["blocks"][6]["excluded"]

    @given(st.integers(0, 40))
    def test_quads_are_complete_and_begin_with_an_a(self, count):
        arms = (policy_comparison.ORDER * 10)[:count]
        found = policy_comparison.quads([block(arm) for arm in arms])
        assert len(found) == count // 4
        assert all("".join(b.arm for b in quad) == "ABBA" for quad in found)

    @given(st.floats(1, 600), st.floats(0, 60), st.none() | st.floats(0.1, 120))
    def test_blocks_fill_the_time_and_no_more(self, minutes, settle_s, block_s):
        try:
            quads, each = policy_comparison.plan(minutes, settle_s, block_s)
        except ConfigError:
            least_s = block_s or max(policy_comparison.BLOCK_S_MIN, 5 * settle_s)
            assert 60 * minutes < 8 * least_s * (1 + 1e-9) or settle_s > least_s / 2
            return
        assert quads >= 2 and settle_s <= each / 2
        assert block_s or settle_s <= each / 5 * (1 + 1e-9)
        assert 4 * quads * each <= 60 * minutes * (1 + 1e-9)
        assert 4 * (quads + 1) * each > 60 * minutes * (1 - 1e-9)

    def test_half_an_hour_is_eight_quads_and_a_minute_is_refused(self):
        assert policy_comparison.plan(30, 2.0) == (8, 56.25)
        with pytest.raises(ConfigError, match=r"too short.*2 minutes"):
            policy_comparison.plan(1, 2.0)

    def test_a_slow_meter_makes_blocks_longer_and_short_ones_are_refused(self):
        assert policy_comparison.plan(60, 35.0) == (5, 180.0), (
            "a battery's gauge, read every ten seconds"
        )
        with pytest.raises(ConfigError, match=r"--block 60 is too short.*35 s.*70 s or more"):
            policy_comparison.plan(60, 35.0, 60.0)

    def test_what_is_not_counted_is_two_beats_of_the_strictest_job_and_the_meters_lag(self):
        jobs = {n: {"promises": {"latency_us": us}} for n, us in (("a", 10**6), ("b", 40_000))}
        answers = {"status": {"jobs": jobs}, "energy": {"lag_us": 1_750_000}}
        assert policy_comparison.settle_s(answers.__getitem__) == pytest.approx(1.83)

    def test_a_daemon_without_a_meter_of_the_input_is_refused(self):
        with pytest.raises(ConfigError, match="no meter"):
            policy_comparison.reading({"at_us": 1, "tuples": 0, "input": None})


class Faked:
    """A daemon whose clock stands but for sleeps."""

    def __init__(self, refuses=None, dies_at=None, origin="command", jobs=()):
        self.now_s, self.asked, self.policy = 0.0, [], "power_cap"
        self.refuses, self.dies_at, self.joules = refuses, dies_at, 0.0
        self.origin, self.jobs = origin, dict.fromkeys(jobs)

    def sleep(self, seconds):
        self.now_s += seconds
        self.joules += seconds * {"slow": 4.0, "fast": 6.0}.get(self.policy, 5.0)

    def ask(self, cmd, **more):
        if self.dies_at is not None and self.now_s >= self.dies_at:
            self.dies_at = None
            raise KeyboardInterrupt
        if cmd == "energy":
            us = round(1e6 * self.now_s)
            return {"at_us": us, "tuples": us, "input": {
                "joules": self.joules, "until_us": us, "gap_us": 0, "provenance": "simulated",
                "covers": "board"}}  # fmt: skip
        was = self.policy
        if "policy" in more:
            assert more["keep"] is False, "a comparison is no choice that outlives a restart"
            self.asked.append((more["policy"], more.get("settings")))
            if more["policy"] != self.refuses:
                self.policy = more["policy"]
        return {
            "policy": "combined" if self.jobs else self.policy,
            "was": was,
            "jobs": self.jobs,
            "settings": {"watts": 5},
            "own": {"policy": self.policy, "settings": {"watts": 5}, "origin": self.origin},
            "problem": "not allowed",
        }


ARMS = {"A": ("slow", {"x": 1}), "B": ("fast", {})}


class TestExperiment:
    def make(self, **more):
        daemon = Faked(**more)
        return daemon, policy_comparison.Experiment(
            daemon.ask, lambda: daemon.now_s, daemon.sleep, ARMS, 2.0
        )

    def test_the_order_is_a_b_b_a_and_what_ran_before_runs_again(self):
        daemon, experiment = self.make()
        experiment.run(2, 10.0, lambda _: None)
        assert [name for name, _ in daemon.asked] == [
            *("slow", "fast", "fast", "slow") * 2, "power_cap",
        ]  # fmt: skip
        assert daemon.asked[0][1] == {"x": 1} and daemon.asked[-1][1] == {"watts": 5}
        assert daemon.now_s == pytest.approx(80.0)
        told = policy_comparison.report(experiment.blocks, "slow", "fast", 2.0)
        watts = told["difference"]["watts"]
        assert (watts["mean"], watts["low"], watts["high"]) == pytest.approx((2.0, 2.0, 2.0))
        assert watts["told_from_zero"] and told["difference"]["joules_per_mtuple"]["mean"] > 0
        assert all(b["seconds"] == pytest.approx(8.0) for b in told["blocks"]), "two s settle"

    def test_a_policy_that_may_not_run_ends_it_with_the_reason_and_the_old_one_back(self):
        daemon, experiment = self.make(refuses="fast")
        with pytest.raises(ConfigError, match="not run fast but slow: not allowed"):
            experiment.run(2, 10.0, lambda _: None)
        assert daemon.policy == "power_cap"

    def test_what_nobody_had_chosen_by_a_command_is_no_commands_choice_afterwards(self):
        daemon, experiment = self.make(origin="configuration")
        experiment.run(2, 10.0, lambda _: None)
        assert daemon.asked[-1] == ("none", None)

    def test_where_jobs_have_a_say_it_is_refused_with_what_to_do(self):
        daemon, experiment = self.make(jobs=["copying"])
        with pytest.raises(ConfigError, match=r"policies of their own: copying .*--job JOB"):
            experiment.run(2, 10.0, lambda _: None)
        assert daemon.policy == "power_cap"

    def test_an_interrupt_leaves_the_blocks_so_far_and_the_old_policy(self):
        daemon, experiment = self.make(dies_at=55.0)
        with pytest.raises(KeyboardInterrupt):
            experiment.run(2, 10.0, lambda _: None)
        assert len(experiment.blocks) == 5 and daemon.policy == "power_cap"
        assert (
            policy_comparison.report(experiment.blocks, "slow", "fast", 2.0)["difference"]["watts"]
            is None
        )


class Passing:
    """The command's clock: time passes where it sleeps, on the board alone."""

    def __init__(self, door):
        self.door, self.now_s = door, 0.0

    def sleep(self, seconds):
        ask(self.door, "pass", timeout_s=120.0, seconds=seconds)
        self.now_s += seconds


def compared(tmp_path, monkeypatch, a_mhz, b_mhz, seed=1):
    """The real command, three minutes of it, against a simulated board whose work is known."""
    door, out = tmp_path / "door", tmp_path / "policy_comparison.json"
    clock = Passing(door)
    monkeypatch.setattr("edged.cli.ab.sleep", clock.sleep)
    monkeypatch.setattr("edged.cli.ab.monotonic", lambda: clock.now_s)
    words = [sys.executable, "-m", "tests.ab_board", door, tmp_path / "board", str(seed)]
    with subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout.readline() == "ready\n"
            words = ["--a", "fixed", "--a-set", f"cpu_mhz={a_mhz}", "--b", "fixed", "--b-set",
                     f"cpu_mhz={b_mhz}", "--door", door, "--json", out,
                     "--minutes", "3"]  # fmt: skip
            done = CliRunner().invoke(command, [*map(str, words)])
            assert done.exit_code == 0, done.output
            assert ask(door, "governor")["policy"] == "hands_off"
        finally:
            host.kill()
    assert clock.now_s == pytest.approx(180.0)
    return json.loads(out.read_text()), done.output


def modelled_watts(mhz):
    """The closed form: the known work at a pinned clock."""
    tariff = ModelTariff(PowerModel(load("orin-nano")))
    hz = round(1e6 * mhz)
    busy = ab_board.CYCLES_PER_S / ab_board.CORES / hz
    race = tariff.race_watts("cpu", hz, ab_board.CORES)
    return tariff.idle_watts + busy * (race - tariff.idle_watts)


class TestSimulatedBoard:
    def test_a_known_difference_is_found_and_told_from_zero(self, tmp_path, monkeypatch):
        result, output = compared(tmp_path, monkeypatch, 1344.0, 729.6)
        truth = modelled_watts(729.6) - modelled_watts(1344.0)
        watts = result["difference"]["watts"]
        assert abs(truth) > 0.1, "or there is nothing to find"
        assert result["quads"] == 3 and result["provenance"] == "simulated"
        assert watts["told_from_zero"] and "cannot be told" not in output
        assert watts["mean"] == pytest.approx(truth, rel=0.02)
        each = result["difference"]["joules_per_mtuple"]
        assert each["mean"] == pytest.approx(watts["mean"] * 1e6 / ab_board.RATE, rel=0.02)
        assert f"{result['blocks_counted']} blocks in {result['quads']} quads" in output

    def test_none_is_not_found(self, tmp_path, monkeypatch):
        result, _ = compared(tmp_path, monkeypatch, 960.0, 960.0, seed=2)
        watts = result["difference"]["watts"]
        assert abs(watts["mean"]) < 0.015
        blocks = [result["blocks"][i : i + 4] for i in range(0, len(result["blocks"]), 4)]
        counted = [[b["watts"] for b in quad] for quad in blocks]
        wide = policy_comparison.interval([quad for quad in counted if None not in quad], 0.9999)
        assert not wide.excludes_zero


@pytest.mark.parametrize(
    "words, says",
    [
        (["--minutes", "nan"], "not a finite number"),
        (["--settle", "inf"], "not a finite number"),
        (["--json", "FILE/a.json"], "--json .*cannot be made"),
    ],
)
def test_what_cannot_be_is_refused_before_the_daemon_is_asked(tmp_path, words, says):
    (tmp_path / "file").write_text("")
    asked = [word.replace("FILE", str(tmp_path / "file")) for word in words]
    done = CliRunner().invoke(command, ["--door", str(tmp_path / "door"), *asked])
    assert done.exit_code != 0 and re.search(says, f"{done.output}{done.exception}")


def test_without_a_door_it_is_the_one_that_the_configuration_tells(tmp_path):
    config = tmp_path / "edged.toml"
    config.write_text(f'[run]\ndoor = "{tmp_path / "there"}"\n')
    done = CliRunner().invoke(command, ["--config", str(config)])
    assert f"no daemon answers at {tmp_path / 'there'}" in str(done.exception)


def test_blocks_that_are_no_whole_quad_are_said_to_be_left_out(capsys):
    result = policy_comparison.report([block(arm) for arm in "ABBAABBAAB"], "slow", "fast", 2.0)
    _show(result, Console(width=120))
    assert "left out: the last 2, which are no whole ABBA" in capsys.readouterr().out


GENERATED = {
    "name": "generated",
    "streams": {
        "r": {
            "source": {"type": "generator", "rate": 4000, "key": "key"},
            "columns": {"key": "int64", "time": "timestamp", "value": "int64"},
            "time": "time",
        }
    },
    "sinks": {"rows": {"type": "pages", "input": "r", "page": "4KiB"}},
    "promises": {"latency": "100ms"},
}
BLOCK_S = 4.0
KHZ = {"A": 1_344_000, "B": 729_600}


class Generating(Daemon):
    """`edged run` with work that is known and an account of what its board truly took."""

    def __init__(self, path):
        path.mkdir()
        super().__init__(
            path, GENERATED, "--board", "simulated:orin-nano", module="tests.ab_daemon"
        )

    def here(self, document):
        return document

    def compared(self, a, b, *more):
        """`edged ab` on two clocks, as a process."""
        words = ["ab", "--a", "fixed", "--a-set", f"cpu_mhz={a / 1e3}", "--b", "fixed", "--b-set",
                 f"cpu_mhz={b / 1e3}", "--door", self.door, "--json", "-", *more]  # fmt: skip
        started = [sys.executable, "-m", "edged", *map(str, words)]
        return subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def truth(self):
        """Watts by the clock that the first cluster was pinned to, kHz; after the end."""
        account = json.loads((self.path / "truth.json").read_text())
        return {stood: 1e6 * joules / us for stood, (us, joules) in account.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A clock against another and one against itself, at the same time: figures, true watts,
    and what runs afterwards; before, one in blocks that are too short."""
    path, ran = tmp_path_factory.mktemp("ab"), {}
    time_s = ["--minutes", 8.1 * BLOCK_S / 60, "--block", BLOCK_S]
    with Generating(path / "two") as two, Generating(path / "one") as one:
        short = one.compared(KHZ["B"], KHZ["B"], "--block", 1.2)
        ran["short"] = short.communicate(timeout=120), short.returncode, ask(one.door, "governor")
        switch(two, "power_cap", watts=6)
        asked = {
            two: two.compared(KHZ["A"], KHZ["B"], *time_s),
            one: one.compared(KHZ["B"], KHZ["B"], *time_s),
        }
        for daemon, process in asked.items():
            told, problem = process.communicate(timeout=120)
            assert process.returncode == 0, problem
            ran[daemon.path.name] = (json.loads(told), ask(daemon.door, "governor"), daemon)
    for name in ("two", "one"):
        told, governor, daemon = ran[name]
        ran[name] = told, governor, daemon.truth()
    return ran


class TestRealDaemon:
    """A real job on a real daemon, whose simulated board tells the truth as well."""

    def wide(self, told):
        """The interval that misses the truth once in a thousand runs."""
        blocks = [told["blocks"][i : i + 4] for i in range(0, len(told["blocks"]), 4)]
        return policy_comparison.interval([[b["watts"] for b in quad] for quad in blocks], 0.999)

    def test_a_known_difference_is_found_and_its_interval_holds_the_truth(self, runs):
        told, _, watts = runs["two"]
        truth = watts["729600-729600"] - watts["1344000-1344000"]
        assert truth < -0.5, "or there is nothing to find"
        found = told["difference"]["watts"]
        assert found["mean"] == pytest.approx(truth, rel=0.05)
        assert found["told_from_zero"]
        assert self.wide(told).low < truth < self.wide(told).high
        for block in told["blocks"]:
            khz = KHZ[block["arm"]]
            assert block["watts"] == pytest.approx(watts[f"{khz}-{khz}"], abs=0.1), (
                "each block has its own arm's power"
            )

    def test_without_a_difference_there_is_none(self, runs):
        told, _, watts = runs["one"]
        assert watts["729600-729600"] > 3.5
        assert abs(told["difference"]["watts"]["mean"]) < 0.03
        assert not self.wide(told).excludes_zero

    def test_the_order_the_times_and_what_is_not_counted(self, runs):
        for told, _, _ in (runs["two"], runs["one"]):
            assert [b["arm"] for b in told["blocks"]] == list("ABBAABBA")
            assert told["settle_s"] == pytest.approx(2 * 0.1 + 3.5 * 0.5), "beats, INA3221"
            assert all(b["excluded"] is None for b in told["blocks"])
            for block in told["blocks"]:
                assert 0.5 < block["seconds"] < BLOCK_S - told["settle_s"] + 0.75
            assert told["provenance"] == "simulated" and told["covers"]

    def test_the_job_goes_on_under_the_policy_that_ran_before(self, runs):
        assert [(runs[n][1]["policy"], runs[n][1]["settings"]) for n in ("two", "one")] == [
            ("power_cap", {"watts": 6}), ("hands_off", {}),
        ]  # fmt: skip
        told, _, _ = runs["two"]
        rate = sum(b["tuples"] for b in told["blocks"]) / sum(b["seconds"] for b in told["blocks"])
        assert rate == pytest.approx(4000, rel=0.2)

    def test_blocks_shorter_than_the_meter_needs_are_refused_and_nothing_is_switched(self, runs):
        (_, problem), code, governor = runs["short"]
        assert code == 78
        assert "--block 1.2 is too short" in problem and "3.9 s or more" in problem
        assert governor["policy"] == "hands_off"
