"""Calibration measures real kernels, and its profile is heeded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from edged.calibration.join_kernels import calibrate, offered
from edged.cli import cli
from edged.control.door import ask
from edged.errors import ConfigError, JobError
from edged.placement import profile
from edged.placement.placement import DECIDE_BEATS, choose
from tests.api.support import Api
from tests.beat.loop import Loop, batch
from tests.beat.support import Daemon, Live, changed, join_job
from tests.beat.test_coupling import pairs_of, rows


@pytest.fixture(scope="module")
def measured():
    return calibrate(offered(("chain", "bucket")), 2, {}, (1_000, 20_000), (200, 20_000))


def test_times_grow_with_the_beat(measured):
    for curve in measured.kernels.values():
        assert all(row[1] > row[0] for row in curve.us)
        assert all(0 < x < 1e6 for table in (curve.us, curve.cpu_us) for row in table for x in row)
        assert 0 < curve.carry_us_per_tuple < 100


def test_a_saved_profile_is_found_and_a_directory_without_one_has_none(measured, tmp_path):
    assert profile.load_profile(tmp_path) is None
    profile.save_profile(measured, tmp_path)
    assert profile.load_profile(tmp_path) == measured
    with pytest.raises(ConfigError, match="cannot write"):
        profile.save_profile(measured, tmp_path / "none")


def test_kernels_that_the_daemon_does_not_run_are_refused():
    for name in ("handshake", "nothing"):
        with pytest.raises(ConfigError, match=r"there are .*bucket.*chain"):
            offered((name,))
    assert {"chain", "bucket"} <= {m.name for m in offered(())}


def test_the_command_keeps_a_profile_that_explain_shows(tmp_path):
    store, job = tmp_path / "store", tmp_path / "job.json"
    job.write_text(json.dumps(join_job()))
    arguments = ["calibrate", "--store", str(store), "--kernel", "bucket", "--cpu-watts", "1.5"]
    arguments += ["--board", "none"]
    told = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)["watts"] == {"cpu": 1.5}
    shown = CliRunner().invoke(cli, ["explain", str(job), "--store", str(store)]).stdout
    assert "placement at a window of 10000 a side: bucket" in shown
    assert "run `edged calibrate`" in CliRunner().invoke(cli, ["explain", str(job)]).stdout


@pytest.mark.parametrize(
    "words, says",
    [
        (["--minutes", "nan"], "not a finite number"),
        (["--celsius-max", "nan"], "not a finite number"),
        (["--cpu-watts", "inf"], "is not a number above 0"),
        (["--store", "FILE/store"], "--store .*cannot be made: Not a directory"),
        (["--board", "simulated:orin-nano", "--plot", "FILE/a.png"], "--plot .*cannot be made"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(tmp_path, monkeypatch, words, says):
    monkeypatch.setattr(
        "edged.daemon.compilation.compile_kernels", lambda **_: pytest.fail("it began")
    )
    (tmp_path / "file").write_text("")
    asked = ["calibrate", "--store", str(tmp_path), "--board", "none", "--kernel", "chain"]
    asked += [word.replace("FILE", str(tmp_path / "file")) for word in words]
    told = CliRunner().invoke(cli, asked)
    assert told.exit_code != 0 and re.search(says, f"{told.output}{told.exception}")


def made_for(kernel, measured):
    """A profile by which `kernel` is far better than the other."""
    curve = measured.kernels[kernel]
    scaled = [
        (name, c if name == kernel else dearer(curve)) for name, c in measured.kernels.items()
    ]
    return type(measured)(2, dict(scaled), {})


def dearer(curve):
    us = tuple(tuple(1000 * x for x in row) for row in curve.us)
    return type(curve)("cpu", curve.windows, curve.rows, us, us, 0.0)


def test_a_running_join_moves_to_the_better_kernel_and_its_results_stay_the_same(measured):
    left, right = rows(0, 900), rows(0, 900)
    wanted = made_for("bucket", measured)
    assert choose(wanted, (), 1000, 9, 1_000_000).kernel == "bucket"
    with Live(join_job()) as live:
        live.job.place_by(wanted)
        kernels = []
        for at in range(0, 900, 3):
            live.send("r", left[at : at + 3])
            live.send("s", right[at : at + 3])
            live.beat()
            live.job.place()
            kernels.append(live.job.operators["joined"].kernel)
        live.drain()
        assert kernels[: 2 * DECIDE_BEATS - 1] == ["chain"] * (2 * DECIDE_BEATS - 1)
        assert kernels[2 * DECIDE_BEATS] == "bucket"
        assert sorted(live.rows("pairs")) == pairs_of(left, right)


def test_a_document_that_names_a_kernel_is_obeyed(measured):
    document = changed(join_job())
    document["operators"]["joined"]["kernel"] = "chain"
    with Live(document) as live:
        live.job.place_by(made_for("bucket", measured))
        for at in range(3 * DECIDE_BEATS):
            live.send("r", rows(at, 1))
            live.send("s", rows(at, 1))
            live.beat()
            live.job.place()
        assert live.job.operators["joined"].kernel == "chain"
        assert live.job.placers["joined"].pinned


def test_a_switch_that_fails_leaves_the_old_kernel_running(measured, tmp_path):
    with Live(join_job()) as live:
        live.job.place_by(made_for("bucket", measured))
        live.job.operators["joined"].switch = refuse
        for at in range(3 * DECIDE_BEATS):
            live.send("r", rows(at, 1))
            live.send("s", rows(at, 1))
            live.beat()
            live.job.place()
        assert live.job.operators["joined"].kernel == "chain"
        assert live.job.placers["joined"].problems == {"bucket": "out of memory"}
        with pytest.raises(JobError, match="cannot switch to bucket: out of memory"):
            live.job.pin("joined", "bucket")


def refuse(kernel):
    raise MemoryError("out of memory")


def test_the_heart_places_after_its_beats(measured, tmp_path):
    document = changed(join_job(), promises={"latency": "5ms"})
    (tmp_path / "store").mkdir()
    with (
        Loop(document, tmp_path / "store", profile=made_for("bucket", measured)) as loop,
        loop.producer("r") as r,
        loop.producer("s") as s,
    ):
        s.connect()
        for i in range(2 * DECIDE_BEATS + 2):
            r.send(batch([i]))
            s.send(batch([i]))
            r.flush()
        loop.until(lambda: loop.job.operators["joined"].kernel == "bucket")


def test_a_person_switches_a_running_daemon(tmp_path):
    with Daemon(tmp_path, join_job()) as daemon, Api(tmp_path, daemon.door) as api:

        def choose_by_hand(*arguments):
            words = ["jobs", "kernel", *arguments, "--api", str(api.socket), "--json"]
            return CliRunner().invoke(cli, words, catch_exceptions=True)

        assert daemon.status()["jobs"]["joining"]["operators"]["joined"]["kernel"] == "chain"
        answer = json.loads(choose_by_hand("joining", "joined", "bucket").stdout)
        assert answer == {
            "job": "joining", "operator": "joined", "kernel": "bucket", "pinned": True,
        }  # fmt: skip
        figures = daemon.status()["jobs"]["joining"]["operators"]["joined"]
        assert (figures["kernel"], figures["kernel_pinned"]) == ("bucket", True)
        assert json.loads(choose_by_hand("joining", "joined", "auto").stdout)["pinned"] is False
        for words, text in (
            (("joining", "joined", "handshake"), "handshake"),
            (("joining", "pairs", "chain"), "operators.pairs"),
            (("none", "joined", "chain"), "no job none"),
        ):
            assert text in str(choose_by_hand(*words).exception)
        assert ask(daemon.door, "status")["jobs"]["joining"]["operators"]["joined"]


def test_a_store_with_a_broken_profile_is_named_at_the_start(tmp_path):
    (tmp_path / profile.FILE).write_text("{}")
    with pytest.raises(ConfigError, match=r"placement\.json"):
        profile.load_profile(Path(tmp_path))
