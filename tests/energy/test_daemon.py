"""The real daemon on a board that is not there: owned limits, policies, meters, death."""

from __future__ import annotations

import errno
import json
import time
from types import SimpleNamespace

import pytest

from api.routes.governor import view
from edged.control.door import ask
from edged.daemon.commands import DoorCommands
from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings, from_flags
from edged.energy.tariffs import board_tariff
from edged.errors import CommandError, ConfigError
from edged.platform.clock import SystemClock
from governors.simulated.kernel import FAULTS, SimulatedSysfs, open_root
from tests.api.support import Api
from tests.beat.loop import batch
from tests.beat.support import Daemon
from tests.energy.common import (
    BOARD,
    JOB,
    POLICY0,
    edged,
    energy,
    feed,
    limits,
    running,
    switch,
)

FIXED = ("--policy", "fixed", "--governor", "cpu_mhz=960")


def pinned(daemon):
    feed(daemon, lambda: limits(daemon.store) == (960_000, 960_000))


def _watts(first, last):
    """The mean between two tellings of the input."""
    return 1e6 * (last["joules"] - first["joules"]) / (last["until_us"] - first["until_us"])


def choose(daemon, policy, **settings):
    return ask(daemon.door, "governor", job="copying", policy=policy, settings=settings)


def at_clocks_s(status, name):
    """Seconds at all clocks of a domain together."""
    return sum(status["energy"]["clock_s"].get(name, {"at": {}})["at"].values())


def asleep_and_awake_s(status):
    """Seconds of all cores together."""
    sleep = status["energy"]["sleep_s"]
    return sleep.get("awake", 0.0) + sum(sleep.get("states", {}).values())


def accounted_s(daemon):
    """How long the energy of this run has been accounted for, in s."""
    figures = daemon.status()["energy"]["input"]
    return (figures["until_us"] - figures["since_us"]) / 1e6


def seconds_of(status):
    """From the energy's beginning to the last reading: the GPU's clock is only seen, at each."""
    return sum(status["energy"]["clock_s"]["gpu"]["at"].values())


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One daemon for the tests that leave it as they found it."""
    with running(tmp_path_factory.mktemp("session")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def api(session, tmp_path_factory):
    """Where the session's daemon is asked by the command line."""
    with Api(tmp_path_factory.mktemp("api"), session.door) as api:
        yield api.socket


class TestSwitching:
    def test_the_kernel_decides_unless_somebody_asks_for_a_policy(self, session):
        before = limits(session.store)
        beats = session.status()["beats"]
        feed(session, lambda: session.status()["beats"] >= beats + 3)
        told = energy(session)
        assert told["policy"]["policy"] == "hands_off" and told["owned"] == []
        assert limits(session.store) == before == (729_600, 1_344_000)
        assert not (session.store / "limits.journal").exists()

    def test_a_policy_sets_clocks_from_the_next_beat_on_and_hands_off_gives_them_back(
        self, session
    ):
        before = limits(session.store)
        answer = switch(session, "fixed", cpu_mhz=960)
        assert (answer["policy"], answer["was"]) == ("fixed", "hands_off")
        pinned(session)
        told = energy(session)
        assert told["policy"]["reason"] == "pinned: cpu 960 MHz"
        assert told["limits"]["cpu.policy4"]["hz"] == 960_000_000
        assert switch(session, "hands_off")["was"] == "fixed"
        assert limits(session.store) == before
        assert not (session.store / "limits.journal").exists()

    def test_what_a_policy_held_back_is_raced_as_soon_as_another_runs(self, session):
        # a budget below what idling takes admits nothing, and asks again after a minute
        switch(session, "energy_budget", joules_per_day=1000)
        with session.producer() as producer:
            producer.send(batch(list(range(500))))
            deadline = time.monotonic() + 120
            while "over the pace" not in energy(session)["policy"]["reason"]:
                assert time.monotonic() < deadline
            switch(session, "hands_off")
            producer.flush()  # raises where the ack takes half of that minute

    def test_an_unknown_policy_or_setting_is_refused_and_the_old_one_goes_on(self, session):
        for policy, settings in (("turbo", {}), ("fixed", {"mhz": 1}), ("power_cap", {})):
            with pytest.raises(ConfigError):
                switch(session, policy, **settings)
        assert ask(session.door, "governor")["policy"] == "hands_off"

    def test_the_command_line_switches_and_shows(self, api):
        done = edged("governor", "policy", "power_cap", "--api", api, "--set", "watts=5")
        assert done.returncode == 0 and "power_cap {'watts': 5.0}" in done.stdout
        shown = edged("governor", "show", "--api", api)
        assert "power_cap {'watts': 5.0}" in shown.stdout and "cpu.policy0" in shown.stdout
        text = edged("status", "--api", api)
        assert "orin-nano (simulated)" in text.stdout and "power_cap" in text.stdout
        done = edged("governor", "policy", "hands_off", "--api", api, "--json")
        assert json.loads(done.stdout)["policy"] == "hands_off"


class TestJobs:
    def test_a_jobs_policy_and_the_daemons_hold_together_until_one_is_given_up(self, session, api):
        before = limits(session.store)
        words = ("governor", "policy", "--api", api, "--job", "copying", "--json")
        switch(session, "fixed", cpu_mhz=729.6)
        done = edged(*words, "fixed", "--set", "cpu_mhz=960")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["policy"] == "combined"
        assert answer["jobs"] == {
            "copying": {"policy": "fixed", "settings": {"cpu_mhz": 960.0}, "origin": "command",
                        "problem": ""}
        }  # fmt: skip
        shown = edged("governor", "show", "--api", api).stdout
        assert "daemon: fixed {'cpu_mhz': 729.6} (command)" in shown
        assert "job copying: fixed {'cpu_mhz': 960.0} (command)" in shown
        pinned(session)
        assert switch(session, "hands_off")["policy"] == "combined"
        feed(session, lambda: limits(session.store) == before)
        assert edged(*words, "none").returncode == 0
        ran = ask(session.door, "governor")
        assert (ran["policy"], ran["jobs"]) == ("hands_off", {})
        assert not (session.store / "limits.journal").exists()

    def test_the_documents_policy_counts_until_a_command_names_one_and_that_outlives_kill_9(
        self, tmp_path
    ):
        governor = {"policy": "fixed", "settings": {"cpu_mhz": 960}}
        with running(tmp_path, document={**JOB, "governor": governor}) as daemon:
            told = energy(daemon)["policy"]
            assert (told["policy"], told["own"]["origin"]) == ("combined", "default")
            assert told["jobs"]["copying"]["origin"] == "document"
            pinned(daemon)
            answer = choose(daemon, "fixed", cpu_mhz=729.6)
            assert answer == {"job": "copying", "policy": "fixed", "settings": {"cpu_mhz": 729.6}}
            slower = (729_600, 729_600)
            feed(daemon, lambda: limits(daemon.store) == slower)
            daemon.kill()
            assert limits(daemon.store) == slower
            done = edged("governor", "restore", "--root", daemon.store / "board", "--journal",
                         daemon.store / "limits.journal")  # fmt: skip
            assert (done.returncode, limits(daemon.store)) == (0, (729_600, 1_344_000)), done.stderr
            daemon.restart()
            daemon.ready()
            told = energy(daemon)["policy"]["jobs"]["copying"]
            assert (told["settings"], told["origin"]) == ({"cpu_mhz": 729.6}, "command")
            feed(daemon, lambda: limits(daemon.store) == slower)
            choose(daemon, "none")
            assert energy(daemon)["policy"]["jobs"]["copying"]["origin"] == "document"
            pinned(daemon)

    def test_a_job_that_does_not_run_or_a_policy_that_does_not_exist_is_refused(self, session):
        for job, policy in (("nobody", "fixed"), ("copying", "turbo")):
            with pytest.raises(ConfigError):
                ask(session.door, "governor", job=job, policy=policy, settings={})
        assert ask(session.door, "governor")["jobs"] == {}


class TestExplained:
    def test_what_a_job_takes_stands_beside_what_was_predicted_for_it(self, session):
        feed(session, lambda: accounted_s(session) > 1)
        words = ("explain", session.job_file, "--board", "orin-nano", "--rate", "1000")
        done = edged(*words, "--door", session.door, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)["energy"]
        predicted, found = told["predicted"], told["measured"]
        assert {predicted["provenance"], found["provenance"]} == {"simulated"}
        assert found["board"] == predicted["board"] == "orin-nano"
        assert found["policy"] == "hands_off" and found["seconds"] > 0
        assert found["watts"] == pytest.approx(predicted["watts"]["input"], rel=0.5)
        assert found["joules_per_mtuple"]["above_idle"] > 0
        text = edged(*words, "--door", session.door).stdout
        assert "running on orin-nano" in text and "W on average" in text
        assert text.index("(simulated;") < text.index("running on"), "predicted first"

    def test_a_daemon_that_does_not_run_the_job_says_so(self, session, tmp_path):
        (tmp_path / "other.json").write_text(json.dumps({**JOB, "name": "other"}))
        words = ("explain", tmp_path / "other.json", "--board", "orin-nano")
        done = edged(*words, "--door", session.door)
        assert done.returncode == 78 and "runs no job other" in done.stderr
        assert edged("explain", tmp_path / "other.json", "--door", session.door).returncode == 78


class TestMeters:
    def test_joules_are_read_on_their_own_timer_and_marked_simulated(self, session):
        first = ask(session.door, "energy")
        deadline = time.monotonic() + 120
        while (last := ask(session.door, "energy"))["at_us"] - first["at_us"] < 900_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        told, before = last["input"], first["input"]
        assert told["rail"] == "VDD_IN" and told["provenance"] == "simulated"
        assert told["gap_us"] == 0
        assert 3.2 < _watts(before, told) < 6.0, "between the idle board's 3.37 W and a busy one's"
        parts = {rail["rail"]: rail for rail in last["rails"]}
        assert parts["VDD_SOC"]["part_of"] == "VDD_IN"
        assert sum(parts[n]["joules"] for n in ("VDD_SOC", "VDD_CPU_GPU_CV")) < told["joules"]

    def test_a_meter_that_fails_leaves_a_gap_and_no_zero(self, session):
        sysfs = SimulatedSysfs(session.store / "board")
        sysfs.set_faults([("*/curr1_input", errno.EIO, "r")])
        try:
            session.until(lambda s: s["energy"]["input"]["gap_us"] > 0)
            rail = next(r for r in energy(session)["rails"] if r["rail"] == "VDD_IN")
            assert rail["problem"] and rail["watts"] is None
        finally:
            sysfs.set_faults([])
        session.until(lambda s: not s["energy"]["rails"][0]["problem"])

    @pytest.mark.parametrize("text", ["", "[[1]]", '{"a": 1}', "[3]"])
    def test_commanded_faults_that_nobody_understands_are_a_meter_s_problem(self, session, text):
        """A file is empty for a moment while it is written: a daemon that read it then ended."""
        sysfs = SimulatedSysfs(session.store / "board")
        (sysfs.root / FAULTS).write_text(text)
        try:
            session.until(lambda s: FAULTS in (s["energy"]["rails"][0]["problem"] or ""))
        finally:
            sysfs.set_faults([])
        session.until(lambda s: not s["energy"]["rails"][0]["problem"])

    def test_the_pair_of_joules_per_million_tuples_differs_by_the_idle_board(self, session):
        feed(session, lambda: energy(session)["joules_per_mtuple"])
        told = ask(session.door, "energy")
        pair = energy(session)["joules_per_mtuple"]
        span_s = (told["input"]["until_us"] - told["input"]["since_us"]) / 1e6
        apart = (pair["input"] - pair["above_idle"]) * told["tuples"] / 1e6
        assert abs(apart / (3.37 * span_s) - 1) < 0.2, "a reading may lie between the questions"


class TestTimes:
    def test_at_each_clock_and_in_each_sleep_add_up_to_the_time_that_has_passed(self, session, api):
        first = session.status()
        beats, uptime = first["beats"], first["uptime_s"]
        feed(session, lambda: session.status()["beats"] >= beats + 3)
        session.until(lambda s: s["uptime_s"] > uptime + 1.5)
        told = session.status()
        clocks, sleep = told["energy"]["clock_s"], told["energy"]["sleep_s"]
        assert clocks["gpu"]["how"] == "seen"
        # What is only seen has gaps where another test had the board fail: since `first`.
        seen_s = seconds_of(told) - seconds_of(first)
        passed_s = told["uptime_s"] - first["uptime_s"]
        assert seen_s == pytest.approx(passed_s, abs=1.5), "read once a second"
        for name in ("cpu.policy0", "cpu.policy4"):
            assert clocks[name]["how"] == "counted"
            counted_s = at_clocks_s(told, name) - at_clocks_s(first, name)
            assert counted_s == pytest.approx(seen_s, abs=1.0)
        assert asleep_and_awake_s(told) - asleep_and_awake_s(first) == pytest.approx(
            6 * seen_s, abs=6 * 1.5
        )
        assert sleep["wakeups"] > first["energy"]["sleep_s"]["wakeups"]
        lines = edged("status", "--api", api).stdout
        assert "cpu.policy0: " in lines and "(counted)" in lines


class TestDeath:
    def test_limits_are_restored_after_kill_9_by_the_next_start_and_on_sigterm(self, tmp_path):
        store = tmp_path / "store"
        with running(tmp_path, *FIXED) as daemon:
            pinned(daemon)
            daemon.kill()
            assert limits(store) == (960_000, 960_000)
            daemon.arguments[daemon.arguments.index("fixed")] = "power_cap"
            daemon.arguments[daemon.arguments.index("cpu_mhz=960")] = "watts=9"
            daemon.restart()
            assert any("960000 -> 729600" in line for line in daemon.ready()["notes"])
            assert energy(daemon)["policy"]["policy"] == "power_cap"
            feed(daemon, lambda: energy(daemon)["owned"])
        assert daemon.process.returncode == 0, "SIGTERM"
        assert limits(store) == (729_600, 1_344_000)
        assert not (store / "limits.journal").exists()

    def test_the_second_daemon_on_a_board_keeps_its_hands_off_until_the_first_has_ended(
        self, tmp_path
    ):
        """Nothing arrives when that ends: it notices when meters are read."""
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
        with running(tmp_path / "first", *FIXED) as first:
            pinned(first)
            tree = str(first.store / "board")
            words = ("--policy", "fixed", "--governor", "cpu_mhz=729.6")
            with Daemon(tmp_path / "second", JOB, "--board", tree, *words) as second:
                told = energy(second)["policy"]
                assert (told["policy"], told["awaited"]) == ("hands_off", "fixed")
                resource = view(second.status())
                assert (resource["awaited"], resource["own"]["origin"]) == (
                    "fixed",
                    "configuration",
                )
                assert "another daemon" in told["problem"]
                beats = second.status()["beats"]
                feed(second, lambda: second.status()["beats"] > beats)
                assert limits(first.store) == (960_000, 960_000), "it is still the first's"
                first.stop()
                ran = second.until(lambda s: s["energy"]["policy"]["policy"] == "fixed")
                assert ran["energy"]["policy"]["awaited"] is None
                assert ran["energy"]["policy"]["problem"] == ""
                assert ran["energy"]["owned"]
                feed(second, lambda: limits(first.store) == (729_600, 729_600))
            assert limits(first.store) == (729_600, 1_344_000)


class TestOthers:
    def test_a_limit_that_somebody_else_lowers_is_planned_within_reported_and_left(self, session):
        before = limits(session.store)
        switch(session, "fixed", cpu_mhz=960)
        pinned(session)
        sysfs = open_root(session.store / "board")
        for end in ("min", "max"):
            sysfs.write(f"{POLICY0}/scaling_{end}_freq", "729600")
        feed(session, lambda: energy(session)["changes"])
        assert "another process changed it" in energy(session)["changes"][0]["text"]
        assert limits(session.store) == (729_600, 729_600)
        assert energy(session)["policy"]["policy"] == "fixed"
        switch(session, "hands_off")
        assert limits(session.store) == (729_600, 729_600), "theirs, not restored over"
        for end, khz in (("max", before[1]), ("min", before[0])):
            sysfs.write(f"{POLICY0}/scaling_{end}_freq", str(khz))

    def test_a_cap_below_what_the_work_takes_holds_the_senders_back_and_drops_nothing(
        self, tmp_path
    ):
        words = ("--policy", "power_cap", "--governor", "watts=4", "--governor", "window_s=3")
        with running(tmp_path, *words) as daemon, daemon.producer() as producer:
            sent, first, last, waited, longest = 0, None, None, 0, 0
            # enough windows that one contains the first race, whose cost was unknown
            while first is None or last["until_us"] - first["until_us"] < 4 * 3_000_000:
                if sent - producer.acked < 20:
                    producer.send(batch(list(range(1000))))
                    sent += 1
                else:
                    # it is held back; 50 questions a second would take all that the cap allows
                    # above idle, 0.6 W, so that no race ever had room
                    time.sleep(0.2)
                    last = ask(daemon.door, "energy")["input"]
                before = producer.acked
                producer.poll()
                waited = 0 if producer.acked > before or sent - producer.acked < 20 else waited + 1
                longest = max(longest, waited)
                if producer.acked and first is None:
                    first = last
            assert _watts(first, last) < 4.1, energy(daemon)["policy"]
            # without a cap twenty messages are acknowledged within 0.1 s
            assert longest >= 3, "no ack for 0.6 s: the sender was held back"
            switch(daemon, "hands_off")
            producer.flush()
            daemon.until(lambda s: s["jobs"]["copying"]["streams"]["r"]["rows"] == 1000 * sent)


def test_a_daemon_without_a_board_says_so():
    commands = DoorCommands(SimpleNamespace(energy=None, graphs=None), None, None, lambda _: None)
    for command in ("energy", "governor"):
        with pytest.raises(CommandError, match="no board is watched"):
            commands({"cmd": command})


def test_a_board_or_a_policy_that_does_not_exist_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is no directory"):
        from_flags(str(tmp_path / "nowhere"), "hands_off", (), None, tmp_path)
    with pytest.raises(ConfigError, match="cray"):
        open_site(EnergySettings("simulated:cray"), tmp_path, lambda: 0)
    site = open_site(EnergySettings(BOARD[1]), tmp_path, lambda: 0)
    with pytest.raises(ConfigError, match="hands_off"):
        EnergyGovernor(
            EnergySettings(BOARD[1], "turbo"), site, board_tariff(site), SystemClock(), 1
        )
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    done = edged("run", tmp_path / "job.json", "--store", tmp_path / "s", "--board", "nowhere")
    assert done.returncode == 78 and "--board" in done.stderr
