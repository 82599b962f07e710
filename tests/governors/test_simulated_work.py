"""Work on the simulated board: its time at the clock there is, and the joules of it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governors.profile_reader import load
from governors.simulated import clocks
from governors.simulated.board import Background, BoardWork, SimulatedBoard
from governors.simulated.layout import EMC_CAP
from tests.governors.simulated import GPU, SECOND, pinned
from tests.whole import examples


def service_us(board, cycles, memory_bytes=0.0, cores=0.0):
    """Duration of a race at the clocks that the tree allows now."""
    allowed = clocks.look(board.profile, board.sysfs)
    return board._duration_us(clocks.Race(cycles, memory_bytes, cores), allowed)


@pytest.fixture
def orin(tmp_path):
    return SimulatedBoard(load("orin-nano"), tmp_path)


@given(st.sampled_from([115_200, 729_600, 1_344_000]), st.floats(1e5, 1e9), st.integers(1, 6))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_service_time_is_cycles_over_clock_and_bytes_over_bandwidth(orin, khz, cycles, cores):
    pinned(orin, khz)
    expected = cycles / cores / (khz * 1e3) * 1e6
    assert service_us(orin, cycles, cores=cores) == pytest.approx(expected)
    more = service_us(orin, cycles, memory_bytes=102.4e6, cores=cores)
    assert more == pytest.approx(expected + 1000)


def test_a_capped_memory_clock_stalls_longer(orin):
    pinned(orin, 1_344_000)
    before = service_us(orin, 0.1, memory_bytes=102.4e6)
    orin.sysfs.write(EMC_CAP, "2133000000")
    assert service_us(orin, 0.1, memory_bytes=102.4e6) == pytest.approx(
        before * 3199 / 2133, rel=1e-3
    )


def test_the_kernels_governor_takes_longer_for_a_short_race_than_a_pinned_clock(orin):
    left_alone = service_us(orin, 1e8)
    assert service_us(pinned(orin, 1_344_000), 1e8) < 0.7 * left_alone


def test_work_that_does_not_fit_waits_and_saturates_the_board(orin):
    pinned(orin, 729_600)
    cycles = 6 * 729_600e3 * 1.5
    orin.advance(SECOND, BoardWork(cycles=cycles))
    assert orin.busy_share == pytest.approx(1.5)
    assert orin.backlog_us == pytest.approx(0.5 * SECOND, rel=1e-6)
    busy = orin.joules["VDD_CPU_GPU_CV"]
    pinned(orin, 1_344_000)
    assert orin.backlog_us == pytest.approx(0.5 * SECOND * 729.6 / 1344, rel=1e-6)
    orin.advance(2 * SECOND)
    assert orin.backlog_us == 0
    assert orin.busy_share == pytest.approx(0.75)
    assert orin.joules["VDD_CPU_GPU_CV"] > busy


def test_the_same_work_costs_the_same_however_time_is_cut(tmp_path):
    joules = []
    for n in (1, 7, 50):
        board = pinned(SimulatedBoard(load("orin-nano"), tmp_path / str(n)), 1_344_000)
        board.advance(1, BoardWork(cycles=4e9, memory_bytes=1e8, gpu_us=300_000))
        for i in range(1, n + 1):
            board.advance(1 + 2 * SECOND * i // n)
        joules.append(board.input_joules)
    assert joules == pytest.approx([joules[0]] * 3, rel=1e-4)


def test_a_race_costs_what_the_model_says_for_its_time(orin):
    pinned(orin, 1_344_000)
    orin.advance(SECOND, BoardWork(cycles=6 * 1.344e9 * 0.25))
    model = orin.model
    busy = model.full_load({0: 1_344_000_000, 1: 1_344_000_000})
    racing = model.input_watts(
        type(busy)(**{**{f: getattr(busy, f) for f in busy.__slots__}, "memory_hz": 3_199_000_000})
    )
    idle = model.idle_watts()
    assert orin.input_joules == pytest.approx(0.25 * racing + 0.75 * idle, rel=1e-6)


def test_a_gpu_stays_powered_for_its_railgate_delay(orin):
    orin.advance(100_000, BoardWork(gpu_us=50_000))
    assert orin.sysfs.read(f"{GPU}/device/power/runtime_status") == "active"
    assert orin.sysfs.read(f"{GPU}/device/is_railgated") == "no"
    orin.advance(SECOND)
    assert orin.sysfs.read(f"{GPU}/device/power/runtime_status") == "suspended"
    start = orin.joules["VDD_CPU_GPU_CV"]
    orin.sysfs.write(f"{GPU}/device/railgate_delay", "100")
    orin.advance(2 * SECOND, BoardWork(gpu_us=1))
    awake_j = orin.joules["VDD_CPU_GPU_CV"] - start - 0.56
    assert awake_j == pytest.approx(0.57 * 0.1, rel=0.02)


def test_background_and_uplink_are_part_of_the_input(orin):
    orin.background = Background(cores=1.0, uplink_watts=0.5)
    orin.advance(SECOND)
    assert orin.input_joules > 3.37 + 0.5 + 0.58


def test_idle_counters_tell_sleep_and_wakeups(orin):
    pinned(orin, 1_344_000)
    orin.advance(SECOND, BoardWork(cycles=6 * 1.344e9 * 0.25, wakeups=60))
    at = "/sys/devices/system/cpu/cpu3/cpuidle/state1"
    assert orin.sysfs.read_int(f"{at}/time") == pytest.approx(750_000, abs=10)
    assert orin.sysfs.read_int(f"{at}/usage") == 10


def test_the_cores_together_show_every_wakeup(orin):
    orin.advance(SECOND, BoardWork(wakeups=1))
    orin.advance(2 * SECOND, BoardWork(wakeups=7))
    cores = [f"/sys/devices/system/cpu/cpu{core}/cpuidle/state1/usage" for core in range(6)]
    assert sum(orin.sysfs.read_int(path) for path in cores) == 8
