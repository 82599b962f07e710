"""The report of a board: it holds no identifiers, and a profile's skeleton is made from it."""

import json

import msgspec
import pytest

from governors import anonymity, board_report, board_states, profile_reader
from governors.board_facts import examine, kernel_release
from governors.board_report import read
from governors.detect import boards
from governors.power import PowerModel
from governors.profile import PARTS
from governors.profile_match import compared
from governors.profile_template import skeleton
from governors.simulated.board import SimulatedBoard
from tests.governors import trees

DOCUMENT = (profile_reader.DIRECTORY.parent.parent / "docs" / "boards.md").read_text()
HOST, USER, PERSON, MAC = "gate-four-boiler", "mkowalski", "Maria Kowalska", "48:b0:2d:0a:be:1f"
SERIALS = ("1421222017653", "BQ4X7731K", "pf2kz9", "3d1f0a7e-9c44-4a57-8f0e-2d1c61a7be90")
MACHINE_ID = "9f1c2d3e4b5a69788796a5b4c3d2e1f0"
PLANTED = (HOST, USER, PERSON, MAC, *SERIALS, MACHINE_ID)
FILES = {
    "/etc/hostname": HOST, "/proc/sys/kernel/hostname": f"{HOST}.example.org",
    "/etc/machine-id": MACHINE_ID, "/proc/device-tree/serial-number": f"{SERIALS[0]}\0",
    "/sys/class/dmi/id/product_serial": SERIALS[1], "/sys/class/dmi/id/board_asset_tag": SERIALS[2],
    "/sys/class/dmi/id/product_uuid": SERIALS[3], "/sys/class/net/eth0/address": MAC,
    "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:1000:1000:{PERSON},,,:/home/x:/bin/sh",
    "/proc/cpuinfo": f"vendor_id\t: none\nSerial\t\t: {SERIALS[0]}\n",
    "/proc/sys/kernel/osrelease": f"5.15.148-tegra-{USER}+",
    "/etc/os-release": f'NAME="{HOST}"\nID=ubuntu\nVERSION_ID="22.04"\n',
    "/sys/class/thermal/thermal_zone90/type": f"{SERIALS[1]}-thermal",
    "/sys/class/thermal/cooling_device0/type": f"fan of {PERSON}",
    "/sys/class/thermal/cooling_device0/max_state": "3",
    "/sys/power/state": "freeze mem", "/sys/power/mem_sleep": "s2idle [deep]",
    "/sys/class/rtc/rtc0/wakealarm": "", "/proc/meminfo": "MemTotal: 7990000 kB\n",
    "/sys/class/hwmon/hwmon9/name": HOST,
}  # fmt: skip


def planted(root, board):
    """A board's tree with identifiers wherever a kernel, a vendor or an owner puts them."""
    sysfs = trees.plant(root, board)
    model = root / "proc/device-tree/model"
    extra = dict(FILES)
    if model.exists():
        extra["/proc/device-tree/model"] = f"{model.read_text()[:-1]} {SERIALS[1]} at {HOST}\0"
        del extra["/proc/cpuinfo"]
    else:
        extra["/sys/class/dmi/id/product_name"] = f"Box of {USER} {SERIALS[2].upper()}"
        del extra["/proc/cpuinfo"]
    for label in root.glob("sys/devices/**/in1_label"):
        extra["/" + str(label.relative_to(root))] = f"VDD_{HOST}"
    for path, content in extra.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return sysfs


@pytest.mark.parametrize("board", trees.BOARDS)
def test_a_report_holds_nothing_that_names_machine_owner_or_network(tmp_path, board):
    checks = [("run", "python", "ok"), ("services", f"unit of {USER}", "ok")]
    report = examine(planted(tmp_path, board), "0.1.0", simulated=False, checks=checks)
    text = report.encode().decode().lower()
    for value in PLANTED:
        assert value.lower() not in text, value
    assert str(tmp_path).lower() not in text
    assert report.system.kernel == "5.15.148-tegra-local"
    assert report.system.os == "ubuntu 22.04"
    assert report.system.memory_gib == 7.5
    assert report.suspend.clocks == ("rtc0",)
    assert "[removed]" in report.board.model
    assert read(report.encode()) == report


@pytest.mark.parametrize("board", trees.BOARDS)
def test_a_skeleton_of_a_report_is_a_valid_profile_with_the_boards_tables(tmp_path, board):
    report = examine(trees.plant(tmp_path, board), "0.1.0", simulated=False)
    profile = profile_reader.parse(skeleton(report), board)
    PowerModel(profile)
    shown = {c.name: c.table_hz for c in report.clocks if c.kind == "cpu"}
    assert {c.name: c.table_hz for c in profile.clusters} == shown
    assert (profile.gpu is not None) == any(c.name == "gpu" for c in report.clocks)
    assert {c.rail for c in profile.sensor.channels} == {r.rail for r in report.rails}
    assert not any(term.figure.value for term in profile.terms)
    assert profile.suspend is None


def test_a_skeleton_has_the_suspend_of_a_board_that_offers_it(tmp_path):
    report = examine(planted(tmp_path, "orin-nx-r35"), "0.1.0", simulated=False)
    profile = profile_reader.parse(skeleton(report), "skeleton")
    assert profile.suspend.watts.value is None
    states = {match.part: match.state for match in report.matches}
    assert states["suspend to memory"] == "same"


def test_a_board_that_is_simulated_from_a_skeleton_shows_what_the_report_shows(tmp_path):
    report = examine(trees.plant(tmp_path / "real", "orin-nano-r36"), "0.1.0", simulated=False)
    text = skeleton(report)
    with pytest.raises(profile_reader.ProfileError, match=r"power\.idle.* of VDD_IN"):
        SimulatedBoard(profile_reader.parse(text, "skeleton"), tmp_path / "none")
    head, *idle = text.split("[[power.idle]]")
    known = [part.replace('"unknown"', "0.5", 2) for part in idle]
    profile = profile_reader.parse("[[power.idle]]".join([head, *known]), "skeleton")
    again = examine(SimulatedBoard(profile, tmp_path / "simulated").sysfs, "0.1.0", simulated=True)
    assert {m.part: m.state for m in again.matches} == {m.part: m.state for m in report.matches}
    assert again.clocks == report.clocks


class TestMatches:
    def states(self, report, profile):
        return {match.part: match.state for match in compared(report, profile)}

    def test_a_profiles_own_board_is_the_same_in_all_parts(self, tmp_path):
        report = examine(trees.plant(tmp_path, "orin-nano-r36"), "0.1.0", simulated=False)
        found = self.states(report, "orin-nano")
        assert found.pop("suspend to memory") == "absent"  # the tree has no /sys/power
        assert {*found.values()} == {"same"}

    def test_another_board_differs_and_the_detail_says_in_what(self, tmp_path):
        report = examine(trees.plant(tmp_path, "orin-nano-r36"), "0.1.0", simulated=False)
        states = self.states(report, "raspberry-pi-5")
        assert states["gpu"] == states["rails"] == "new"
        assert states["cpu.policy0"] == states["idle states"] == "differs"
        details = {match.part: match.detail for match in compared(report, "raspberry-pi-5")}
        assert details["cpu.policy0"] == "22 clocks, 115.2 to 1728 MHz"
        assert details["cpufreq driver"] == "+tegra194 -cpufreq-dt"

    def test_what_a_machine_does_not_show_is_absent(self, tmp_path):
        report = examine(trees.plant(tmp_path, "no-control"), "0.1.0", simulated=False)
        states = self.states(report, "orin-nano")
        assert {states[p] for p in ("cpu.policy0", "gpu", "rails", "thermal zones")} == {"absent"}


class TestIdentifiers:
    def test_short_ones_go_as_whole_words_and_public_words_stay(self, tmp_path):
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/hostname").write_text("raspberrypi\n")
        (tmp_path / "etc/passwd").write_text("pi:x:1000:1000::/home/pi:/bin/sh\njo:x:1001:1001::/:")
        hidden = anonymity.Identifiers.of(trees.Sysfs(tmp_path))
        assert hidden.clean("raspberrypi,5-model-b of jo") == "raspberrypi,5-model-b of [removed]"
        assert hidden.clean("major") == "major"

    @pytest.mark.parametrize("text", [
        "aa:bb:cc:dd:ee:0f", "10.1.2.3", "fe80::1ff:fe23:4567:890a", "me@example.org",
        "3D1F0A7E-9C44-4A57-8F0E-2D1C61A7BE90", "1421222017653", "aa-bb-cc-dd-ee-0f",
    ])  # fmt: skip
    def test_forms_of_addresses_and_numbers_go_on_any_machine(self, text):
        assert anonymity.Identifiers(()).clean(f"x {text} y") == "x [removed] y"

    @pytest.mark.parametrize("text", [
        "nvidia,p3768-0000+p3767-0005", "17000000.gpu", "R36.4.3", "intel-rapl:0:0", "1-0040",
        "+VDD_IN@1-0040 -VDD_SOC@1-0040", "20XW0012", "115.2 to 1728 MHz",
    ])  # fmt: skip
    def test_names_of_chips_and_releases_stay(self, text):
        assert anonymity.Identifiers(()).clean(text) == text

    @pytest.mark.parametrize(("text", "kept"), [
        ("5.15.148-tegra", "5.15.148-tegra"), ("6.12.25+rpt-rpi-2712", "6.12.25-local-rpi-2712"),
        ("6.1.0-37-amd64", "6.1.0-37-amd64"), ("6.8.0-acme.plant7", "6.8.0-local"), ("", ""),
    ])  # fmt: skip
    def test_a_kernels_release_keeps_public_words_only(self, text, kept):
        assert kernel_release(text) == kept


class TestReading:
    @pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format": 2}', b"\xff"])
    def test_what_is_no_report_is_refused_with_its_name(self, data):
        with pytest.raises(board_report.ReportError, match=r"board\.json"):
            read(data, "board.json")

    def test_an_unknown_field_and_a_large_file_are_refused(self, tmp_path):
        report = examine(trees.plant(tmp_path, "no-control"), "0.1.0", simulated=False)
        more = json.loads(report.encode()) | {"host": "x"}
        with pytest.raises(board_report.ReportError, match="host"):
            read(json.dumps(more).encode())
        with pytest.raises(board_report.ReportError, match="at most"):
            read(b" " * (board_report.REPORT_BYTES_MAX + 1))

    def test_texts_of_a_foreign_report_stay_texts_in_the_skeleton(self, tmp_path):
        report = examine(trees.plant(tmp_path, "no-control"), "0.1.0", simulated=False)
        model = 'x"\n[power.idle]\nvalue = 1 # \\ \u2028'
        board = msgspec.structs.replace(report.board, model=model)
        text = skeleton(msgspec.structs.replace(report, board=board))
        assert profile_reader.parse(text, "x").title == model


class TestDocument:
    def test_every_field_of_the_report_is_documented(self):
        kinds = [k for k in vars(board_report).values() if isinstance(k, type)]
        structs = [k for k in kinds if issubclass(k, msgspec.Struct) and k is not msgspec.Struct]
        assert len(structs) == 11
        section = DOCUMENT.partition("## The report")[2].partition("\n## ")[0]
        for struct in structs:
            for field in struct.__struct_fields__:
                assert f"`{field}" in section, field

    def test_the_table_has_a_row_for_each_board_and_only_the_four_states(self):
        section = DOCUMENT.partition("## What is known of each board")[2]
        lines = [line for line in section.splitlines() if line.startswith("|")]
        assert lines[: len(boards()) + 2] == board_states.table()
        rows = board_states.rows()
        assert {*profile_reader.names()} <= {*rows, *board_states.STAND_INS}
        for states in rows.values():
            assert (*states,) == PARTS
            assert {*states.values()} <= {*board_states.STATES}

    def test_a_state_rests_on_its_profile(self):
        for board, states in board_states.rows().items():
            if board not in profile_reader.names():
                assert board_states.SIMULATED not in states.values() or board == "x86"
                continue
            profile = profile_reader.load(board)
            assert {p for p, s in states.items() if s == "measured"} == {*dict(profile.measured)}
            assert (states["gpu"] == "simulated") == (profile.gpu is not None)

    def test_a_part_is_measured_only_with_a_source_and_a_known_name(self):
        text = (profile_reader.DIRECTORY / "orin-nx.toml").read_text()
        known = profile_reader.parse(f'{text}\n[measured]\nrails = "issue 7"\n', "x")
        assert known.measured == (("rails", "issue 7"),)
        for line in ('wheels = "issue 7"', 'rails = " "'):
            with pytest.raises(profile_reader.ProfileError):
                profile_reader.parse(f"{text}\n[measured]\n{line}\n", "x")
        assert profile_reader._Part.__args__ == PARTS
