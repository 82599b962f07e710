"""The `tcp` table of a job, and what starting it refuses."""

from __future__ import annotations

import resource
import socket
from types import SimpleNamespace

import pytest

from edged.data.staging import Staging
from edged.errors import ConfigError, JobError
from edged.sources._tcp_socket import TcpSettings, raise_descriptor_limit, split_address
from edged.sources.tcp import TcpPlan
from tests.sources.tcp_rig import SCHEMA


def parse(name: str = "s", **document: object) -> TcpPlan:
    return TcpPlan.parse("streams.s.source", document, SimpleNamespace(name=name))


def staging() -> Staging:
    return Staging("s", SCHEMA, "time", 1 << 20, 1)


def test_a_table_is_checked_to_the_key() -> None:
    for document, path in (
        ({}, "streams.s.source.listen"),
        ({"listen": "7400"}, "streams.s.source.listen"),
        ({"listen": "host:99999"}, "streams.s.source.listen"),
        ({"listen": "h:1", "tls_cert": "a"}, "streams.s.source.tls_cert"),
        ({"listen": "h:1", "connections_max": 0}, "streams.s.source.connections_max"),
        ({"listen": "h:1", "message_bytes_max": "much"}, "streams.s.source.message_bytes_max"),
    ):
        with pytest.raises(JobError) as caught:
            parse(**document)
        assert caught.value.path == path


def test_streams_of_one_address_share_a_listener_if_they_agree() -> None:
    one, two = parse("s", listen="127.0.0.1:0"), parse("r", listen="127.0.0.1:0")
    other = parse("q", listen="127.0.0.1:0", connections_max=5)
    assert one.share_key() == two.share_key() == other.share_key()
    source = one.build({"s": staging(), "r": staging()}, {"s": one, "r": two})
    source.start()
    assert source.port > 0
    source.close()
    with pytest.raises(JobError, match="with other settings"):
        one.build({"s": staging(), "q": staging()}, {"s": one, "q": other})


def test_what_cannot_be_opened_is_named(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        source = parse(listen=f"127.0.0.1:{port}").build({"s": staging()}, {})
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            source.start()
        source.close()
    (tmp_path / "empty").write_text("\n")
    for table, text in (
        ({"token_file": str(tmp_path / "none")}, "token_file .*none cannot be read"),
        ({"token_file": str(tmp_path / "empty")}, "is empty"),
        ({"tls_cert": "/none", "tls_key": "/none"}, "tls_cert /none and tls_key /none"),
        ({"listen": "no.such.host.invalid:1"}, "cannot listen on no.such.host.invalid:1"),
    ):
        source = parse(**{"listen": "127.0.0.1:0", **table}).build({"s": staging()}, {})
        with pytest.raises(ConfigError, match=text):
            source.start()


def test_addresses_may_be_of_version_6() -> None:
    assert split_address("[::1]:7400") == ("::1", 7400)
    assert split_address("host:1") == ("host", 1)


def test_the_plan_says_who_may_come() -> None:
    lines = parse(listen="127.0.0.1:7400", token_file="t").describe()
    assert lines == [
        "Arrow IPC over TCP on 127.0.0.1:7400; a token is wanted; up to 16384 connections"
    ]


def test_the_limit_of_descriptors_is_raised_but_never_lowered() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    raise_descriptor_limit(before[1])
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= before[0]
    assert TcpSettings("h", 1).connections_max == 16384
