"""Devices' tokens: the file, the command that adds lines, and what the collector accepts."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from edged.central.cli_token import command as token
from edged.central.tokens import Tokens, token_line
from edged.errors import ConfigError
from tests.central.support import DEVICE, Device, collecting, landed_pages, make_page


def test_only_the_devices_own_token_opens_the_door(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(
        f"# fleet\n\n{token_line(DEVICE, 'right')}\n{token_line('other', 'theirs')}\n"
    )
    landing = tmp_path / "landing"
    with collecting(landing, "--tokens", str(tokens)) as collector:
        for token in (None, "x", "wrong", "theirs", "right"):
            with Device(collector, token=token) as device:
                expected = 204 if token == "right" else 401
                assert device.register().status_code == expected
                assert device.http.get("/v1/stats").status_code == (401 if expected == 401 else 200)
                if expected == 401:
                    assert device.send(make_page(1)).status_code == 401
        with Device(collector, token="new") as device:
            assert device.send(make_page(1)).status_code == 401
            tokens.write_text("this is no tokens file\n")
            assert device.send(make_page(1)).status_code == 401
            tokens.write_text(token_line(DEVICE, "new") + "\n")
            assert device.send(make_page(1)).status_code == 200
            stats = device.http.get("/v1/stats").json()
            assert list(stats["devices"]) == [DEVICE] and stats["unauthorized"] > 5
        with Device(collector, token="right") as device:
            assert device.send(make_page(2)).status_code == 401
    assert landed_pages(landing) == [make_page(1)]


def test_a_tokens_file_that_is_wrong_is_refused_with_its_line(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(token_line(DEVICE, "x") + "\nturbine-8 1234\n")
    with pytest.raises(ConfigError, match="tokens line 2"):
        Tokens(path)
    with pytest.raises(ConfigError, match="No such file"):
        Tokens(tmp_path / "missing")


def test_the_token_command_makes_what_the_collector_reads(tmp_path):
    path = tmp_path / "tokens"
    made = [
        json.loads(
            subprocess.run(
                [sys.executable, "-m", "edged", "central", "token", device, "--json",
                 "--tokens", str(path)],
                capture_output=True, check=True, text=True,
            ).stdout
        )
        for device in (DEVICE, DEVICE, "other")
    ]  # fmt: skip
    tokens = Tokens(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [tokens.allows(m["device"], m["token"]) for m in made] == [True] * 3
    assert not tokens.allows("other", made[0]["token"])
    assert not tokens.allows("nobody", made[0]["token"])


def test_a_token_is_added_behind_a_line_that_lacks_its_end(tmp_path):
    """After manual editing the last line lacks its newline: appending must not join two lines."""
    path = tmp_path / "tokens"
    path.write_text(token_line(DEVICE, "a"))
    told = CliRunner().invoke(token, ["other", "--tokens", str(path), "--json"])
    tokens = Tokens(path)
    assert tokens.allows(DEVICE, "a") and tokens.allows("other", json.loads(told.output)["token"])
    assert isinstance(
        CliRunner().invoke(token, ["x", "--tokens", "/no/dir"]).exception, ConfigError
    )
