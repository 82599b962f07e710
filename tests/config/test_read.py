"""Origins of values, their precedence, and messages for faults."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import SETTINGS, SettingError, faults, load
from edged.config import page as made
from edged.config.read import tomllib

ROOT = Path(__file__).parents[2]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def wrong(path, environ=None):
    """The messages of all faults."""
    return [str(fault) for fault in faults(path, environ or {})]


def test_without_a_file_every_value_is_the_default():
    config = load(None, {})
    assert config.store.directory == "/var/lib/edged"
    assert {row["origin"] for row in config.values()} == {"default"}
    assert [row["key"] for row in config.values()] == list(SETTINGS)


def test_drop_ins_override_the_file_the_environment_both_and_a_flag_all(tmp_path):
    main = write(
        tmp_path / "edged.toml",
        '[device]\nname = "a"\n[log]\nlevel = "debug"\n'
        "[run]\nworkers = 1\n[telemetry]\nfirst = true\n",
    )
    write(tmp_path / "edged.toml.d" / "20-b.toml", '[device]\nname = "c"\n')
    write(tmp_path / "edged.toml.d" / "10-a.toml", '[device]\nname = "b"\n\n[run]\nworkers = 2\n')
    write(tmp_path / "edged.toml.d" / "30-ignored.bak", "not read")
    environ = {"EDGED_LOG__LEVEL": "error", "EDGED_CACHE": "/x", "HOME": "/root"}
    config = load(main, environ, {"telemetry.first": ("--no-first", False)})
    assert (config.device.name, config.run.workers, config.log.level) == ("c", 2, "error")
    assert config.telemetry.first is False
    assert config.origin("device.name") == f"file:{tmp_path}/edged.toml.d/20-b.toml:2"
    assert config.origin("run.workers") == f"file:{tmp_path}/edged.toml.d/10-a.toml:5"
    assert config.origin("log.level") == "env:EDGED_LOG__LEVEL"
    assert config.origin("telemetry.first") == "flag:--no-first"
    assert config.origin("store.directory") == "default"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[store]\nbytes_max = "1GiB"\n', 2),
        ('# [store]\n\nstore.bytes_max = "1GiB"\n', 3),
        ('store = { bytes_max = "1GiB" }\n', None),
        ('[log]\nlevel = "info"\n[ "store" ]\n\n  "bytes_max"= 5\n', 5),
    ],
)
def test_a_value_tells_the_line_that_it_stands_in(tmp_path, text, line):
    path = write(tmp_path / "edged.toml", text)
    at = f"file:{path}" + (f":{line}" if line else "")
    assert load(path, {}).origin("store.bytes_max") == at


def test_a_table_tells_the_line_of_its_header(tmp_path):
    path = write(tmp_path / "edged.toml", "[energy]\n\n[energy.settings]\nwatts = 5.0\n")
    config = load(path, {})
    assert config.energy.settings == {"watts": 5.0}
    assert config.origin("energy.settings") == f"file:{path}:3"


def test_relative_paths_count_from_their_file_and_in_the_environment_from_here(tmp_path):
    path = write(
        tmp_path / "etc" / "edged.toml", '[run]\njobs = ["jobs.d/*.toml", "/srv/a.toml"]\n'
    )
    config = load(path, {"EDGED_STORE__DIRECTORY": "store"})
    assert config.run.jobs == (f"{tmp_path}/etc/jobs.d/*.toml", "/srv/a.toml")
    assert config.store.directory == f"{Path.cwd()}/store"


def test_an_unknown_key_is_told_with_the_nearest_known_one_and_its_line(tmp_path):
    path = write(tmp_path / "edged.toml", '[store]\n\nbyte_max = "1GiB"\n[stor]\n[xyzzy]\na = 1\n')
    assert wrong(path, {"EDGED_STORE__DIRECTRY": "/x"}) == [
        f"store.byte_max: unknown key (did you mean store.bytes_max?) [file:{path}:3]",
        f"stor: unknown section (did you mean store?) [file:{path}:4]",
        f"xyzzy: unknown section (there are device, store, run, uplink, energy, api, metrics, "
        f"telemetry, log) [file:{path}:5]",
        "EDGED_STORE__DIRECTRY: unknown variable (did you mean EDGED_STORE__DIRECTORY?)",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[store]\nbytes_max = true\n", "store.bytes_max: True is not a size"),
        ('[store]\nbytes_max = "1 parsec"\n', "store.bytes_max: "),
        ("[run]\nworkers = 1.5\n", "run.workers: 1.5 is not a whole number"),
        ("[run]\nworkers = -1\n", "run.workers: -1 is not within 0 to 1024"),
        ("[run]\njobs = 'a'\n", "run.jobs: 'a' is not a list of texts"),
        ("[telemetry]\ninterval_s = nan\n", "telemetry.interval_s: nan is not within 0 to 86400"),
        ("[log]\nlevel = 'loud'\n", "log.level: 'loud' is none of debug, info, warning, error"),
        ("[metrics]\nlisten = '9464'\n", "metrics.listen: '9464' is not HOST:PORT"),
        ("[metrics]\nlisten = 'a:70000'\n", "metrics.listen: 'a:70000' is not HOST:PORT"),
        ("[uplink]\nurl = 'centre:7500'\n", "uplink.url: 'centre:7500' is not a URL"),
        ("[uplink]\nurl = 'http://centre:port'\n", "uplink.url: 'http://centre:port' is not a URL"),
        ("device = 5\n", "device: is not a table (write [device] and its keys below)"),
        ("[device\n", "is not TOML: "),
        ("[uplink]\nurl='http://c'\nca='/ca'\n", "uplink.ca: certificates without TLS"),
        ("[api]\ntls_cert = '/c'\n", "api.tls_key: is not set (a certificate and its key"),
        ("[api]\nlisten='0.0.0.0:1'\n", "api.listen: 0.0.0.0:1 can be reached from elsewhere with"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_and_what_would_be_right(tmp_path, text, said):
    (first, *_) = wrong(write(tmp_path / "edged.toml", text))
    assert said in first, first


def test_a_file_that_is_not_there_is_told(tmp_path):
    (said,) = wrong(tmp_path / "none.toml")
    assert "cannot be read: No such file or directory" in said
    with pytest.raises(SettingError, match="cannot be read") as raised:
        load(tmp_path / "none.toml", {})
    assert raised.value.exit_code == 78


@pytest.mark.parametrize("listen", ["127.0.0.1:7443", "[::1]:7443", "localhost:7443"])
def test_the_api_may_listen_on_loopback_without_tls(tmp_path, listen):
    assert wrong(None, {"EDGED_API__LISTEN": listen}) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "without credentials"),
        ({"EDGED_API__CLIENT_CA": "/ca"}, "api.client_names: is empty"),
        ({"EDGED_API__TOKENS_FILE": "/t"}, ""),
        ({"EDGED_API__CLIENT_CA": "/ca", "EDGED_API__CLIENT_NAMES": "a.example,b"}, ""),
    ],
)
def test_beyond_loopback_it_asks_who_somebody_is(more, said):
    tls = {
        "EDGED_API__LISTEN": "[::]:7443",
        "EDGED_API__TLS_CERT": "/c",
        "EDGED_API__TLS_KEY": "/k",
    }
    assert said in "".join(wrong(None, {**tls, **more}))
    assert bool(said) == bool(wrong(None, {**tls, **more}))


def test_the_environment_has_text_for_every_kind():
    config = load(
        None,
        {
            "EDGED_STORE__BYTES_MAX": "2GiB",
            "EDGED_STORE__SNAPSHOT_BYTES": "65536",
            "EDGED_RUN__WORKERS": "3",
            "EDGED_RUN__JOBS": "/a.toml, /b/*.toml",
            "EDGED_ENERGY__ALLOW": '["emc"]',
            "EDGED_ENERGY__SETTINGS": "watts = 5.5, until = '06:00'",
            "EDGED_TELEMETRY__INTERVAL_S": "2.5",
            "EDGED_TELEMETRY__FIRST": "true",
        },
    )
    assert (config.store.bytes_max, config.store.snapshot_bytes) == (2 << 30, 65536)
    assert (config.run.workers, config.run.jobs) == (3, ("/a.toml", "/b/*.toml"))
    assert config.energy.allow == ("emc",)
    assert config.energy.settings == {"watts": 5.5, "until": "06:00"}
    assert (config.telemetry.interval_s, config.telemetry.first) == (2.5, True)
    assert wrong(None, {"EDGED_RUN__WORKERS": "many"}) == [
        "run.workers: 'many' is not a whole number [env:EDGED_RUN__WORKERS]"
    ]


def test_a_credential_stands_in_where_nobody_said_otherwise(tmp_path):
    token = write(tmp_path / "uplink-token", "secret")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    config = load(None, environ)
    assert config.uplink.token_file == str(token)
    assert config.origin("uplink.token_file") == "credential:uplink-token"
    assert config.api.tokens_file == ""  # not passed
    other = load(None, {**environ, "EDGED_UPLINK__TOKEN_FILE": "/other"})
    assert other.uplink.token_file == "/other"


def test_passwords_are_masked_wherever_they_stand(tmp_path):
    path = write(
        tmp_path / "edged.toml",
        '[[energy.meters.external]]\nname = "plug"\ntopic = "a"\npassword = "hunter2"\n',
    )
    rows = {row["key"]: row for row in load(path, {}).values()}
    assert rows["energy.meters"]["value"]["external"][0]["password"] == "***"
    assert rows["energy.meters"]["secret"] is True
    assert rows["store.directory"]["secret"] is False
    assert "hunter2" not in repr(rows)


def test_what_changed_between_two_configurations_is_told_by_key():
    one, two = load(None, {}), load(None, {"EDGED_LOG__LEVEL": "debug", "EDGED_RUN__WORKERS": "0"})
    assert one.changed(two) == ["log.level"]


@given(st.text(max_size=200))
def test_no_text_in_a_file_is_more_than_a_fault(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for fault in faults(path, {}):
        assert fault.problem


@given(
    st.sampled_from(sorted(SETTINGS)), st.text(st.characters(exclude_characters="\0"), max_size=40)
)
def test_no_text_in_the_environment_is_more_than_a_fault(key, text):
    for fault in faults(None, {f"EDGED_{key.replace('.', '__').upper()}": text}):
        assert fault.problem


def test_the_pages_and_the_commented_file_are_those_of_the_declarations():
    """`python -m edged.config.page` makes them."""
    energy = (ROOT / made.ENERGY).read_text()
    assert energy == made.energy(energy)
    assert all(make() in energy for make in made.PARTS.values())
    assert (ROOT / made.DOCUMENT).read_text() == made.document()
    assert (ROOT / made.COMMENTED).read_text() == made.commented()


def test_the_commented_file_is_right_as_it_is_and_with_every_comment_taken_away(tmp_path):
    text = (ROOT / made.COMMENTED).read_text()
    assert wrong(write(tmp_path / "edged.toml", text)) == []
    bare = "\n".join(
        line[1:] if line[:1] == "#" and line[1:2] not in " " else line for line in text.splitlines()
    )
    path = write(tmp_path / "all.toml", bare)
    assert {f"{s}.{k}" for s, table in tomllib.loads(bare).items() for k in table} == set(SETTINGS)
    assert wrong(path) == []
