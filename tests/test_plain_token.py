"""A bearer token leaves the machine without TLS only where that is permitted on purpose."""

from __future__ import annotations

import pyarrow as pa
import pytest
from click.testing import CliRunner

from edged.cli import send, status
from edged.client import Producer
from edged.config import faults
from edged.errors import ConfigError
from edged.job.plan import parse_job
from edged.job.plan_warnings import warnings
from edged.platform.loopback import is_loopback
from edged.rest import Client

SCHEMA = pa.schema([("time", pa.timestamp("us", "UTC"))])
READABLE = "the token would cross the network without TLS"
PERMITTED = {"EDGED_UPLINK__PLAIN_TOKEN": "true"}


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("127.0.0.1", True), ("127.9.0.1", True), ("::1", True), ("[::1]", True),
        ("localhost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.7", False),
        ("turbine-7", False), ("localhost.example", False), ("", False),
    ],
)  # fmt: skip
def test_loopback_is_what_no_other_machine_reaches(host, found):
    assert is_loopback(host) is found


@pytest.mark.parametrize(
    ("url", "more", "refused"),
    [
        ("http://centre:7500", {}, True),
        ("http://10.0.0.7:7500/path", {}, True),
        ("http://centre:7500", PERMITTED, False),
        ("https://centre:7500", {}, False),
        ("http://127.0.0.1:7500", {}, False),
        ("http://[::1]:7500", {}, False),
    ],
)
def test_the_uplinks_token_needs_tls_beyond_loopback(url, more, refused):
    environment = {"EDGED_UPLINK__URL": url, "EDGED_UPLINK__TOKEN_FILE": "/t", **more}
    found = [str(fault) for fault in faults(None, environment)]
    assert bool(found) is refused
    assert all("uplink.plain_token = true" in text for text in found)


def test_without_a_token_an_uplink_may_go_over_plain_http():
    assert faults(None, {"EDGED_UPLINK__URL": "http://centre:7500"}) == []


def test_the_rest_client_refuses_to_send_a_token_in_plain_text():
    with pytest.raises(ConfigError, match=READABLE):
        Client("http://turbine-7:7443", "secret")
    for address, token in (
        ("http://turbine-7:7443", None),
        ("https://turbine-7:7443", "secret"),
        ("http://127.0.0.1:7443", "secret"),
        ("/run/edged/api.sock", "secret"),
    ):
        Client(address, token).close()
    Client("http://turbine-7:7443", "secret", plain_token=True).close()


def test_the_producer_refuses_to_send_a_token_in_plain_text():
    with pytest.raises(ConfigError, match=READABLE):
        Producer("turbine-7:7400", "s", SCHEMA, token="secret")
    for address, token, more in (
        ("turbine-7:7400", None, {}),
        ("turbine-7:7400", "secret", {"tls": True}),
        ("turbine-7:7400", "secret", {"plain_token": True}),
        ("[::1]:7400", "secret", {}),
    ):
        Producer(address, "s", SCHEMA, token=token, **more).close()


def test_the_commands_name_the_flag_that_permits_it(tmp_path):
    token, rows = tmp_path / "token", tmp_path / "rows.csv"
    token.write_text("secret")
    rows.write_text("time\n2024-01-01T00:00:00Z\n")
    words = ["--api", "http://turbine-7:7443", "--token-file", str(token)]
    asked = CliRunner().invoke(status.command, words)
    assert isinstance(asked.exception, ConfigError)
    assert "--plain-token" in str(asked.exception)
    sent = CliRunner().invoke(
        send.command,
        [str(rows), "--to", "turbine-7:7400", "--stream", "s", "--columns", "time:timestamp",
         "--token-file", str(token), "--json"],
    )  # fmt: skip
    assert isinstance(sent.exception, ConfigError)
    assert "--plain-token" in str(sent.exception)


def test_a_source_that_takes_tokens_in_plain_text_is_warned_of():
    source = {"type": "tcp", "listen": "0.0.0.0:7400", "token_file": "/t"}
    document = {
        "name": "j",
        "streams": {"s": {"source": source, "columns": {"time": "timestamp"}, "time": "time"}},
        "sinks": {"o": {"type": "pages", "input": "s"}},
    }
    assert "without TLS" in warnings(parse_job(document))[0]
    source["listen"] = "127.0.0.1:7400"
    assert warnings(parse_job(document)) == []
