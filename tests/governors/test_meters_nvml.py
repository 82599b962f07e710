"""NVML: what it says is believed only where it is more than nothing.

Machines that run these tests have no such GPU: the library is one that answers as was recorded
(hardware.md 3).
"""

import pytest

from governors.detect import detect
from governors.energy import Provenance
from governors.meters import nvml
from governors.meters.sampler import Sampler
from governors.sysfs import Sysfs
from tests.governors.trees import BOARDS, Tree, plant

SECOND = 1_000_000
BUS = "00000000:01:00.0"


class Library:
    """Answers as recorded."""

    class NVMLError(Exception):
        """NotSupported, Uninitialized."""

    class Pci:
        busId = BUS

    def __init__(self, energy_mj=None, power_mw=None, driver=True):
        self.energy_mj, self.power_mw, self.driver = energy_mj, power_mw, driver
        self.asked = 0

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError("Library not found")

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetPciInfo(self, handle):
        return self.Pci

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._answer(self.energy_mj)

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._answer(self.power_mw)

    def _answer(self, value):
        self.asked += 1
        if value is None:
            raise self.NVMLError("Not Supported")
        return value


def look(tmp_path, library):
    return nvml.look(Sysfs(tmp_path), library, Provenance.MEASURED)


@pytest.mark.parametrize("library", [Library(), Library(0, 0), Library(None, 0)])
def test_a_gpu_that_refuses_or_says_zero_is_no_meter(tmp_path, library):
    """Orin: nvmlInit succeeds, and every question of power is NotSupported or 0."""
    found = look(tmp_path, library)
    assert found.meters == ()
    assert "neither energy nor power" in found.missing[0].what


def test_without_a_driver_there_is_nothing_to_say(tmp_path):
    assert look(tmp_path, Library(driver=False)) == nvml.Found()


@pytest.mark.parametrize(
    ("board", "tegra"),
    [
        (b, b.startswith(("orin", "agx", "x", "j", "thor")) and not b.startswith("x86"))
        for b in BOARDS
    ],
)
def test_it_is_not_asked_on_a_tegra(tmp_path, board, tegra):
    sysfs = plant(tmp_path, board)
    assert nvml.tegra_gpu(sysfs) == tegra
    assert detect(sysfs).tegra == tegra


def test_energy_is_preferred_and_counted_from_when_it_was_opened(tmp_path):
    library = Library(energy_mj=5_000_000, power_mw=70_000)
    (meter,) = look(tmp_path, library).meters
    library.energy_mj += 1_500
    (reading,) = meter.read(SECOND)
    assert (reading.rail.name, reading.joules) == ("gpu-0", 1.5)


def test_power_is_milliwatts(tmp_path):
    (meter,) = look(tmp_path, Library(power_mw=70_500)).meters
    assert meter.read(0)[0].watts == 70.5


def test_a_driver_that_was_loaded_anew_loses_what_came_before(tmp_path):
    library = Library(energy_mj=5_000_000)
    sampler = Sampler(look(tmp_path, library).meters, cpu_us=lambda: 0.0)
    for step, energy_mj in enumerate((5_000_000, 5_010_000, 200, 5_200)):
        library.energy_mj = energy_mj
        sampler.sample(2 * step * SECOND)
    total = sampler.totals["nvml", "gpu-0"]
    assert (total.joules, total.gap_us) == (15.0, 2 * SECOND)


def test_a_suspended_gpu_is_not_woken_and_its_counter_tells_afterwards(tmp_path):
    tree = Tree()
    tree.add("/sys/bus/pci/devices/0000:01:00.0/power", runtime_status="active")
    sysfs = tree.plant(tmp_path)
    library = Library(energy_mj=1_000)
    (meter,) = nvml.look(sysfs, library, Provenance.MEASURED).meters
    sampler = Sampler([meter], cpu_us=lambda: 0.0)
    sampler.sample(0)
    status = "/sys/bus/pci/devices/0000:01:00.0/power/runtime_status"
    sysfs.write(status, "suspended")
    before = library.asked
    sampler.sample(2 * SECOND)
    assert library.asked == before
    assert "suspended" in sampler.problems()["nvml", "gpu-0"]
    sysfs.write(status, "active")
    library.energy_mj = 3_000
    sampler.sample(4 * SECOND)
    total = sampler.totals["nvml", "gpu-0"]
    assert (total.joules, total.gap_us) == (2.0, 0)


def test_a_gpu_that_fell_off_the_bus_is_a_gap(tmp_path):
    library = Library(power_mw=50_000)
    (meter,) = look(tmp_path, library).meters
    library.power_mw = None
    (reading,) = meter.read(0)
    assert (reading.watts, reading.joules) == (None, None)
    assert "Not Supported" in reading.problem


def test_load_is_a_share_and_a_suspended_gpu_is_not_asked(tmp_path):
    class Busy(Library):
        class Rates:
            gpu = 37

        def nvmlDeviceGetUtilizationRates(self, handle):
            self._answer(0)
            return self.Rates

    tree, library = Tree(), Busy()
    tree.add("/sys/bus/pci/devices/0000:01:00.0/power", runtime_status="active")
    sysfs = tree.plant(tmp_path)
    ((name, read),) = nvml.gpu_loads(sysfs, library)
    assert (name, read(), library.asked) == ("gpu-0", 0.37, 1)
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/power/runtime_status").write_text("suspended\n")
    assert (read(), library.asked) == (None, 1)
    assert nvml.gpu_loads(sysfs, Library(driver=False)) == []
