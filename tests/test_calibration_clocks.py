"""Calibration over clocks finds what the model says, keeps its bounds, and gives clocks back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.calibration import operating_points, site, workloads
from edged.calibration.join_kernels import with_calibration
from edged.calibration.operating_points import CalibrationLimits, OppCalibration, Site
from edged.calibration.plot import outline
from edged.calibration.power_meters import hottest
from edged.calibration.site import UNITS, WINDOW, Asked, calibrate_board
from edged.calibration.workloads import SimulatedBench, VirtualClock
from edged.cli import cli
from edged.errors import ConfigError
from edged.joins.base import load_joins
from edged.placement import profile
from edged.placement.placement import KernelProfile
from governors.actuators.base import discover
from governors.actuators.ownership import Ownership
from governors.actuators.writers import Direct
from governors.board_tariffs import ModelTariff
from governors.detect import detect
from governors.energy import Provenance
from governors.errors import TakenOver
from governors.health import THERMAL
from governors.meters.base import survey
from governors.meters.sampler import Sampler
from governors.meters.settings import MeterSettings
from governors.power import BoardLoad, PowerModel
from governors.profile_reader import load
from governors.simulated.board import from_name
from tests.governors.trees import CPU, plant

POLICY = f"{CPU}/cpufreq/policy0"
NANO_CORES = 4


class Bench:
    """A simulated board and all that calibrates it, in virtual time."""

    def __init__(self, directory: Path, name: str = "jetson-nano") -> None:
        self.clock = VirtualClock()
        self.board = from_name(f"simulated:{name}", directory / "board", self.clock)
        sysfs = self.board.sysfs
        found = survey(sysfs, detect(sysfs), MeterSettings(provenance=Provenance.SIMULATED))
        self.knobs = tuple(k for k in discover(sysfs, detect(sysfs)) if k.kind == "cpu")
        self.site = Site(
            sysfs, self.knobs, Sampler(found.meters, cpu_us=lambda: 0.0),
            ModelTariff(self.board.model), True,
        )  # fmt: skip
        self.bench = SimulatedBench(self.board, self.clock, WINDOW, UNITS)
        self.journal = directory / "state" / "limits.journal"
        self.before = self.limits()

    def limits(self):
        return {p: self.board.sysfs.read(p) for k in self.knobs for p in k.files().values()}

    def run(self, seconds=60.0, celsius_max=85.0, say=lambda *_: None):
        writer = Direct(self.board.sysfs)
        with Ownership(self.board.sysfs, writer, self.journal, self.knobs) as ours:
            made = OppCalibration(self.site, ours, CalibrationLimits(seconds, celsius_max), say)
            return made.run(self.bench), made.notes


def asked(board, directory, seconds=1.0):
    chain = load_joins()["chain"]
    return Asked(
        str(board), directory / "state" / "limits.journal", directory / "no.sock", [chain], 1,
        CalibrationLimits(seconds, 85.0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    """Every clock of the simulated Nano."""
    return calibrate_board(
        asked("simulated:jetson-nano", tmp_path_factory.mktemp("a"), seconds=150)
    )


def nano_us(hz):
    """A beat by the published law, worked out by hand: 430 kilocycles, 34 cycles a tuple on four
    cores, both 8/3 on a Cortex-A57; 100 000 tuples behind 2 MB of cache wait as 1.6 M behind 32."""
    return 8 / 3 * (430e3 + 34 * UNITS / NANO_CORES) / hz * 1e6 + 11.4e-3 * UNITS / NANO_CORES


def nano_joules(hz):
    """Above idle, of a beat, by the power model."""
    profile = load("jetson-nano")
    model = PowerModel(profile)
    total, longest = 430e3 + 34 * UNITS, 430e3 + 34 * UNITS / NANO_CORES
    racing = BoardLoad((hz,), (total / longest,), 1.0, 0.0, 0, 0.0, 0.0, 1_600_000_000, 0.0)
    return (model.input_watts(racing) - model.idle_watts()) * nano_us(hz) / 1e6


# --- what is found


def test_the_time_of_a_beat_is_the_law_at_every_clock(nano):
    points = nano.kernels["chain"].curve.points
    assert tuple(p.hz for p in points) == load("jetson-nano").clusters[0].table_hz
    for p in points:
        assert p.us == pytest.approx(nano_us(p.hz), rel=2e-3)


def test_the_optimum_is_that_of_the_model_and_not_the_highest_clock(nano):
    best = nano.optimum("chain").best
    clocks = [p.hz for p in nano.kernels["chain"].curve.points]
    least = min(map(nano_joules, clocks))
    assert best.hz is not None and best.hz < clocks[-1]
    assert nano_joules(best.hz) < 1.01 * least < nano_joules(clocks[-1])


def test_watts_are_told_to_within_the_sensors_steps(nano):
    curve = nano.kernels["chain"].curve
    step_w = next(float(n.split()[5]) for n in nano.notes if "the meter's step is" in n)
    for p in curve.points:
        above = 1e6 * nano_joules(p.hz) / nano_us(p.hz)
        assert p.watts - curve.idle_watts == pytest.approx(above, abs=1.5 * step_w)
    assert curve.watts_from is Provenance.SIMULATED
    assert nano.simulated and nano.meter.startswith("POM_5V_IN")


def test_leaving_it_is_a_candidate_and_the_answer_where_a_race_is_short(tmp_path):
    orin = calibrate_board(asked("simulated:orin-nano", tmp_path, seconds=45))
    ways = orin.optimum("chain").candidates
    assert ways[0].hz is None and len(ways) > 3
    assert orin.write_us == 300.0  # the profile's, of tegra194
    assert orin.optimum("chain", 1_000).best.hz is None
    assert orin.optimum("chain", 100_000_000).best.hz is not None
    pays = orin.pays_from("chain")
    assert orin.optimum("chain", pays // 2).best.hz is None
    assert any("leave it" in line for line in outline(orin))


def test_placement_gets_the_watts_of_a_busy_core_and_from_where(nano):
    empty = KernelProfile(4, {}, {})
    found = with_calibration(empty, nano)
    best, kernel = nano.optimum("chain").best, nano.kernels["chain"]
    assert found.watts["cpu"] == (best.watts - kernel.curve.idle_watts) / kernel.cores
    assert found.watts_from == {"cpu": "simulated"}
    assert KernelProfile.decode(found.encode(), "") == found
    told = KernelProfile(4, {}, {"cpu": 2.0})
    assert with_calibration(told, nano) == told


# --- bounds


def test_fewer_clocks_are_measured_where_the_time_is_short(tmp_path):
    bench = Bench(tmp_path)
    kernel, notes = bench.run(seconds=40.0)
    clocks = [p.hz for p in kernel.curve.points]
    table = load("jetson-nano").clusters[0].table_hz
    assert 2 <= len(clocks) < len(table)
    assert (clocks[0], clocks[-1]) == (table[0], table[-1])
    assert bench.clock.now_us < 1.05 * 40e6
    assert any("--minutes" in note for note in notes)


def test_a_time_that_cannot_be_kept_is_refused_before_a_clock_is_set(tmp_path, monkeypatch):
    bench, pinned = Bench(tmp_path), []
    monkeypatch.setattr(Ownership, "pin", lambda *words: pinned.append(words))
    with pytest.raises(ConfigError, match=r"--minutes: chain gets 37 s and needs at least 37.5 s"):
        bench.run(seconds=37.0)
    assert not pinned and bench.clock.now_us == 0


class Heats(SimulatedBench):
    """Cools for a minute where it is pinned to the second clock or above, once."""

    def __init__(self, *words):
        super().__init__(*words)
        self.cooled_us = 0

    def burst(self, beats):
        if not self.cooled_us and self._board.sysfs.read(f"{POLICY}/scaling_min_freq") != "102000":
            self.cooled_us = self.now_us() + 60_000_000
        return super().burst(beats)


def test_clocks_are_left_out_where_cooling_took_their_time(tmp_path, monkeypatch):
    bench = Bench(tmp_path)
    bench.bench = Heats(bench.board, bench.clock, WINDOW, UNITS)
    heat = lambda *_: ("CPU-therm", 90.0 if bench.clock.now_us < bench.bench.cooled_us else 30.0)  # noqa: E731
    monkeypatch.setattr(operating_points, "hottest", heat)
    kernel, notes = bench.run(seconds=120.0)
    table = load("jetson-nano").clusters[0].table_hz
    assert 1 <= len(kernel.curve.points) < len(table) / 2
    assert bench.clock.now_us < 1.05 * 120e6
    assert any("cooling used up the time" in note for note in notes)
    assert bench.limits() == bench.before


class Feels(SimulatedBench):
    """Knows how hot it was after each burst."""

    hot: tuple[float, ...] = ()

    def burst(self, beats):
        found = super().burst(beats)
        self.hot += (self._board.sysfs.read_int(f"{THERMAL}/thermal_zone0/temp") / 1000,)
        return found


def test_it_never_gets_hotter_than_allowed_and_cools_at_the_clocks_that_were(tmp_path, monkeypatch):
    monkeypatch.setattr(operating_points, "POINT_S", 1.0)
    monkeypatch.setattr(operating_points, "INTERVALS", 2)
    monkeypatch.setattr(operating_points, "COOLER", 2.0)
    bench, cooling = Bench(tmp_path), []
    bench.bench = Feels(bench.board, bench.clock, WINDOW, UNITS)

    def say(text, _):
        if "cooling" in text:
            cooling.append(bench.limits())

    kernel, _ = bench.run(seconds=1_000.0, celsius_max=37.0, say=say)
    assert len(kernel.curve.points) == len(load("jetson-nano").clusters[0].table_hz)
    assert cooling and all(limits == bench.before for limits in cooling)
    assert 36.5 < max(bench.bench.hot[4:]) < 37.5
    assert bench.limits() == bench.before


def test_what_does_not_cool_is_given_up_with_a_reason(tmp_path):
    bench = Bench(tmp_path)
    with pytest.raises(ConfigError, match=r"did not cool to 26 °C in time.*--celsius-max"):
        bench.run(celsius_max=31.0)
    assert bench.limits() == bench.before
    assert not bench.journal.exists()


def test_zones_that_lie_or_tell_nothing_are_not_believed(tmp_path):
    sysfs = plant(tmp_path, "jetson-nano-r32")
    zones = {
        sysfs.read(f"/sys/class/thermal/{z}/type"): z for z in sysfs.list("/sys/class/thermal")
    }
    assert sysfs.read_int(f"/sys/class/thermal/{zones['PMIC-Die']}/temp") >= 50_000
    name, celsius = hottest(sysfs)
    assert name != "PMIC-Die" and celsius < 50
    assert hottest(plant(tmp_path / "x", "no-control")) is None


# --- clocks are given back


class Breaks(SimulatedBench):
    """Fails at a pinned clock."""

    def burst(self, beats):
        policy = [self._board.sysfs.read(f"{POLICY}/scaling_{n}_freq") for n in ("min", "max")]
        if policy[0] == policy[1]:
            raise MemoryError("no memory")
        return super().burst(beats)


def test_an_exception_in_a_kernel_leaves_the_clocks_as_they_were(tmp_path):
    bench = Bench(tmp_path)
    bench.bench = Breaks(bench.board, bench.clock, WINDOW, UNITS)
    with pytest.raises(MemoryError):
        bench.run()
    assert bench.limits() == bench.before


def test_limits_that_somebody_else_sets_meanwhile_end_it_and_stay(tmp_path):
    bench, done = Bench(tmp_path), []

    def say(text, _):
        if "MHz" in text and len(done) < 2:
            done.append(text)
            if len(done) == 2:
                bench.board.nvpmodel("5W")

    with pytest.raises(TakenOver, match="another process changed it"):
        bench.run(say=say)
    assert bench.board.sysfs.read(f"{POLICY}/scaling_max_freq") == "918000"


HOLDS = """
import sys
from pathlib import Path
from edged.calibration import site
from edged.calibration.operating_points import CalibrationLimits
from edged.cli.calibrate import ending_in_order
from edged.joins.base import load_joins
root, journal = sys.argv[1], Path(sys.argv[2])
site.WINDOW = 1000
with ending_in_order():
    site.calibrate_board(site.Asked(
        root, journal, journal, [load_joins()["chain"]], 1, CalibrationLimits(60.0, 85.0)))
"""


def pinned_and_then(tmp_path, number):
    """A calibration of a Raspberry Pi's tree that is ended by a signal while it holds a clock."""
    root, journal = tmp_path / "board", tmp_path / "limits.journal"
    sysfs = plant(root, "raspberry-pi-5")
    paths = [f"{POLICY}/scaling_{n}_freq" for n in ("min", "max")]
    before = [sysfs.read(path) for path in paths]
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(root), str(journal)]) as process:
        ends = time.monotonic() + 60
        while (held := [sysfs.read(path) for path in paths]) == before or held[0] != held[1]:
            assert process.poll() is None and time.monotonic() < ends, "it never set a clock"
            time.sleep(0.01)
        os.kill(process.pid, number)
        code = process.wait()
    return sysfs, paths, before, code


def test_a_terminated_calibration_gives_its_clocks_back(tmp_path):
    sysfs, paths, before, code = pinned_and_then(tmp_path, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert [sysfs.read(path) for path in paths] == before
    assert not (tmp_path / "limits.journal").exists()


def test_the_restore_command_gives_back_what_a_killed_calibration_held(tmp_path):
    sysfs, paths, before, _ = pinned_and_then(tmp_path, signal.SIGKILL)
    assert [sysfs.read(path) for path in paths] != before
    journal = tmp_path / "limits.journal"
    words = ["governor", "restore", "--root", str(sysfs.root), "--journal", str(journal)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert [sysfs.read(path) for path in paths] == before


# --- boards that give less


@pytest.fixture
def quick(monkeypatch):
    """Short points and small windows, for kernels that really run."""
    monkeypatch.setattr(operating_points, "POINT_NO_METER_S", 0.05)
    monkeypatch.setattr(site, "WINDOW", 1_000)


def test_a_throttled_clock_is_left_out(tmp_path, quick):
    root = tmp_path / "board"
    sysfs = plant(root, "raspberry-pi-5")
    (root / f"{POLICY.lstrip('/')}/scaling_cur_freq").write_text("1000000\n")
    found = calibrate_board(asked(root, tmp_path, 2.5))
    assert [p.hz for p in found.kernels["chain"].curve.points] == [1_000_000_000]
    assert any("2400 MHz: ran at 1000 MHz, left out" in note for note in found.notes)
    assert found.kernels["chain"].curve.watts_from is Provenance.MODELLED
    assert any("power is modelled" in note for note in found.notes)
    assert sysfs.read(f"{POLICY}/scaling_max_freq") == "2400000"


def test_without_the_right_to_write_it_is_the_one_clock_and_says_why(tmp_path, quick):
    board = from_name("simulated:raspberry-pi-5", tmp_path / "board")
    board.fault("*/scaling_*_freq", "EACCES", "w")
    found = calibrate_board(asked(tmp_path / "board", tmp_path))
    assert found.optimum("chain").best.hz is None
    assert len(found.kernels["chain"].curve.points) == 1
    assert any("no right to write" in note for note in found.notes)


def test_no_control_at_all_is_named_and_leaving_it_is_what_remains(tmp_path, quick):
    root = tmp_path / "board"
    plant(root, "no-control")
    found = calibrate_board(replace(asked(root, tmp_path), power_model="generic-x86"))
    assert found.optimum("chain").best.hz is None and found.pays_from("chain") is None
    assert any("this board has nothing that can be set" in note for note in found.notes)
    words = ["calibrate", "--store", str(tmp_path / "s"), "--board", "none", "--plot", "x.png"]
    told = CliRunner().invoke(cli, words)
    assert isinstance(told.exception, ConfigError) and "--plot" in str(told.exception)


def test_power_that_neither_a_meter_nor_a_profile_tells_is_not_made_up(tmp_path, quick):
    root = tmp_path / "board"
    plant(root, "no-control")
    (root / "proc/cpuinfo").write_text("processor : 0\ncpu MHz : 1000.0\n")
    with pytest.raises(ConfigError, match="no profile models it"):
        calibrate_board(asked(root, tmp_path))


def test_a_board_name_that_is_none_is_refused(tmp_path):
    words = ["calibrate", "--store", str(tmp_path), "--board", "orin-nano"]
    told = CliRunner().invoke(cli, words)
    assert "did you mean simulated:orin-nano?" in str(told.exception)


# --- the file


def test_what_is_kept_is_read_again(nano, tmp_path):
    assert profile.load_energy(tmp_path) is None and profile.load_curve(tmp_path) is None
    profile.save_energy(nano, tmp_path)
    assert profile.load_energy(tmp_path) == nano
    curve = nano.kernels["chain"].curve
    assert profile.load_curve(tmp_path) == curve == profile.load_curve(tmp_path, "bucket")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2), ("simulated", "no"), ("window", 0), ("write_us", -1.0), ("kernels", {}),
        ("kernels", {"chain": {"cores": 0, "curve": {}}}), ("kernels", [1]), ("colour", "red"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_named_with_the_fault(nano, tmp_path, key, value):
    document = {**json.loads(nano.encode()), key: value}
    (tmp_path / profile.ENERGY_FILE).write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"energy\.json.*run it again"):
        profile.load_energy(tmp_path)


def test_the_command_keeps_both_files_and_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("edged.calibration.join_kernels.POINT_S", 0.002)
    words = [
        "calibrate", "--store", str(tmp_path), "--board", "simulated:orin-nano", "--kernel",
        "chain", "--minutes", "0.7", "--plot", str(tmp_path / "curve.png"), "--json",
    ]  # fmt: skip
    told = CliRunner().invoke(cli, words, catch_exceptions=False)
    document = json.loads(told.stdout)
    assert document["energy"]["simulated"] is True
    assert document["watts_from"] == {"cpu": "simulated"}
    assert profile.load_profile(tmp_path).watts == document["watts"]
    assert profile.load_energy(tmp_path).board == "orin-nano"
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_a_real_bench_runs_the_kernel_and_knows_the_time():
    with closing(workloads.RealBench(load_joins()["chain"], 1_000, 2_000, 1)) as bench:
        before = bench.now_us()
        found = bench.burst(40)
        assert 0 < found.us <= bench.now_us() - before
        assert found.cpu_us >= found.us
