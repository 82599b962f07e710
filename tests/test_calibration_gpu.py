"""Calibration over a GPU's clocks: results, ownership of the clocks, and notes.

The machine has no GPU. Kernels run in numba's CUDA simulator (in a separate process), or a
simulated board charges the cost of its data sheet. Both are marked in the stored result.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.calibration import site, workloads
from edged.calibration.join_kernels import of_board, runnable, with_calibration
from edged.calibration.operating_points import CalibrationLimits, settable
from edged.calibration.plot import draw, outline
from edged.calibration.power_meters import Watts, clock_hz, discrete_gpu_rails, hottest
from edged.calibration.site import UNITS, Asked, calibrate_board
from edged.cli import cli
from edged.energy.tariffs import calibrated_tariff
from edged.joins.base import load_joins
from edged.placement import profile
from edged.placement.placement import Curve, KernelProfile
from edged.simulate import gpu as on_gpu
from governors.actuators import nvml
from governors.actuators.base import discover
from governors.board_tariffs import ModelTariff
from governors.detect import detect
from governors.energy import Provenance
from governors.errors import TakenOver
from governors.meters.nvml import look
from governors.meters.sampler import Sampler
from governors.power import PowerModel
from governors.profile_reader import load
from governors.simulated.board import from_name
from kernels.cuda import gpu
from tests.governors.test_meters_nvml import Library
from tests.governors.trees import plant

ORIN = load("orin-nano")
NODE = "/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu"
GPU_25W = tuple(hz for hz in (opp.hz for opp in ORIN.gpu.opps) if hz <= 918_000_000)


def asked(board, directory, *kernels, seconds=60.0):
    joins = load_joins()
    return Asked(
        str(board), directory / "state" / "limits.journal", directory / "no.sock",
        [joins[name] for name in kernels], 1, CalibrationLimits(seconds, 85.0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def orin(tmp_path_factory):
    """CPU and GPU of the simulated Orin Nano, and what was said meanwhile."""
    directory, said = tmp_path_factory.mktemp("orin"), []
    found = calibrate_board(
        asked("simulated:orin-nano", directory, "chain", "chain-cuda", seconds=184.0),
        lambda text, part: said.append((text, part)),
    )
    return found, said


def gpu_us(hz):
    """A beat by the data sheet, worked out by hand: 280 bytes a row at 102.4 GB/s, 16 accesses of
    500 cycles over 8 x 1024 threads."""
    return UNITS * (280 / 102.4e3 + 1e6 * 16 * 500 / (8 * 1024) / hz)


# --- what is found


def test_every_clock_of_the_gpu_that_the_mode_allows_has_a_row(orin):
    curve = orin[0].kernels["chain-cuda"].curve
    assert curve.knob == "gpu"
    assert tuple(p.hz for p in curve.points) == GPU_25W


def test_a_beat_gets_shorter_with_the_gpus_clock_as_far_as_memory_lets_it(orin):
    points = orin[0].kernels["chain-cuda"].curve.points
    for slow, fast in itertools.pairwise(points):
        assert slow.us - fast.us == pytest.approx(gpu_us(slow.hz) - gpu_us(fast.hz), rel=0.05)
    launches_us = [p.us - gpu_us(p.hz) for p in points]
    assert min(launches_us) > 1_000 and max(launches_us) < 4_000  # 1.6 M cycles of the CPU
    assert orin[0].kernels["chain-cuda"].curve.memory_bound() > 0.5


def test_watts_are_those_of_a_busy_gpu_a_core_that_waits_and_the_board(orin):
    """By the profile: 5 W/GHz, 0.57 W powered, and what CPU and memory draw beside it."""
    curve = orin[0].kernels["chain-cuda"].curve
    for p in curve.points:
        share = gpu_us(p.hz) / p.us  # the rest is launches, without the GPU's part
        least = share * 5.0 * p.hz / 1e9 + 0.57
        assert least - 0.1 < p.watts - curve.idle_watts < least + 4.0
    rises = [b.watts - a.watts for a, b in itertools.pairwise(curve.points)]
    assert all(0.1 < more < 5.0 * 0.102 + 0.1 for more in rises)
    assert curve.watts_from is Provenance.SIMULATED


def test_what_was_simulated_or_modelled_says_so(orin):
    found = orin[0]
    assert found.simulated and found.kernels["chain-cuda"].times_from is Provenance.SIMULATED
    assert any("chain-cuda: its times are modelled" in note for note in found.notes)
    assert any("no GPU has run these kernels" in line for line in outline(found))


def test_progress_rises_over_all_kernels_and_names_them(orin):
    parts = [part for _, part in orin[1]]
    assert parts == sorted(parts) and parts[0] == 0.0 and 0.9 < parts[-1] <= 1.0
    told = [text for text, _ in orin[1]]
    assert "chain: left alone" in told and "chain-cuda: 918 MHz" in told


def test_all_kernels_together_take_the_time_that_one_may(tmp_path):
    said = []
    calibrate_board(
        asked("simulated:orin-nano", tmp_path, "chain", "chain-cuda", seconds=90.0),
        lambda text, _: said.append(text),
    )
    clocks = [text for text in said if text.endswith("MHz")]
    assert {text.partition(":")[0] for text in clocks} == {"chain", "chain-cuda"}
    assert len(clocks) < 9 + len(GPU_25W)


# --- ownership of the clocks


def limits_of(sysfs):
    """Of the GPU."""
    return [sysfs.read(f"{NODE}/{n}_freq") for n in ("min", "max")]


class Watched(workloads.SimulatedGpuBench):
    """Notes limits at each burst; `board` is it."""

    limits = board = None

    def burst(self, beats):
        sysfs = self._board.sysfs
        type(self).board = self._board
        type(self).limits.append(limits_of(sysfs))
        cpu = "/sys/devices/system/cpu/cpufreq/policy0/scaling_{}_freq"
        assert sysfs.read(cpu.format("min")) != sysfs.read(cpu.format("max")), "left to schedutil"
        return super().burst(beats)


def test_the_gpu_is_pinned_by_min_and_max_and_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(Watched, "limits", [])
    monkeypatch.setattr(site, "SimulatedGpuBench", Watched)
    rests = []

    def say(text, _):
        if "idle again" in text:
            rests.append(limits_of(Watched.board.sysfs))

    calibrate_board(asked("simulated:orin-nano", tmp_path, "chain-cuda"), say)
    pinned = {low for low, high in Watched.limits if low == high}
    assert {int(hz) for hz in pinned} <= {*GPU_25W} and len(pinned) > 2
    before = ["306000000", "918000000"]
    assert Watched.limits[0] == before and rests == [before]


class Breaks(workloads.SimulatedGpuBench):
    """Fails while a clock of the GPU is pinned; `board` is it."""

    board = None

    def burst(self, beats):
        type(self).board = self._board
        low, high = limits_of(self._board.sysfs)
        if low == high:
            self.fail()
        return super().burst(beats)

    def fail(self):
        raise MemoryError("no memory")


class Overruled(Breaks):
    """nvpmodel changes the GPU's limits meanwhile."""

    def fail(self):
        self._board.nvpmodel("15W")


@pytest.mark.parametrize(
    "bench, problem, left",
    [(Breaks, MemoryError, 918_000_000), (Overruled, TakenOver, 612_000_000)],
)
def test_on_every_way_out_the_gpus_limits_are_what_stood_there(
    tmp_path, monkeypatch, bench, problem, left
):
    kept = []
    monkeypatch.setattr(site, "SimulatedGpuBench", bench)
    inner = site.Ownership

    class Ownership(inner):
        def release(self):
            found = super().release()
            kept.append(limits_of(bench.board.sysfs))
            return found

    monkeypatch.setattr(site, "Ownership", Ownership)
    with pytest.raises(problem):
        calibrate_board(asked("simulated:orin-nano", tmp_path, "chain-cuda"))
    assert kept == [["306000000", str(left)]]


def test_a_gpu_that_may_not_be_set_is_calibrated_at_the_one_clock_there_is(tmp_path):
    board = from_name("simulated:orin-nano", tmp_path / "board")
    knobs = discover(board.sysfs, detect(board.sysfs))
    mine = tuple(k for k in knobs if k.name == "gpu")

    class Refuses:
        refused, dormant = {"gpu": "no right"}, {}

    assert settable(Refuses(), mine) == (None, mine)
    assert settable(None, mine) == (None, mine)


# --- real kernels, in the simulator of CUDA

RUNS = """
import json, sys
from pathlib import Path
from tests.joins.simulator import quicken
quicken()
from edged.calibration import operating_points
from edged.calibration import site
from edged.joins.base import load_joins
from edged.calibration.join_kernels import calibrate, of_board
from governors.simulated.kernel import open_root
site.WINDOW, site.UNITS = 40, 16
operating_points.POINT_NO_METER_S = 0.01
root, directory = sys.argv[1], Path(sys.argv[2])
member = load_joins()["chain-cuda"]
ran, join = [], member.join
def counted(self, *words):
    found = join(self, *words)
    ran.append(open_root(root).read(sys.argv[3] + "/cur_freq"))
    return found
member.join = counted
energy = site.calibrate_board(site.Asked(
    root, directory / "j", directory / "h", [member], 1,
    operating_points.CalibrationLimits(1.2, 85.0)))
beside = of_board(calibrate([member], 1, {}, (40,), (16, 32)), open_root(root))
print(json.dumps([json.loads(energy.encode()), json.loads(beside.encode()), sorted(set(ran))]))
"""


@pytest.mark.skipif(not gpu.INSTALLED, reason="numba-cuda is not installed: make cuda")
def test_the_kernels_themselves_run_at_each_clock_of_the_gpu(tmp_path):
    """A tree of an Orin Nano without sensors, real processes, real writes to devfreq."""
    board = from_name("simulated:orin-nano", tmp_path / "board")
    for name in board.sysfs.list("/sys/bus/i2c/drivers/ina3221"):
        (tmp_path / "board/sys/bus/i2c/drivers/ina3221" / name).unlink()
    run = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path / "board"), str(tmp_path), NODE],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, cwd=Path(__file__).parents[1],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    energy, beside, ran = json.loads(run.stdout)
    kernel = energy["kernels"]["chain-cuda"]
    clocks = [p["hz"] for p in kernel["curve"]["points"]]
    assert len(clocks) >= 2 and {*clocks} <= {*GPU_25W}
    assert {*map(str, clocks)} <= {*ran}, "the kernel ran while the clock stood there"
    assert kernel["times_from"] == "simulated" and kernel["device"] == "cuda"
    assert any("numba's CUDA simulator" in note for note in energy["notes"])
    assert any("power is modelled" in note for note in energy["notes"])
    assert beside["kernels"]["chain-cuda"]["times_from"] == "simulated"
    assert (beside["board"], beside["clocks"]["cuda"]) == ("orin-nano", 918_000_000)
    assert limits_of(board.sysfs) == ["306000000", "918000000"], "given back"


# --- where there is no CUDA


def test_without_cuda_the_kernels_of_a_gpu_are_named_and_the_cpu_is_calibrated(monkeypatch):
    joins = load_joins()
    monkeypatch.setattr(gpu, "INSTALLED", False)
    here, left_out = runnable([joins["chain"], joins["chain-cuda"]])
    assert [m.name for m in here] == ["chain"]
    assert "chain-cuda is left out" in left_out[0] and "numba-cuda" in left_out[0]


def test_the_command_says_so_too(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "INSTALLED", False)
    monkeypatch.setattr("edged.calibration.join_kernels.POINT_S", 0.002)
    words = ["calibrate", "--store", str(tmp_path), "--board", "none"]
    told = CliRunner().invoke(cli, [*words, "--kernel", "chain", "--kernel", "chain-cuda"])
    assert told.exit_code == 0, told.output
    assert "chain-cuda is left out" in told.stderr
    assert set(profile.load_profile(tmp_path).kernels) == {"chain"}


# --- the stored result and its readers


def test_the_profile_gets_rows_of_the_gpu_and_they_are_read_again(orin, tmp_path):
    profile.save_energy(orin[0], tmp_path)
    again = profile.load_energy(tmp_path)
    assert again == orin[0]
    assert again.of_device("cuda") == orin[0].kernels["chain-cuda"]
    assert profile.load_curve(tmp_path, "bucket") == orin[0].kernels["chain"].curve
    document = json.loads(orin[0].encode())
    document["kernels"]["chain-cuda"]["device"] = "tpu"
    (tmp_path / profile.ENERGY_FILE).write_text(json.dumps(document))
    with pytest.raises(Exception, match="tpu"):
        profile.load_energy(tmp_path)


def test_a_file_of_before_gpus_were_calibrated_is_still_read(orin, tmp_path):
    document = json.loads(orin[0].encode())
    del document["kernels"]["chain-cuda"]
    for key in ("device", "times_from", "write_us"):
        del document["kernels"]["chain"][key]
    (tmp_path / profile.ENERGY_FILE).write_text(json.dumps(document))
    assert profile.load_energy(tmp_path).kernels["chain"].device == "cpu"


def test_a_daemon_there_prices_races_on_the_gpu_by_what_was_measured(orin):
    modelled = ModelTariff(PowerModel(ORIN))
    tariff = calibrated_tariff(modelled, orin[0])
    for p in orin[0].kernels["chain-cuda"].curve.points:
        assert tariff.race_watts("gpu", p.hz, 1.0) == pytest.approx(
            p.watts + tariff.idle_watts - orin[0].kernels["chain-cuda"].curve.idle_watts
        )
    assert tariff.race_watts("gpu", 306_000_000, 1.0) != modelled.race_watts("gpu", 306_000_000, 1)


def test_placement_gets_the_watts_of_a_busy_gpu_without_those_of_the_core_that_waits(orin):
    axes = ((1_000,), (16, 32))
    curves = {
        name: Curve(device, *axes, ((5.0, 9.0),), ((5.0, 9.0),), 0.1)
        for name, device in (("chain", "cpu"), ("chain-cuda", "cuda"))
    }
    found = with_calibration(KernelProfile(6, curves), orin[0])
    best, curve = orin[0].optimum("chain-cuda").best, orin[0].kernels["chain-cuda"].curve
    both = found.watts["cuda"] + found.watts["cpu"] * orin[0].kernels["chain-cuda"].cores
    assert both == pytest.approx(best.watts - curve.idle_watts)
    assert found.watts_from == {"cpu": "simulated", "cuda": "simulated"}
    assert found.kernels["chain-cuda"].stalled == pytest.approx(curve.memory_bound())
    assert KernelProfile.decode(found.encode(), "") == found


def test_the_curve_of_a_gpu_is_drawn_in_a_row_of_its_own(orin, tmp_path):
    draw(orin[0], tmp_path / "both.png")
    alone = replace(orin[0], kernels={"chain": orin[0].kernels["chain"]})
    draw(alone, tmp_path / "cpu.png")
    heights = []
    for name in ("cpu.png", "both.png"):
        data = (tmp_path / name).read_bytes()
        heights.append(int.from_bytes(data[20:24], "big"))
    assert heights[1] > 1.8 * heights[0]


def test_the_command_keeps_rows_of_a_simulated_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr("edged.calibration.join_kernels.POINT_S", 0.002)
    words = ["calibrate", "--store", str(tmp_path), "--board", "simulated:orin-nano", "--json"]
    words += ["--kernel", "chain", "--kernel", "chain-cuda", "--minutes", "1.3"]
    told = CliRunner().invoke(cli, words, catch_exceptions=False)
    document = json.loads(told.stdout)
    assert document["board"] == "orin-nano"
    assert document["clocks"] == {"cpu": 1_344_000_000, "cuda": 918_000_000}
    row = document["kernels"]["chain-cuda"]
    assert row["times_from"] == "simulated"
    law = on_gpu.cost(ORIN, "chain-cuda")
    assert row["us"][0][-1] == pytest.approx(
        law.host.us(0, 1_344_000_000) + law.us(row["rows"][-1], 918_000_000)
    )
    assert document["energy"]["kernels"]["chain-cuda"]["device"] == "cuda"


def test_whose_times_and_of_which_clocks_is_told_of_a_board(tmp_path):
    sysfs = plant(tmp_path, "orin-nano-r36")
    found = of_board(KernelProfile(1, {}), sysfs)
    assert (found.board, found.clocks["cuda"]) == ("orin-nano", 918_000_000)
    assert found.clocks["cpu"] == 1000 * int(
        sysfs.read("/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq")
    )


# --- a GPU that is a device of its own


class Card(Library):
    """A card at 1500 MHz and 71 °C that can be locked."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_GRAPHICS = 0, 0

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return 0

    def nvmlDeviceGetUUID(self, handle):
        return "GPU-1"

    def nvmlDeviceGetTemperature(self, handle, which):
        return 71

    def nvmlDeviceGetClockInfo(self, handle, which):
        return 1500

    def nvmlDeviceGetSupportedMemoryClocks(self, handle):
        return [5000]

    def nvmlDeviceGetSupportedGraphicsClocks(self, handle, memory):
        return [300, 900, 1500]


@pytest.fixture
def card(monkeypatch):
    """The knob of such a card."""
    library = Card(energy_mj=5_000, power_mw=20_000)
    monkeypatch.setattr(nvml, "_library", lambda: library)
    return library, nvml._knob(library, 0, 0)


def test_the_clock_and_the_heat_of_a_card_are_asked_of_nvml(card, tmp_path):
    sysfs = plant(tmp_path, "no-control")
    assert clock_hz(sysfs, card[1]) == 1_500_000_000
    assert hottest(sysfs, (card[1],)) == ("gpu.nvml0", 71.0)
    card[0].nvmlDeviceGetTemperature = refuses
    assert hottest(sysfs, (card[1],)) is None


def refuses(*_):
    raise Library.NVMLError("Not Supported")


def test_the_joules_of_a_card_are_added_to_those_of_the_processors(card, tmp_path):
    sysfs = plant(tmp_path, "no-control")
    found = look(sysfs, card[0], Provenance.MEASURED)
    keys = discrete_gpu_rails(found.meters)
    assert keys
    told = Watts.of(Sampler(found.meters), "cuda", keys)
    assert told.extra == keys and "the GPU's card only" in told.name
    assert Watts.of(Sampler(found.meters), "cpu", keys).extra == ()
