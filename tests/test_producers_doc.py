"""The code in docs/producers.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sources.tcp_rig import Rig, rows

DOC = Path(__file__).parent.parent / "docs" / "producers.md"


@pytest.fixture
def code() -> dict:
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL):
        exec(block, names)
    return names


def test_the_example_with_promises_commits_and_resumes(code: dict) -> None:
    batches = [rows(10 * i, 10) for i in range(5)]
    with Rig() as rig:
        code["send_all"]("127.0.0.1", rig.port, "s", "p", batches[:3])
        code["send_all"]("127.0.0.1", rig.port, "s", "p", batches)
        assert rig.all_keys() == list(range(50))
        with pytest.raises(ConnectionError, match="no stream 'x' here"):
            code["send_all"]("127.0.0.1", rig.port, "x", "p", batches)


def test_the_example_without_promises_sends(code: dict) -> None:
    with Rig() as rig:
        code["send_some"]("127.0.0.1", rig.port, "s", [rows(0, 10), rows(10, 10)])
        rig.until(lambda: rig.count() == 20)


def test_the_example_with_the_client_sends(code: dict) -> None:
    with Rig() as rig:
        code["send_with_client"](rig.address, "s", "p", [rows(0, 10), rows(10, 10)])
        assert rig.count() == 20
