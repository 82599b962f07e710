"""The journal of a board's limits: written before the board, restored by the next process."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.cli.governor import command
from governors.actuators.journal import OwnedElsewhere
from governors.actuators.restoring import restore
from governors.actuators.writers import Direct
from governors.errors import ActuatorError, NotPermitted
from tests.governors.owning import MHZ, Bench, end, knobs_of, limits, start
from tests.governors.trees import Kernel, plant


class TestTheJournal:
    def test_the_originals_are_on_the_disk_before_the_first_write(self, tmp_path):
        seen = []

        class Looking(Kernel):
            def write(self, path, value):
                seen.append(json.loads(bench.journal.read_bytes().split(b"\n")[0]))
                super().write(path, value)

        bench = Bench(tmp_path, sysfs=Looking)
        with bench.owner() as ours:
            ours.pin(bench.knob, 1_190_400_000)
            originals = {entry["path"]: entry["original"] for entry in seen[0]["files"]}
            assert originals == bench.before

    def test_a_death_at_any_write_is_undone(self, tmp_path):
        """Killed before or after each single write to the board, the journal is enough."""

        class Dying(Kernel):
            left = 0
            after = False

            def write(self, path, value):
                if not self.left and not self.after:
                    raise KeyboardInterrupt
                super().write(path, value)
                if not self.left:
                    raise KeyboardInterrupt
                self.left -= 1

        for after in (False, True):
            for deaths in range(9):
                bench = Bench(tmp_path / f"{after}{deaths}", "jetson-nano-r32", sysfs=Dying)
                bench.sysfs.left, bench.sysfs.after = deaths, after
                ours = bench.owner()
                ours.take()
                with pytest.raises(KeyboardInterrupt):
                    for knob in bench.knobs * 5:
                        ours.pin(knob, 0)
                        ours.pin(knob, 500 * MHZ)
                        ours.pin(knob, 900 * MHZ)
                ours._drop_locks()  # as death does
                kernel = Kernel(bench.root)
                restore(kernel, Direct(kernel), bench.journal)
                assert limits(kernel) == bench.before

    def test_a_reboot_has_undone_it_already(self, bench):
        boot = bench.place("/proc/sys/kernel/random/boot_id")
        boot.parent.mkdir(parents=True)
        boot.write_text("one\n")
        ours = bench.owner()
        ours.take()
        ours.pin(bench.knob, 883_200_000)
        ours._drop_locks()
        boot.write_text("two\n")
        (line,) = restore(bench.sysfs, Direct(bench.sysfs), bench.journal)
        assert "last boot" in line
        assert bench.sysfs.read(bench.knob.max_path) == "883200"
        assert not bench.journal.exists()

    @pytest.mark.parametrize("path", ["/etc/passwd", "/sys/../etc/passwd", "/sys/power/state"])
    def test_a_forged_journal_makes_root_write_nothing_else(self, bench, path):
        place = bench.root / "etc/passwd" if "passwd" in path else bench.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("mine")
        files = [
            {"name": "cpu.policy0", "part": "max", "path": path, "original": "evil"},
            {"name": "cpu.policy0", "part": "min", "path": bench.knob.min_path, "original": "evil"},
        ]
        head = json.dumps({"format": 1, "boot": "", "files": files})
        bench.journal.parent.mkdir()
        slots = f"{'mine':63}\n{'729600':63}\n"
        bench.journal.write_text(f"{head}\n{slots}")
        lines = restore(bench.sysfs, Direct(bench.sysfs), bench.journal)
        assert len(lines) == 2
        assert place.read_text() == "mine"
        assert limits(bench.sysfs) == bench.before

    def test_it_is_synced_before_it_gets_its_name_and_its_directory_after(self, bench, monkeypatch):
        done = []
        sync, rename = os.fsync, Path.replace

        def fsync(fd):
            done.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name))
            sync(fd)

        def replace(path, target):
            done.append(("rename", path.name))
            return rename(path, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)
        with bench.owner():
            assert done == [
                ("sync", "limits.journal.new"),
                ("rename", "limits.journal.new"),
                ("sync", "state"),
            ]

    def test_a_full_disk_means_that_nothing_is_written(self, bench, monkeypatch):
        def full(fd):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        ours = bench.owner()
        with pytest.raises(ActuatorError, match="without a journal"):
            ours.take()
        with pytest.raises(ActuatorError, match="take"):
            ours.pin(bench.knob, 0)
        assert limits(bench.sysfs) == bench.before

    def test_a_lock_that_is_a_link_is_not_followed(self, bench, tmp_path):
        precious = tmp_path / "precious"
        precious.write_text("kept")
        bench.journal.parent.mkdir()
        bench.journal.with_name("limits.journal.lock").symlink_to(precious)
        with pytest.raises(NotPermitted):
            bench.owner().take()
        assert precious.read_text() == "kept"


class TestTwoDaemons:
    def test_the_second_at_the_same_journal_is_told_who_has_it(self, bench):
        with bench.owner(), pytest.raises(OwnedElsewhere, match=f"process {os.getpid()}"):
            bench.owner().take()

    def test_the_second_with_another_journal_is_kept_off_the_same_knobs(self, bench, tmp_path):
        with (
            bench.owner() as ours,
            pytest.raises(OwnedElsewhere, match="another daemon"),
        ):
            ours.pin(bench.knob, 883_200_000)
            bench.owner(journal=tmp_path / "other.journal").take()
        assert not (tmp_path / "other.journal").exists()
        with bench.owner(journal=tmp_path / "other.journal") as ours:
            assert ours.pin(bench.knob, 883_200_000) == 883_200_000

    def test_nothing_is_restored_under_a_running_daemon(self, bench):
        with bench.owner() as ours:
            ours.pin(bench.knob, 883_200_000)
            with pytest.raises(OwnedElsewhere):
                restore(bench.sysfs, Direct(bench.sysfs), bench.journal)
            assert bench.sysfs.read(bench.knob.max_path) == "883200"


class TestProcesses:
    def test_a_child_that_outlives_it_does_not_hold_its_locks(self, bench):
        process, _ = start(bench, "--fork")
        process.kill()
        process.wait(120)
        restore(bench.sysfs, Direct(bench.sysfs), bench.journal)
        assert limits(bench.sysfs) == bench.before
        end(process)

    @pytest.mark.parametrize("way", ["exit", "exception", "SIGTERM"])
    def test_every_other_way_out_restores(self, bench, way):
        process, _ = start(bench, *(["--raise"] if way == "exception" else []))
        assert limits(bench.sysfs) != bench.before
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        end(process)
        assert limits(bench.sysfs) == bench.before
        assert not bench.journal.exists()


class TestTheCommand:
    def test_restoring_nothing_is_done(self, tmp_path):
        plant(tmp_path, "no-control")
        asked = ["restore", "--root", str(tmp_path), "--journal", str(tmp_path / "none")]
        done = CliRunner().invoke(command, asked)
        assert (done.exit_code, done.output) == (0, "nothing to restore\n")

    def test_a_garbled_journal_is_bad_data(self, tmp_path):
        plant(tmp_path, "raspberry-pi-5")
        (tmp_path / "journal").write_text("?")
        asked = ["restore", "--root", str(tmp_path), "--journal", str(tmp_path / "journal")]
        assert CliRunner().invoke(command, asked).exit_code == 65

    @pytest.mark.parametrize("board", ["orin-nano-r36", "no-control", "x86-intel-pstate"])
    def test_show_names_every_knob_with_its_limits_and_who_writes(self, tmp_path, board):
        sysfs = plant(tmp_path, board)
        asked = ["show", "--root", str(tmp_path), "--json", "--helper", str(tmp_path / "none")]
        shown = json.loads(CliRunner().invoke(command, asked).output)
        expected = {
            knob.name: [sysfs.read_int(path) * knob.unit_hz for path in knob.files().values()]
            for knob in knobs_of(sysfs)
        }
        assert {
            knob["name"]: [knob["min_hz"], knob["max_hz"]]
            for knob in shown["knobs"]
            if not knob["optional"]
        } == expected
        assert shown["writer"]["name"] in ("direct", "none")
        plain = CliRunner().invoke(command, [part for part in asked if part != "--json"])
        assert all(name in plain.output for name in expected)
