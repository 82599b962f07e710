"""Sensors of the simulated board tell what its model drew, as late and coarse as the real ones."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors.detect import detect
from governors.meters.base import survey
from governors.profile_reader import load
from governors.simulated import layout
from governors.simulated.board import Background, BoardWork, SimulatedBoard
from governors.simulated.kernel import open_root
from governors.simulated.layout import RAPL_RANGE_UJ
from governors.sysfs import SysfsError
from tests.governors.simulated import SECOND, pinned
from tests.whole import examples


@pytest.fixture
def orin(tmp_path):
    return SimulatedBoard(load("orin-nano"), tmp_path)


def channels(board):
    """Rail -> watts of the hwmon files."""
    at = "/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"
    return {
        board.sysfs.read(f"{at}/in{n}_label"): board.sysfs.read_int(f"{at}/in{n}_input")
        * board.sysfs.read_int(f"{at}/curr{n}_input") / 1e6
        for n in (1, 2, 3)
    }  # fmt: skip


def test_two_reads_within_a_refresh_are_the_same_and_a_jump_shows_after_it(tmp_path):
    board = SimulatedBoard(load("orin-nano"), tmp_path, noise=True)
    seen = []
    for i in range(1, 45):
        board.advance(i * 100_000, BoardWork(cycles=8e8 if i > 20 else 0))
        seen.append(channels(board)["VDD_IN"])
    changes = [i for i, (a, b) in enumerate(pairwise(seen)) if a != b]
    assert all(later - earlier >= 4 for earlier, later in pairwise(changes))
    assert max(seen[:20]) < 3.6 < 5 < seen[-1]


works = st.lists(
    st.tuples(st.integers(1000, 700_000), st.floats(0, 3e9), st.floats(0, 2e5)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=examples(15))
@given(works, st.sampled_from(["orin-nano", "agx-orin", "jetson-nano", "generic-x86"]))
def test_readings_without_noise_integrate_to_the_models_energy(tmp_path_factory, steps, name):
    """Each reading is a mean over its time: what it is off by is its steps of 8 mV and 40 uV."""
    board = SimulatedBoard(load(name), tmp_path_factory.mktemp("board"), noise=False)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    refresh_us = int((board.profile.sensor.refresh_ms or 0) * 1000)
    refresh_us = refresh_us if name.endswith("orin") or name == "orin-nano" else 0
    told = dict.fromkeys(board.joules, 0.0)
    first = {r.rail.name: r.joules for r in meter.read(0)}
    for us, cycles, gpu_us in steps:
        board.advance(board.now_us, BoardWork(cycles=cycles, gpu_us=gpu_us))
        until = board.now_us + us
        if refresh_us:  # up to whole refreshes, each read once
            until = -(-until // refresh_us) * refresh_us
        step = refresh_us or us
        while board.now_us < until:
            board.advance(board.now_us + step)
            for reading in meter.read(board.now_us):
                told[reading.rail.name] += (reading.watts or 0.0) * step / 1e6
    last = {r.rail.name: r.joules for r in meter.read(board.now_us)}
    for channel in board.profile.sensor.channels:
        if board.profile.sensor.meter == "rapl":
            counted = last[channel.rail] - first[channel.rail]
            assert counted == pytest.approx(board.joules[channel.rail], abs=2e-6)
            continue
        half_step_w = (channel.volts or 0) * 0.5 * 40e-6 / (channel.shunt_uohm / 1e6) + 0.003
        bound = half_step_w * board.now_us / 1e6
        assert told[channel.rail] == pytest.approx(board.joules[channel.rail], abs=bound + 1e-9)


def test_noise_is_seeded_and_averages_out(tmp_path):
    runs = []
    for part in ("a", "b"):
        board = SimulatedBoard(load("jetson-nano"), tmp_path / part, seed=7)
        (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
        seen = []
        for i in range(1, 201):
            board.advance(i * 50_000)
            seen.append([r.watts for r in meter.read(board.now_us)])
        runs.append(seen)
    assert runs[0] == runs[1]
    of_input = [watts[0] for watts in runs[0]]
    assert len(set(of_input)) > 3
    assert sum(of_input) / 200 == pytest.approx(1.03, abs=0.01)


def test_a_nanos_conversions_find_a_load_of_one_half_about_half_of_the_time(tmp_path):
    board = SimulatedBoard(load("jetson-nano"), tmp_path, seed=1)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    pinned(board, 1_428_000)
    told = []
    for i in range(1, 401):
        board.advance(i * 100_000, BoardWork(cycles=4 * 1.428e9 * 0.05))
        told.append(meter.read(board.now_us)[0].watts)
    mean = board.input_joules / 40
    assert 2.5 < mean < 3.5
    assert sum(told) / 400 == pytest.approx(mean, abs=0.3)
    assert min(told) < 1.3 < 4.5 < max(told)


def test_rapls_counter_wraps_and_the_meter_undoes_it(tmp_path):
    board = SimulatedBoard(load("generic-x86"), tmp_path)
    board.sensors.offset_uj["package-0"] = RAPL_RANGE_UJ - 3_000_000
    board.advance(SECOND)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    raw = [board.sysfs.read_int("/sys/class/powercap/intel-rapl:0/energy_uj")]
    start = meter.read(board.now_us)[0].joules
    before = board.joules["package-0"]
    for i in range(2, 8):
        board.advance(i * SECOND, BoardWork(cycles=1e9))
        raw.append(board.sysfs.read_int("/sys/class/powercap/intel-rapl:0/energy_uj"))
        read = meter.read(board.now_us)[0].joules
    assert min(raw[1:]) < raw[0]
    assert read - start == pytest.approx(board.joules["package-0"] - before, abs=1e-5)


def test_counters_go_on_where_the_process_before_left_them(tmp_path):
    board = SimulatedBoard(load("generic-x86"), tmp_path)
    board.advance(SECOND, BoardWork(cycles=1e9, wakeups=40))
    paths = (
        "/sys/class/powercap/intel-rapl:0/energy_uj",
        "/sys/devices/system/cpu/cpu0/cpuidle/state2/time",
        "/sys/devices/system/cpu/cpu0/cpuidle/state2/usage",
    )
    before = [board.sysfs.read_int(path) for path in paths]
    again = SimulatedBoard(load("generic-x86"), tmp_path)
    assert [again.sysfs.read_int(path) for path in paths] == before
    again.advance(SECOND, BoardWork(wakeups=40))
    after = [again.sysfs.read_int(path) for path in paths]
    assert after[0] - before[0] == pytest.approx(again.joules["package-0"] * 1e6, abs=2)
    assert after[1] - before[1] == SECOND and after[2] - before[2] == 10


def test_rapl_may_be_forbidden(tmp_path):
    board = SimulatedBoard(load("generic-x86"), tmp_path)
    board.fault("*/energy_uj", "EACCES", "r")
    found = survey(board.sysfs, detect(board.sysfs))
    assert not [m for m in found.meters if m.name == "rapl"]
    assert any("root only" in str(missing) for missing in found.missing)


def test_a_frozen_sensor_goes_on_telling_what_it_told(orin):
    orin.advance(SECOND)
    before = channels(orin)
    orin.freeze("1-0040")
    orin.advance(10 * SECOND, BoardWork(cycles=5e10))
    assert channels(orin) == before
    orin.thaw("1-0040")
    orin.background = Background(cores=3.0)
    orin.advance(20 * SECOND)
    assert channels(orin)["VDD_IN"] > before["VDD_IN"] + 0.5


@pytest.mark.parametrize(("name", "device"), [("orin-nano", "1-0040"), ("jetson-nano", "6-0040")])
def test_an_unbound_sensor_is_gone_and_is_found_again_under_another_number(tmp_path, name, device):
    board = SimulatedBoard(load(name), tmp_path)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    board.advance(SECOND)
    board.unbind(device)
    board.advance(2 * SECOND)
    assert all(r.watts is None and r.problem for r in meter.read(board.now_us))
    board.bind(device)
    board.advance(3 * SECOND)
    assert all(r.watts is not None for r in meter.read(board.now_us))


def test_with_a_clock_sensors_are_up_to_date_when_they_are_read(tmp_path):
    now = [5 * SECOND]
    board = SimulatedBoard(load("orin-nano"), tmp_path, clock_us=lambda: now[0])
    board.background = Background(cores=6.0)
    idle = channels(board)["VDD_IN"]
    now[0] += SECOND
    assert channels(board)["VDD_IN"] > idle + 1
    assert board.now_us == 6 * SECOND


def test_unconnected_channels_answer_as_on_a_board(tmp_path):
    board = SimulatedBoard(load("agx-orin"), tmp_path)
    at = "/sys/bus/i2c/drivers/ina3221/1-0041/hwmon/hwmon4"
    assert board.sysfs.read(f"{at}/in1_label") == "NC"
    with pytest.raises(SysfsError):
        board.sysfs.read(f"{at}/in1_input")


def test_what_is_no_part_of_the_board_is_kept_apart(orin, tmp_path):
    marker = json.loads((tmp_path / ".simulated" / "board.json").read_text())
    assert marker["profile"] == "orin-nano"
    assert type(open_root(tmp_path)) is not type(open_root("/"))


def test_with_a_clock_a_hundred_reads_at_once_update_the_files_once(tmp_path, monkeypatch):
    now, updates = [5 * SECOND], []
    board = SimulatedBoard(load("orin-nano"), tmp_path, clock_us=lambda: now[0])
    renew = board.sensors.renew
    monkeypatch.setattr(board.sensors, "renew", lambda: (updates.append(now[0]), renew()))
    for _ in range(3):
        now[0] += SECOND
        for _ in range(100):
            channels(board)
            now[0] += 1
    assert len(updates) == 3


def test_with_a_clock_a_limit_that_another_process_sets_slows_the_next_race(tmp_path):
    now = [5 * SECOND]
    board = SimulatedBoard(load("orin-nano"), tmp_path, clock_us=lambda: now[0])
    other = open_root(tmp_path)

    def race_us():
        now[0] += SECOND
        board.advance(now[0])
        board.advance(now[0], BoardWork(cycles=1e9))
        return board.backlog_us

    fast = race_us()
    for policy in map(layout.policy_path, board.profile.clusters):
        lowest = other.read(f"{policy}/cpuinfo_min_freq")
        other.write(f"{policy}/scaling_min_freq", lowest)
        other.write(f"{policy}/scaling_max_freq", lowest)
    assert race_us() > 1.2 * fast
