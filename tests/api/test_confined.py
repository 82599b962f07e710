"""Job documents over REST are confined, and requests are unambiguous about their length."""

from __future__ import annotations

import copy
import json
import socket
from pathlib import Path
from types import SimpleNamespace

import h11
import pytest

from edged.config import load
from edged.daemon import configuration
from edged.documents.reach import Reach
from edged.errors import JobError
from edged.http.request_timeouts import UnambiguousConnection
from edged.job.confinement import Confinement, covers
from edged.job.plan import parse_job
from tests.api.support import small

LISTEN = ("127.0.0.1:1024-65535",)


def with_sink(path: str) -> dict:
    document = copy.deepcopy(small("confined"))
    document["sinks"]["out"] = {"type": "file", "input": "confined", "path": path}
    return document


def with_tcp(**source: str) -> dict:
    document = copy.deepcopy(small("confined"))
    document["streams"]["confined"]["source"] = {"type": "tcp", "listen": "127.0.0.1:0", **source}
    return document


def put(client, document):
    return client.put("/v1/jobs/confined", content=json.dumps(document),
                      headers={"Content-Type": "application/json"})  # fmt: skip


def test_over_rest_nothing_outside_is_named_and_what_is_inside_runs(plant):
    with plant[1].client() as client:
        for document, where in (
            (with_sink("/etc/edged-out"), "sinks.out.path"),
            (with_sink("out"), "sinks.out.path"),
            (with_tcp(token_file="/etc/shadow"), "streams.confined.source.token_file"),
            (with_tcp(tls_cert="/etc/a.pem", tls_key="/etc/a.key"), "source.tls_cert"),
            (with_tcp(listen="0.0.0.0:7499"), "streams.confined.source.listen"),
            (with_tcp(listen="127.0.0.1:80"), "streams.confined.source.listen"),
        ):
            answer = put(client, document)
            assert answer.status_code == 422, answer.text
            assert where in answer.text and "run.remote_" in answer.text
        assert client.get("/v1/jobs/confined").status_code == 404
        assert put(client, with_tcp()).status_code == 201
        assert client.delete("/v1/jobs/confined?drain=false").status_code == 200


class TestConfinement:
    def test_follows_links_and_refuses_what_leads_out(self, tmp_path):
        inside, outside = tmp_path / "in", tmp_path / "out"
        inside.mkdir()
        outside.mkdir()
        (inside / "link").symlink_to(outside)
        bounds = Confinement((inside,), LISTEN, files=inside)
        for path in ("a", str(inside / "b")):
            bounds.check(parse_job(with_sink(path)))
        for path in (str(outside), "link", "link/a", str(inside) + "-else", "/"):
            with pytest.raises(JobError, match=r"sinks\.out\.path.*run\.remote_files"):
                bounds.check(parse_job(with_sink(path)))

    def test_never_takes_a_program_nor_a_kind_that_does_not_say(self):
        for reach, problem in ((Reach(programs=("command",)), "program"), (None, "declare")):
            source = SimpleNamespace(kind="exec", reach=lambda _, reach=reach: reach)
            stream = SimpleNamespace(section="streams", source=source)
            plan = SimpleNamespace(streams={"s": stream}, sinks={})
            with pytest.raises(JobError, match=problem):
                Confinement((Path("/"),), ("*:*",), ("*:*",)).check(plan)

    def test_takes_connections_that_root_allows(self):
        source = SimpleNamespace(
            kind="x", reach=lambda _: Reach(connects={"broker": "b.example:1"})
        )
        stream = SimpleNamespace(section="streams", source=source)
        plan = SimpleNamespace(streams={"s": stream}, sinks={})
        Confinement(connect=("b.example:1",)).check(plan)
        with pytest.raises(JobError, match=r"run\.remote_connect"):
            Confinement(connect=("b.example:2",)).check(plan)

    def test_ranges_of_ports(self):
        assert covers("*:7400-7499", "0.0.0.0:7400") and covers("h:1", "h:1")
        assert covers("h:1024-65535", "h:0") and covers("[::1]:*", "[::1]:5")
        for entry, address in (
            ("h:1", "h:2"), ("h:1", "g:1"), ("h:1-2", "h:0"), ("h:", "h:1"), ("h:x", "h:1"),
            ("*:5", "h:"), ("", "h:1"),
        ):  # fmt: skip
            assert not covers(entry, address)


def test_a_job_file_of_another_user_is_confined(tmp_path, monkeypatch):
    job, config = tmp_path / "job.json", tmp_path / "edged.toml"
    job.write_text(json.dumps(with_sink("/etc/edged-out")))
    config.write_text(f'[run]\njobs = ["{job}"]\n[store]\ndirectory = "{tmp_path}/store"\n')
    assert len(configuration.job_files(load(config))) == 1
    monkeypatch.setattr(configuration, "is_confined", lambda _: True)
    with pytest.raises(JobError, match=r"job\.json.*sinks\.out\.path"):
        configuration.job_files(load(config))


def test_every_kind_that_ships_declares_its_reach(tmp_path):
    bounds = Confinement((tmp_path,), LISTEN, files=tmp_path)
    bounds.check(parse_job(with_sink("x")))
    bounds.check(parse_job(with_tcp()))
    document = small("confined")
    for source in (
        {"type": "file", "path": str(tmp_path / "*.csv")},
        {"type": "generator", "rate": 1, "columns": {"id": {"kind": "sequence"}}},
    ):
        document["streams"]["confined"]["source"] = source
        try:
            plan = parse_job(document)
        except JobError:
            continue  # its columns are another test's matter
        bounds.check(plan)


class TestContentLengthBesideTransferEncoding:
    REQUEST = (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n"
    )

    def test_is_refused_where_the_head_is_read(self):
        connection = UnambiguousConnection(h11.SERVER)
        connection.receive_data(self.REQUEST)
        with pytest.raises(h11.RemoteProtocolError, match="beside"):
            connection.next_event()

    def test_is_answered_with_400_by_the_api(self, plant):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(120)
            peer.connect(str(plant[1].socket))
            peer.sendall(self.REQUEST)
            assert peer.recv(64).startswith(b"HTTP/1.1 400 ")
