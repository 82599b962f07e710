"""Bad documents, settings, peers and commands are refused with a reason; the daemon continues."""

import copy
import json
import os
import re
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass

import pyarrow as pa
import pytest

from edged.central.tokens import new_token, token_line
from edged.cli import main
from edged.client import Producer
from edged.control.door import ask
from edged.errors import ConfigError, PeerError
from tests.system import producers
from tests.system.support import System, assert_exactly_once, law_job, until


@dataclass
class Done:
    """A command that has ended."""

    returncode: int
    stderr: str


@pytest.fixture
def edged(monkeypatch, capsys):
    """`edged …` until it ends, in this process: what is refused here has started nothing."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["edged", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, capsys.readouterr().err)

    return run


def changed(path, value):
    """The law's job with one value changed; `path` is dotted."""
    job = copy.deepcopy(law_job("127.0.0.1:0"))
    *parents, last = path.split(".")
    place = job
    for name in parents:
        place = place[name]
    place[last] = value
    return job


FAULTS = [
    ("streams.a.colour", "red", "streams.a.colour"),
    ("streams.a.columns.id", "int65", "streams.a.columns.id"),
    ("streams.a.source", {"type": "carrier_pigeon"}, "streams.a.source"),
    ("operators.joined.on", ["nonsense"], "operators.joined.on"),
    ("operators.counted.input", "nowhere", "operators.counted.input"),
    ("operators.counted.size", "-1s", "operators.counted.size"),
    ("sinks.pairs.page", "1 banana", "sinks.pairs.page"),
    ("promises.latency", "soon", "promises.latency"),
    ("name", "../../etc", "name"),
]


@pytest.mark.parametrize(("path", "value", "said"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_bad_job_ends_with_65_and_the_path_to_the_fault(tmp_path, edged, path, value, said):
    job = tmp_path / "job.json"
    job.write_text(json.dumps(changed(path, value)))
    done = edged("run", job, "--store", tmp_path / "store")
    assert done.returncode == 65, done.stderr
    where = re.escape(f"{job}: {said}")
    assert re.match(rf"edged: {where}\b.*: ", done.stderr) and "\n" not in done.stderr.strip()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "a = ", "[]", "\x00\xff", '{"name": 1e999}', "[[[[" * 9999]
)
def test_a_file_that_is_no_job_ends_with_65(tmp_path, edged, text):
    for name in ("job.json", "job.toml"):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        done = edged("run", tmp_path / name, "--store", tmp_path / "store")
        assert done.returncode == 65, done.stderr
        assert "Traceback" not in done.stderr


def test_bad_settings_end_with_78_or_64_before_anything_is_made(tmp_path, edged):
    job = tmp_path / "job.json"
    job.write_text(json.dumps(law_job("127.0.0.1:0")))
    store = tmp_path / "store"
    for options, code, said in (
        (["--uplink", "ftp://centre"], 78, "https://"),
        (["--store-max", "1000000"], 78, "too small"),
        (["--token-file", tmp_path / "missing"], 64, "does not exist"),
        (["--workers", "0"], 64, "workers"),
    ):
        done = edged("run", job, "--store", store, *options)
        assert (done.returncode, said in done.stderr) == (code, True), (options, done.stderr)
        assert "Traceback" not in done.stderr


def test_a_process_that_cannot_open_its_door_ends_with_78_and_the_reason(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(law_job("127.0.0.1:0")))
    command = [sys.executable, "-m", "edged", "run", str(tmp_path / "job.json"), "--store"]
    done = subprocess.run(
        [*command, str(tmp_path / "store"), "--door", str(tmp_path / "no" / "such" / "door")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 78 and "door" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def system(tmp_path):
    """A running system with tokens at both ends."""
    with System(tmp_path) as made:
        tokens = {name: new_token() for name in ("device", "producer")}
        for name, text in tokens.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "tokens").write_text(token_line("edge-1", tokens["device"]) + "\n")
        made.collect("--tokens", str(tmp_path / "tokens"))
        job = law_job(made.address)
        for stream in job["streams"].values():
            stream["source"]["token_file"] = str(tmp_path / "producer")
            stream["idle_after"] = "5s"  # a vandal with a token counts so long as a producer
        made.job = job
        made.run(job, "--token-file", str(tmp_path / "device"))
        made.produce(of=1, token=tokens["producer"])
        yield made


def test_bad_peers_lose_their_connection_and_nobody_else_does(system):
    token = system.config["token"]
    for wrong in (None, "", "guess", token[:-1], token + "x"):
        with pytest.raises(PeerError, match="token"):
            Producer(system.address, "a", producers.A, producer="thief", token=wrong).connect()
    with pytest.raises(PeerError, match="nowhere"):
        Producer(system.address, "nowhere", producers.A, producer="lost", token=token).connect()
    other = pa.schema([("id", pa.string())])
    with pytest.raises(PeerError):
        Producer(system.address, "a", other, producer="odd", token=token).connect()
    greeting = greet(token)
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(1 << 16),
        b"\xff" * 4096,
        b"\xff\xff\xff\xff" + struct.pack("<i", 0x7FFFFFFF),
        greeting[: len(greeting) // 2],
        greeting + os.urandom(5000),
        greeting + greeting,
        greeting + b"\xff\xff\xff\xff" + struct.pack("<i", -5),
    ):
        throw(system.address, data)
    batches = system.end_streams()
    system.drain()
    assert_exactly_once(system.landing, system.config, batches)


def greet(token):
    sink = pa.BufferOutputStream()
    meta = {"edged.stream": "a", "edged.producer": "vandal", "edged.token": token}
    with pa.ipc.new_stream(sink, producers.A.with_metadata(meta)):
        pass
    return sink.getvalue().to_pybytes()[:-8]


def throw(address, data):
    """Send `data` and close, or see the connection closed."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as s:
        s.settimeout(120)
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            while s.recv(1 << 16):
                pass
        except (ConnectionError, BrokenPipeError):
            return


def test_bad_commands_at_the_door_are_answered_and_change_nothing(system):
    for text in (
        b"\n",
        b"{}\n",
        b"[1]\n",
        b"null\n",
        b"\xff\xfe\n",
        b'{"cmd": 5}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 2_000_000,
    ):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(120)
            s.connect(str(system.door))
            try:
                s.sendall(text)
                s.shutdown(socket.SHUT_WR)
                answer = s.recv(1 << 16)
            except ConnectionError:
                answer = b""
            assert answer == b"" or "error" in json.loads(answer)
    bad = copy.deepcopy(system.job)
    bad["operators"]["joined"]["on"] = ["nonsense"]
    with pytest.raises(ConfigError, match=r"operators\.joined\.on"):
        system.replace_job(bad)
    for job in (None, [], 5, {"name": "law"}, {**system.job, "name": "other"}):
        with pytest.raises(ConfigError):
            ask(system.door, "replace", job=job)
    batches = system.end_streams()
    system.drain()
    assert_exactly_once(system.landing, system.config, batches)


def test_a_token_that_the_centre_refuses_costs_only_time(system, tmp_path):
    tokens = tmp_path / "tokens"
    good = tokens.read_text()
    tokens.write_text(token_line("edge-1", "another") + "\n")
    until(lambda: system.status()["uplink"]["state"] == "unauthorized", 120, "refused")
    before = system.acked()
    until(lambda: all(system.acked()[p] > before[p] for p in before), 120, "still taking in")
    tokens.write_text(good)
    system.parts["daemon"].kill()  # a refused uplink asks again after a minute only
    system.parts["daemon"].restart()
    batches = system.end_streams()
    system.drain()
    assert_exactly_once(system.landing, system.config, batches)
