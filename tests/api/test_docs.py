"""docs/api.md: every command in it, run by a shell against a real API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from api.app import routes
from tests.api.support import both, small_toml

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
SHELL = """
set -euo pipefail
curl() { command curl --silent --show-error --fail-with-body "$@" || [ $? = 28 ]; }  # 28: max-time
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a script where the page's variables are set; returns what it printed."""
    with both(tmp_path_factory.mktemp("doc"), tcp=True) as (_, api):
        (api.path / "job.toml").write_text(small_toml("doc"))
        environment = {
            **os.environ, "SOCKET": str(api.socket), "TOKENS": str(api.tokens.path),
            "URL": f"http://127.0.0.1:{api.port}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip

        def run(script):
            done = subprocess.run(
                ["bash", "-c", SHELL + script], env=environment, cwd=api.path,
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
            return done.stdout

        yield run


def test_the_commands_of_the_page_work_in_their_order(shell):
    told = [shell(block) for block in BLOCKS]
    assert len(told) >= 5
    assert '"device":"dev"' in told[0]
    assert "event: snapshot" in "".join(told)
    assert '{"stream":"doc","rows":2,"replayed":false,"lost":0}' in told[-1]
    assert '"replayed":true' in shell(BLOCKS[-1])


def test_every_resource_stands_on_the_page():
    for path in routes().openapi()["paths"]:
        parts = [part for part in re.split(r"/v1|(?=[/:][a-z])", path) if part]
        named = parts[-1].partition("{")[0] if parts else f"`GET {path}`"
        assert named in PAGE, path
