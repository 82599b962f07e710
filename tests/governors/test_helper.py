"""The root helper: writes listed files for permitted peers, and survives all others.

The helper is the real process; its root directory is a fixture tree.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors import helper as module
from governors.actuators._helper_client import HelperWriter
from governors.actuators.allow import AllowList
from governors.actuators.base import discover, findings
from governors.actuators.ownership import Ownership
from governors.actuators.restoring import restore
from governors.actuators.writers import Direct, NoWriter, choose_writer
from governors.detect import detect
from governors.errors import NotPermitted
from governors.sysfs import Absent, Sysfs
from tests.governors.helping import DEADLINE_S, Running, Unprivileged, ask, poll, running, snapshot
from tests.governors.owning import ROOM, end, limits
from tests.governors.trees import BOARDS, CPU, Kernel, plant
from tests.whole import examples


@pytest.fixture(scope="module")
def shared():
    with running() as helper:
        yield helper


@pytest.fixture
def helper(shared):
    """The same process for all that must not harm it; it is whole afterwards."""
    before = snapshot(shared.root)
    yield shared
    assert shared.process.poll() is None
    assert snapshot(shared.root) == before
    with shared.connect() as link:
        assert "cpu.policy0" in ask(link, {"list": True})["ok"]


class TestWriting:
    def test_a_daemon_without_rights_chooses_it_and_owns_the_board_through_it(self, tmp_path):
        with running() as helper:
            writer = helper.chosen()
            assert writer.name == "helper"
            before = limits(helper.sysfs)
            with Ownership(helper.sysfs, writer, tmp_path / "journal", helper.knobs) as ours:
                for knob in helper.knobs:
                    low = ours.allowed(knob).min_hz
                    assert ours.pin(knob, low) == low
                assert limits(helper.sysfs) != before
            assert limits(helper.sysfs) == before

    def test_an_original_that_is_in_no_table_can_be_put_back(self, tmp_path):
        """nvpmodel's 5 W mode writes 640 MHz, which the Nano's GPU does not have."""
        with running("jetson-nano-r32") as helper:
            gpu = next(knob for knob in helper.knobs if knob.name == "gpu")
            (helper.root / gpu.max_path.lstrip("/")).write_text("640000000\n")
            writer = helper.writer()
            with Ownership(helper.sysfs, writer, tmp_path / "journal", [gpu]) as ours:
                ours.pin(gpu, 76_800_000)
            assert helper.sysfs.read(gpu.max_path) == "640000000"

    def test_a_node_that_appears_after_its_start_is_found(self):
        with running() as helper:
            link = helper.root / "sys/class/devfreq/17000000.gpu"
            target = link.readlink()
            link.unlink()
            helper.stop()
            helper.start()
            request = {"set": "gpu", "part": "max", "value": "612000000"}
            with helper.connect() as peer:
                assert "refused" in ask(peer, request)
                link.symlink_to(target)
                poll(lambda: ask(peer, request) == {"ok": True})

    def test_a_file_that_is_gone_is_told_as_the_kernel_tells_it(self):
        with running() as helper:
            knob = helper.knobs[0]
            writer = helper.writer()
            (helper.root / knob.max_path.lstrip("/")).rename(helper.root / "away")
            with pytest.raises(Absent):
                writer.write(knob.max_path, "1344000")


HOSTILE = [
    {"set": "../../../../etc/passwd", "part": "max", "value": "0"},
    {"set": f"{CPU}/cpufreq/policy0/scaling_max_freq", "part": "max", "value": "960000"},
    {"set": "cpu.policy0", "part": "../../policy4/scaling_max_freq", "value": "960000"},
    {"set": "cpu.policy0/../cpu.policy4", "part": "max", "value": "960000"},
    {"set": "cpu.policy0\0", "part": "max", "value": "960000"},
    {"set": "cpu.policy0", "part": "max", "value": "960001"},
    {"set": "cpu.policy0", "part": "max", "value": "960000\n"},
    {"set": "cpu.policy0", "part": "max", "value": " 960000"},
    {"set": "cpu.policy0", "part": "max", "value": "-1"},
    {"set": "cpu.policy0", "part": "max", "value": "9" * 300},
    {"set": "cpu.policy0", "part": "max", "value": 960000},
    {"set": "cpu.policy0", "part": "max", "value": ["960000"]},
    {"set": "cpu.policy0", "part": "max"},
    {"set": "cpu.policy0", "part": "path", "value": "960000"},
    {"set": ["cpu.policy0"], "part": "max", "value": "960000"},
    {"set": "cpu.policy9", "part": "max", "value": "960000"},
    {"set": "core.0", "part": "value", "value": "0"},
    {"set": "core.1", "part": "value", "value": "2"},
    {"set": "gpu.power", "part": "value", "value": "off"},
    {"path": "/etc/passwd", "value": "x"},
    {"list": 1},
    {},
    [],
    "x",
    None,
    b"",
    b"\xff\xfe\x00",
    b"[" * 500,
    b'{"set": "cpu.policy0", "part": "max", "value": "9600',
    b'{"set": NaN}',
]


class TestHostileRequests:
    @pytest.mark.parametrize("request_", HOSTILE, ids=lambda r: str(r)[:40])
    def test_it_is_refused_in_words_and_nothing_is_written(self, helper, request_):
        with helper.connect() as link:
            assert "refused" in ask(link, request_)

    def test_a_line_without_an_end_loses_its_connection(self, helper):
        with helper.connect() as link, pytest.raises(ConnectionError):
            for _ in range(1000):
                link.sendall(b"x" * 4096)
            link.recv(1)

    def test_who_does_not_read_the_answers_loses_its_connection(self, helper):
        with helper.connect() as link, pytest.raises(ConnectionError):
            for _ in range(100_000):
                link.sendall(b"{}\n" * 100)

    def test_a_flood_of_connections_keeps_nobody_out(self, helper):
        flood = [helper.connect() for _ in range(4 * module.CONNECTIONS)]
        try:
            for link in flood[:8]:
                with helper.connect() as honest:
                    assert ask(honest, {"list": True})
                try:
                    link.sendall(b'{"half')
                except OSError:
                    continue  # displaced already
            held = len(list(Path(f"/proc/{helper.process.pid}/fd").iterdir()))
            assert held <= module.CONNECTIONS + 8
        finally:
            for link in flood:
                link.close()

    def test_a_flood_of_requests_leaves_turns_to_others(self, helper):
        with helper.connect() as loud, helper.connect() as honest:
            loud.setblocking(False)
            for _ in range(50):
                try:
                    loud.send(b"{}\n" * 1000)
                except OSError:
                    break
            assert ask(honest, {"list": True})

    def test_a_writer_goes_on_after_being_displaced(self, helper):
        writer = helper.writer()
        flood = [helper.connect() for _ in range(3 * module.CONNECTIONS)]
        try:
            knob = helper.knobs[0]
            writer.write(knob.max_path, helper.sysfs.read(knob.max_path))
        finally:
            for link in flood:
                link.close()

    def test_a_writer_never_asks_for_a_file_that_is_no_knobs(self, helper):
        writer = helper.writer()
        with pytest.raises(NotPermitted, match="belongs to no knob"):
            writer.write("/etc/passwd", "x")

    def test_half_a_line_is_waited_for_no_longer_than_agreed(self):
        with running("raspberry-pi-5", "--idle", "0.2") as helper, helper.connect() as link:
            link.sendall(b'{"list"')
            assert link.recv(1) == b""


@pytest.fixture(scope="module")
def allow_lists(tmp_path_factory):
    roots = {board: tmp_path_factory.mktemp(board) for board in BOARDS}
    return {board: (root, AllowList(plant(root, board))) for board, root in roots.items()}


class TestTheAllowList:
    @settings(max_examples=examples(150))
    @given(
        board=st.sampled_from(sorted(BOARDS)),
        request_=st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=12),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["set", "part", "value", "x"]), inner, max_size=4)
            ),
        ),
    )
    def test_nothing_that_can_be_said_in_json_raises_or_changes_a_file(
        self, allow_lists, board, request_
    ):
        root, allowed = allow_lists[board]
        before = limits(Sysfs(root))
        assert allowed.answer(request_).keys() <= {"refused", "ok"}
        assert limits(Sysfs(root)) == before

    @settings(max_examples=examples(50))
    @given(data=st.data())
    def test_only_a_knobs_values_reach_its_files(self, allow_lists, data):
        root, allowed = allow_lists[data.draw(st.sampled_from(["orin-nano-r36", "x86-amd-pstate"]))]
        sysfs = Sysfs(root)
        knob = data.draw(st.sampled_from(discover(sysfs, detect(sysfs))))
        part, path = data.draw(st.sampled_from(sorted(knob.files().items())))
        before = sysfs.read(path)
        hz = data.draw(st.sampled_from([*knob.table_hz, knob.floor_hz]) | st.integers(0, 1 << 33))
        text = knob.text(hz)
        answer = allowed.answer({"set": knob.name, "part": part, "value": text})
        on_list = int(text) * knob.unit_hz in knob.table_hz or text == before
        in_range = (
            not knob.table_hz and knob.floor_hz <= int(text) * knob.unit_hz <= knob.ceiling_hz
        )
        if on_list or in_range or text == knob.uncapped:
            assert (answer, sysfs.read(path)) == ({"ok": True}, text)
            sysfs.write(path, before)
        else:
            assert (answer.keys(), sysfs.read(path)) == ({"refused"}, before)


class ReadOnly(Unprivileged):
    """A container's /sys, for root too."""

    def read_only(self, path):
        return path.startswith("/sys/")


class TestWhatNotEvenItMay:
    """As where /sys is mounted read-only: nothing is promised that a write would refuse."""

    def test_it_says_so_instead_of_knowing_the_name(self, tmp_path):
        plant(tmp_path, "orin-nano-r36")
        sysfs = ReadOnly(tmp_path)
        answer = AllowList(sysfs).answer({"list": True})
        assert answer["ok"] == [] and answer["denied"].keys() == {
            setting.name for setting in findings(sysfs, detect(sysfs))
        }
        assert answer["denied"]["core.1"] == f"{CPU}/cpu1/online is mounted read-only"

    def test_one_file_of_a_knob_is_enough_and_one_that_is_gone_may_come_back(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nano-r36")
        kept = sysfs.writable
        sysfs.writable = lambda path: "policy4/scaling_min" not in path and kept(path)
        shutil.move(sysfs.place(f"{CPU}/cpufreq/policy0"), tmp_path / "offline")
        listed = AllowList(sysfs)
        assert listed.answer({"list": True})["denied"].keys() == {"cpu.policy4"}
        shutil.move(tmp_path / "offline", sysfs.place(f"{CPU}/cpufreq/policy0"))
        listed._discovered_s = -10
        listed.discover()
        Path(sysfs.place(f"{CPU}/cpufreq/policy0/scaling_max_freq")).unlink()
        assert "cpu.policy0" in listed.answer({"list": True})["ok"]

    def test_the_daemon_chooses_as_if_it_were_not_there_and_says_why(self, tmp_path):
        running = Running(tmp_path, "orin-nano-r36")
        writer = HelperWriter(running.socket, running.settings, {"ok": [], "denied": {
            "core.1": "it is mounted read-only"}})  # fmt: skip
        why = f"the helper at {running.socket} may not write either: it is mounted read-only"
        assert writer.refusal(f"{CPU}/cpu1/online") == why
        assert "knows no" in writer.refusal(f"{CPU}/cpu2/online")
        running.stop()


class TestDying:
    def test_without_it_nothing_is_set_the_knobs_stay_and_the_journal_restores(self, tmp_path):
        with running() as helper:
            writer = helper.writer()
            before = limits(helper.sysfs)
            ours = Ownership(helper.sysfs, writer, tmp_path / "journal", helper.knobs)
            ours.take()
            knob = helper.knobs[0]
            ours.pin(knob, 883_200_000)
            helper.stop(signal.SIGKILL)
            pinned = limits(helper.sysfs)
            with pytest.raises(NotPermitted, match="does not answer"):
                ours.pin(knob, 729_600_000)
            assert any("could not be restored" in line for line in ours.release())
            assert limits(helper.sysfs) == pinned
            root = Sysfs(helper.root)
            assert restore(root, Direct(root), tmp_path / "journal")
            assert limits(root) == before
            assert not (tmp_path / "journal").exists()

    def test_what_a_signal_cut_short_is_not_answered_to_what_is_asked_next(self):
        def cut(*_):
            sys.exit("a signal")

        with running() as helper:
            writer, knob = helper.writer(), helper.knobs[0]
            before = signal.signal(signal.SIGALRM, cut)
            helper.process.send_signal(signal.SIGSTOP)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(SystemExit):
                    writer.write(knob.max_path, "960000")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                helper.process.send_signal(signal.SIGCONT)
            with pytest.raises(NotPermitted, match="refused"):
                writer.write(knob.max_path, "no clock")
            assert helper.sysfs.read(knob.max_path) == "960000"

    def test_what_could_not_be_restored_is_told_in_one_line_however_much_it_is(self, tmp_path):
        """Of 12 files it was 1.5 kB."""
        sysfs, journal = plant(tmp_path / "board", "agx-orin-r35"), tmp_path / "journal"
        knobs = [k for k in discover(sysfs, detect(sysfs)) if not k.optional]
        ours = Ownership(sysfs, Direct(sysfs), journal, knobs)
        ours.take()
        for knob in knobs:
            ours.pin(knob, 0)
        ours._drop_locks()  # as by a crash
        with pytest.raises(NotPermitted) as told:
            restore(sysfs, NoWriter("the helper at /run/edged/governor.sock is gone"), journal)
        text = str(told.value)
        assert len(text) < 400 and text.count("could not be restored") == 1
        assert "more; " in text and "restore again" in text and str(journal) in text

    def test_one_that_was_started_again_is_used_again(self, tmp_path):
        with running() as helper:
            writer = helper.writer()
            with Ownership(helper.sysfs, writer, tmp_path / "journal", helper.knobs) as ours:
                knob = helper.knobs[0]
                ours.pin(knob, 883_200_000)
                helper.stop(signal.SIGKILL)
                helper.start()  # over the socket that its predecessor has left
                assert ours.pin(knob, 960_000_000) == 960_000_000
            assert helper.sysfs.read(knob.max_path) == "1344000"

    def test_a_daemon_that_dies_while_pinned_through_it_is_restored_from(self):
        with running() as helper:
            before = limits(helper.sysfs)
            journal = helper.root.parent / "journal"
            daemon = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.governors.owner", helper.root, journal),
                    *("--helper", helper.socket),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOM,
            )  # fmt: skip
            daemon.stdout.readline()
            daemon.kill()
            end(daemon)
            assert limits(helper.sysfs) != before
            writer = helper.chosen()
            restore(helper.sysfs, writer, journal)
            assert limits(helper.sysfs) == before

    def test_one_that_systemd_starts_is_waited_for_and_its_socket_outlives_it(self, tmp_path):
        sysfs = Unprivileged(plant(tmp_path / "board", "orin-nano-r36").root)
        knobs, path = discover(sysfs, detect(sysfs)), tmp_path / "passed.sock"
        starter = (
            "import os, select, sys; fd = int(sys.argv[1]); select.select([fd], [], []);"
            "os.dup2(fd, 3, inheritable=True);"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
            "words = [sys.executable, '-m', 'governors.helper', '--root', sys.argv[2]];"
            "os.execv(sys.executable, words)"
        )
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            for _ in range(2):  # a connection starts it; it may die between two connections
                words = [sys.executable, "-c", starter, str(listener.fileno()), sysfs.root]
                passed = [listener.fileno()]
                with subprocess.Popen(words, cwd=ROOM, pass_fds=passed) as process:
                    with closing(HelperWriter(path, knobs)) as writer:
                        assert not writer.refusal(next(iter(knobs[0].files().values())))
                    process.terminate()
                    assert process.wait(DEADLINE_S) == 0
                assert path.exists()

    def test_where_none_answers_the_choice_says_so_and_what_to_do(self, tmp_path):
        sysfs = Unprivileged(plant(tmp_path, "orin-nano-r36").root)
        knobs = discover(sysfs, detect(sysfs))
        writer = choose_writer(sysfs, knobs, tmp_path / "none.sock")
        assert isinstance(writer, NoWriter)
        assert "no right to write" in writer.why
        assert "start edged-governor-helper" in writer.why

    def test_where_udev_gave_some_files_those_are_written_directly(self, tmp_path):
        class Some(Kernel):
            def writable(self, path):
                return "cpufreq" in path

        sysfs = Some(plant(tmp_path, "orin-nano-r36").root)
        knobs = discover(sysfs, detect(sysfs))
        writer = choose_writer(sysfs, knobs, tmp_path / "none.sock")
        assert (writer.name, "the rest" in writer.why) == ("direct", True)
        with Ownership(sysfs, writer, tmp_path / "journal", knobs) as ours:
            assert ours.refused.keys() == {"gpu", "emc"}
            assert ours.pin(knobs[0], 729_600_000) == 729_600_000


class TestWhoMaySpeak:
    def test_the_socket_is_its_owners_and_its_groups(self, helper):
        assert stat.S_IMODE(helper.socket.stat().st_mode) == 0o660

    def test_the_kernels_word_on_who_connected_is_logged(self, helper):
        assert f"serving process {os.getpid()} uid {os.getuid()}" in helper.log.read_text()

    def test_somebody_else_is_turned_away_even_where_the_sockets_mode_would_let_them(self):
        with running("raspberry-pi-5") as helper:
            helper.socket.chmod(0o666)
            script = (
                "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
                "s.sendall(b'{\"list\": true}\\n'); sys.exit(len(s.recv(99)))"
            )
            somebody = {"user": 65534, "group": 65534, "extra_groups": []}
            if os.geteuid():
                somebody = {}  # only root can change its user: this user is served
            done = subprocess.run(
                ["/usr/bin/env", "python3", "-c", script, helper.socket],
                stderr=subprocess.DEVNULL,
                check=False,
                **somebody,
            )
            assert (done.returncode > 1) == bool(os.geteuid())
            refused = "refused process" in helper.log.read_text()
            assert refused == (not os.geteuid())


LATE_SIGNAL = """
import pathlib, signal, sys, threading, time
from governors import helper
def late():
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=late, daemon=True).start()
helper.main()
"""


def test_a_signal_that_does_not_interrupt_the_wait_ends_it(tmp_path):
    """One that arrives just before epoll_wait(2) sets a flag only, as one of a thread does."""
    plant(tmp_path / "board", "orin-nano-r36")
    at = tmp_path / "governor.sock"
    command = [sys.executable, "-c", LATE_SIGNAL, "--socket", at, "--root", tmp_path / "board"]
    assert subprocess.run(command, cwd=ROOM, timeout=DEADLINE_S, check=False).returncode == 0


class TestItIsSmall:
    def test_it_has_less_than_200_lines(self):
        assert len(Path(module.__file__).read_text().splitlines()) < 200

    def test_it_loads_neither_numba_nor_numpy_nor_edged(self):
        script = "import governors.helper, sys; print(sorted(sys.modules))"
        out = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOM, capture_output=True, text=True, check=True
        ).stdout
        assert "'governors.sysfs'" in out
        for name in ("numba", "numpy", "edged", "pyarrow", "click"):
            assert f"'{name}'" not in out
