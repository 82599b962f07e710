"""The PMIC of a Raspberry Pi 5: twelve rails from a command of the firmware."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.detect import detect
from governors.meters import rails
from governors.meters.base import survey
from governors.meters.pmic import COVERS, parse
from governors.vcgencmd import FirmwareError, Vcgencmd
from tests.governors import trees

ANSWER = """\
 3V7_WL_SW_A current(0)=0.00195186A
   3V3_SYS_A current(1)=0.12687090A
   1V8_SYS_A current(2)=0.18835450A
  DDR_VDD2_A current(3)=0.02147046A
  DDR_VDDQ_A current(4)=0.00000000A
   1V1_SYS_A current(5)=0.17957110A
    0V8_SW_A current(6)=0.25959740A
  VDD_CORE_A current(7)=0.56259000A
   3V3_DAC_A current(17)=0.00000000A
   3V3_ADC_A current(18)=0.00006105A
   0V8_AON_A current(16)=0.00293040A
      HDMI_A current(22)=0.02551890A
 3V7_WL_SW_V volt(8)=3.70720000V
   3V3_SYS_V volt(9)=3.32580900V
   1V8_SYS_V volt(10)=1.80415000V
  DDR_VDD2_V volt(11)=1.11135400V
  DDR_VDDQ_V volt(12)=0.60329610V
   1V1_SYS_V volt(13)=1.11282000V
    0V8_SW_V volt(14)=0.80512740V
  VDD_CORE_V volt(15)=0.76798460V
   3V3_DAC_V volt(20)=3.31135200V
   3V3_ADC_V volt(21)=3.31867800V
   0V8_AON_V volt(19)=0.79882700V
      HDMI_V volt(23)=5.07860000V
     EXT5V_V volt(24)=5.05716000V
      BATT_V volt(25)=0.00000000V
"""
"""Form, rails and channels as public captures have them (docs/hardware.md 1.8)."""


@pytest.fixture
def board(tmp_path):
    """The tree, and a function that writes the script in vcgencmd's place."""
    sysfs = trees.plant(tmp_path, "raspberry-pi-5")
    place = tmp_path / "usr/bin/vcgencmd"
    place.parent.mkdir(parents=True)
    (tmp_path / "answer").write_text(ANSWER)

    def script(text=f"test $1 = pmic_read_adc && cat {tmp_path}/answer"):
        place.write_text(f"#!/bin/sh\n{text}\n")
        place.chmod(0o755)
        return sysfs

    return script


def pmic(sysfs):
    return next(m for m in survey(sysfs, detect(sysfs)).meters if m.name == "pmic")


def missing(sysfs):
    return [str(m) for m in survey(sysfs, detect(sysfs)).missing if m.meter == "pmic"]


def test_each_rail_is_its_current_times_its_voltage():
    watts = parse(ANSWER)
    assert len(watts) == 12 and "EXT5V" not in watts and "BATT" not in watts
    assert watts["VDD_CORE"] == pytest.approx(0.56259 * 0.7679846)
    assert watts["DDR_VDDQ"] == 0.0


@given(st.integers(0, len(ANSWER)))
def test_a_cut_answer_gives_whole_rails_or_none(cut):
    """Never a figure of a number that lacks digits."""
    whole = parse(ANSWER)
    assert parse(ANSWER[:cut]).items() <= whole.items()


@given(st.sets(st.sampled_from(ANSWER.splitlines())), st.randoms())
def test_a_rail_needs_both_of_its_lines_in_any_order(kept, random):
    lines = list(kept)
    random.shuffle(lines)
    names = {line.split()[0] for line in lines}
    assert set(parse("\n".join(lines))) == {n[:-2] for n in names if n[-1] == "A"} & {
        n[:-2] for n in names if n[-1] == "V"
    }


@given(
    st.text()
    | st.lists(
        st.sampled_from(
            [
                "A current(1)=1.0A",
                "X_A volt(1)=1.0A",
                "X_A current(1)=nanA",
                "X_A current(1)=1e9A",
                "X_V volt(1)=1.0V",
            ]
        )
    ).map("\n".join)
)
def test_other_texts_give_nothing(text):
    assert parse(text) == {}


def test_the_sum_of_the_rails_is_measured_and_says_what_it_leaves_out(board):
    meter = pmic(board())
    (whole,) = rails.wholes([meter])
    assert (whole.covers, whole.provenance.value) == (COVERS, "measured")
    watts = {reading.rail.name: reading.watts for reading in meter.read(0)}
    assert watts == pytest.approx(parse(ANSWER))
    assert sum(watts.values()) == pytest.approx(1.83, abs=0.1)


def test_a_rail_that_goes_missing_is_a_gap_and_the_others_go_on(board, tmp_path):
    meter = pmic(board())
    (tmp_path / "answer").write_text(ANSWER.replace("VDD_CORE_V", "VDD_CORE_X"))
    read = {reading.rail.name: reading for reading in meter.read(1)}
    assert read["VDD_CORE"].watts is None and "not in the answer" in read["VDD_CORE"].problem
    assert read["HDMI"].watts == pytest.approx(0.0255189 * 5.0786)


def test_an_error_of_the_firmware_is_a_gap_with_its_text(board):
    meter = pmic(board())
    for script, why in (
        ("echo 'error=1 error_msg=\"Command not registered\"'", "Command not registered"),
        ('echo "Can\'t open device file: /dev/vcio" >&2; exit 1', "Can't open device file"),
        ("exit 3", "exit status 3"),
    ):
        board(script)
        assert {why in reading.problem for reading in meter.read(2)} == {True}


def test_what_is_not_there_is_named_with_its_remedy(board, tmp_path):
    sysfs = board('echo "Can\'t open device file: /dev/vcio" >&2; exit 1')
    assert "the group video may use /dev/vcio" in missing(sysfs)[0]
    (tmp_path / "usr/bin/vcgencmd").unlink()
    assert "vcgencmd is not installed: install it" in missing(sysfs)[0]


def test_a_command_that_hangs_is_killed_and_not_started_again_at_once(tmp_path):
    now, script = [0.0], tmp_path / "vcgencmd"
    script.write_text(f"#!/bin/sh\necho x >> {tmp_path}/calls\nexec sleep 600\n")
    script.chmod(0o755)
    firmware = Vcgencmd(str(script), answer_s=0.3, clock_s=lambda: now[0])
    for at, why, calls in ((0, "within 0.3 s", 1), (30, "after a minute", 1), (61, "within", 2)):
        now[0] = at
        with pytest.raises(FirmwareError, match=why):
            firmware.ask("pmic_read_adc")
        assert len((tmp_path / "calls").read_text().split()) == calls


def test_other_boards_ask_no_firmware(tmp_path):
    sysfs = trees.plant(tmp_path, "x86-intel-pstate")
    assert missing(sysfs) == []
