"""From a configuration to the daemon's settings; faults across values; `edged validate` and `edged
run` with a configuration."""

import json
import subprocess
import sys

import pytest

from edged.config import SettingError, load
from edged.daemon import configuration
from edged.errors import JobError
from tests.governors.owning import Bench, end, limits, start

JOB = """\
name = "{name}"
[streams.s]
source = {{ type = "generator", rows = 100, rate = 1000.0 }}
columns = {{ time = "timestamp", v = "int64" }}
time = "time"
[sinks.out]
type = "pages"
input = "s"
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems(path, environ=None):
    return [str(problem) for problem in configuration.problems(load(path, environ or {}))]


def edged(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "edged", *map(str, words)], capture_output=True, text=True, **more
    )


def test_jobs_are_named_by_patterns_and_files_each_once_and_sorted(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / "jobs.d" / f"{name}.toml", JOB.format(name=name))
    path = write(tmp_path / "edged.toml", '[run]\njobs = ["jobs.d/*.toml", "jobs.d/a.toml"]\n')
    files = configuration.job_files(load(path, {}))
    assert [file.path.name for file in files] == ["a.toml", "b.toml"]
    assert [plan.name for plan in configuration.plans(files)] == ["a", "b"]
    write(path, '[run]\njobs = ["nowhere.d/*.toml"]\n')
    assert configuration.job_files(load(path, {})) == []


def test_settings_are_those_of_the_flags_that_they_replace(tmp_path):
    token = write(tmp_path / "token", "abc\n")
    path = write(
        tmp_path / "edged.toml",
        f'[device]\nname="d"\n[store]\ndirectory="s"\nbytes_max="1GiB"\n[run]\nworkers=3\n'
        f'[uplink]\nurl="http://c:1"\ntoken_file="{token}"\nplain_token=true\n'
        '[energy]\nboard="none"\npolicy="power_cap"\nsettings={watts=5.0}\nallow=["emc"]\n'
        'helper="/h"\n[[energy.meters.external]]\nname="plug"\nfile="/m"\n',
    )
    made = configuration.settings(load(path, {}))
    assert (made.device, made.directory, made.workers) == ("d", tmp_path / "s", 3)
    assert (made.uplink_url, made.uplink_token, made.uplink_ca) == ("http://c:1", "abc", None)
    assert (made.store_bytes_max, made.trace, made.door) == (1 << 30, None, tmp_path / "s" / "door")
    side = made.energy
    assert (side.board, side.policy, dict(side.settings)) == ("none", "power_cap", {"watts": 5.0})
    assert (side.allowed, [e.name for e in side.meters.externals]) == (("emc",), ["plug"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[energy]\npolicy = "race_to_bed"\n', "'race_to_bed' (did you mean race_to_idle?) [file:"),
        ('[energy]\npolicy="power_cap"\nsettings={wats=1}\n', "wats (did you mean watts?) [file:"),
        ('[energy]\npolicy="fixed"\nsettings={cpu_mhz=-1}\n', "energy.settings: policy fixed: "),
        (
            "[energy]\nmeters = { label = {} }\n",
            "meters.label: no such setting; did you mean labels?",
        ),
        (
            '[energy]\nboard = "simulated:orin-nan"\n',
            "energy.board: no board profile 'orin-nan' (did",
        ),
        (
            '[energy]\nboard="simulated:orin-nano"\nallow=["emcc"]\n',
            "emcc here (did you mean emc?)",
        ),
        (
            '[energy]\nallow = ["offline:much"]\n',
            "energy.allow: 'offline:much' is not known; write e.g.",
        ),
        ('[uplink]\nurl = "https://c:1"\nca = "ca.pem"\n', "ca.pem cannot be read: No such file"),
        ('[api]\ntls_cert = "bad.toml"\ntls_key = "k"\n', "api.tls_key: "),
        ('[store]\nbytes_max = "1MiB"\n[run]\njobs = ["twice1.toml"]\n', "store of"),
        ("[energy]\nmeters = { external = 5 }\n", "energy.meters: meters.external: expected list"),
        ('[energy]\nboard = "/nowhere"\n', "energy.board: /nowhere is no directory (name a"),
        ('[uplink]\ntoken_file = "t"\n', "t cannot be read: No such file or directory [file:"),
        ('[run]\njobs = ["a.toml"]\n', "a.toml is no file (name job documents) [file:"),
        ('[run]\njobs = ["twice*"]\n', "twice1.toml has a job j too"),
        ('[run]\njobs = ["bad*"]\n', "bad.toml: sinks.out.input: no stream or operator is called"),
    ],
)
def test_what_is_wrong_is_told_with_the_key_and_where_it_stands(tmp_path, text, said):
    for name in ("twice1", "twice2"):
        write(tmp_path / f"{name}.toml", JOB.format(name="j"))
    write(tmp_path / "bad.toml", JOB.format(name="bad").replace('input = "s"', 'input = "t"'))
    found = problems(write(tmp_path / "edged.toml", text))
    assert len(found) == 1
    assert said in found[0]


def test_everything_that_is_wrong_is_found_in_one_go(tmp_path):
    text = (
        '[energy]\nboard = "/nowhere"\npolicy = "race_to_bed"\nmeters = { label = {} }\n'
        'allow = ["emc:x", "gpu_pm:1"]\n[uplink]\ntoken_file = "t"\n[run]\njobs = ["a.toml"]\n'
    )
    found = [said.partition(": ")[0] for said in problems(write(tmp_path / "edged.toml", text))]
    assert found == [
        "energy.board", "energy.meters", "energy.policy", "energy.allow", "energy.allow",
        "uplink.token_file", "run.jobs",
    ]  # fmt: skip


def test_what_is_allowed_is_held_against_the_board_that_is_named(tmp_path):
    path = tmp_path / "edged.toml"
    for board, wrong in (("simulated:orin-nano", 0), ("simulated:generic-x86", 1), ("none", 0)):
        write(path, f'[energy]\nboard = "{board}"\nallow = ["emc", "gpu_pm", "offline:0.05"]\n')
        assert len(problems(path)) == wrong, board


def test_a_start_names_the_file_of_a_wrong_job(tmp_path):
    bad = write(tmp_path / "bad.toml", JOB.format(name="bad").replace('input = "s"', 'input = "t"'))
    config = load(None, {"EDGED_RUN__JOBS": str(bad)})
    with pytest.raises(JobError, match=r"bad\.toml: sinks\.out\.input"):
        configuration.plans(configuration.job_files(config))
    with pytest.raises(SettingError, match=r"run\.jobs: /nowhere\.toml is no file .*env:EDGED_RUN"):
        configuration.job_files(load(None, {"EDGED_RUN__JOBS": "/nowhere.toml"}))


def test_validate_finds_everything_at_once_and_shows_where_values_come_from(tmp_path):
    write(tmp_path / "jobs.d" / "a.toml", JOB.format(name="a"))
    path = write(tmp_path / "edged.toml", '[run]\njobs = ["jobs.d/*.toml"]\n')
    done = edged("validate", path, "--values", env={"PATH": "/bin", "EDGED_LOG__LEVEL": "debug"})
    assert done.returncode == 0, done.stderr
    assert 'log.level = "debug"  [env:EDGED_LOG__LEVEL]' in done.stdout
    assert f"  [file:{path}:2]" in done.stdout
    drop_in = write(
        tmp_path / "edged.toml.d" / "x.toml", '[log]\nlevle = "x"\n[run]\nworkers = 0.5\n'
    )
    done = edged("validate", path, "--json")
    assert done.returncode == 78
    faults = json.loads(done.stdout)["faults"]
    assert [(f["path"], f["advice"], f["origin"]) for f in faults] == [
        ("log.levle", "did you mean log.level?", f"file:{drop_in}:2"),
        ("run.workers", "", f"file:{drop_in}:4"),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "Missing argument 'JOBS...', or --config."),
        (["run", "{job}"], "Missing option '--store', or --config."),
    ],
)
def test_without_a_configuration_a_run_must_be_told_its_jobs_and_its_store(tmp_path, words, said):
    job = write(tmp_path / "a.toml", JOB.format(name="a"))
    done = edged(*(word.format(job=job) for word in words), env={"PATH": "/bin"})
    assert done.returncode == 64
    assert said in done.stderr


def test_a_run_with_a_wrong_configuration_ends_before_anything_is_made(tmp_path):
    path = write(tmp_path / "edged.toml", '[store]\ndirectory = "s"\nbytes = 1\n')
    done = edged("run", "--config", path)
    assert done.returncode == 78
    assert "store.bytes: unknown key (did you mean store.bytes_max?)" in done.stderr
    assert not (tmp_path / "s").exists()


def test_limits_are_restored_under_a_configuration_that_somebody_has_broken(tmp_path):
    bench = Bench(tmp_path)
    owner, _ = start(bench)
    owner.kill()
    end(owner)
    assert limits(bench.sysfs) != bench.before
    path = write(
        tmp_path / "edged.toml",
        f'[store]\ndirectory = "state"\n[energy]\nboard = "{bench.root}"\n[run]\nworkers = "x"\n',
    )
    write(tmp_path / "edged.toml.d" / "x.toml", "[energy\n")
    done = edged("governor", "restore", "--config", path)
    assert done.returncode == 0, done.stderr
    assert "is not TOML" in done.stderr and "run.workers" in done.stderr
    assert limits(bench.sysfs) == bench.before
