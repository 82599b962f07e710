"""States on their way between daemons: parts, bounds, and what is refused."""

from __future__ import annotations

import base64
import io
import zlib
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import numpy as np
import pytest

from edged.daemon import job_states
from edged.daemon.job_states import JobStates
from edged.errors import CommandError
from edged.job import state_transfer

STATE = {"operators/mean/groups": np.arange(9)}


@pytest.fixture
def states():
    with ThreadPoolExecutor(1) as planner:
        yield JobStates(planner)


def text(data):
    return base64.b64encode(data).decode()


def test_a_state_comes_in_parts_and_stays_until_its_job_has_it(states):
    data = state_transfer.pack(STATE)
    for offset in range(0, len(data), 50):
        answer = states.write("a", offset, text(data[offset : offset + 50]))
    assert answer == {"name": "a", "bytes": len(data), "crc": zlib.crc32(data)}
    for _ in range(2):  # a put that was refused is repeated
        assert states.imported("a").unpacked().keys() == STATE.keys()
    before = states.imported("a")
    states.write("a", 0, text(data))
    states.loaded("a", before)
    assert states.imported("a") is not before, "the later one is another put's"
    states.loaded("a", states.imported("a"))
    with pytest.raises(CommandError, match="no state came"):
        states.imported("a")


def test_parts_in_another_order_are_refused(states):
    states.write("a", 0, text(b"12"))
    with pytest.raises(CommandError, match="2 bytes are here, not 3"):
        states.write("a", 3, text(b"4"))
    assert states.write("a", 2, text(b"3"))["bytes"] == 3


def test_states_of_any_names_have_a_bound_together(states, monkeypatch):
    monkeypatch.setattr(job_states, "STATE_BYTES_MAX", 1000)
    for i in range(8):
        states.write(f"a{i}", 0, text(bytes(300)))
    states.write("a5", 300, text(bytes(100)))
    kept = []
    for i in range(8):
        try:
            kept.append((i, len(states.imported(f"a{i}"))))
        except CommandError:
            continue
    assert kept == [(5, 400), (6, 300), (7, 300)], "the newest ones, to which a part has come last"
    with pytest.raises(CommandError, match="more than 1000 bytes"):
        states.write("a5", 400, text(bytes(601)))


def test_what_is_no_state_of_operators_is_refused():
    def packed(body):
        return zlib.crc32(body).to_bytes(4, "little") + body

    out = io.BytesIO()
    np.savez(out, **STATE)
    broken = out.getvalue()[:-30]
    for data, problem in (
        (b"", "damaged"),
        (state_transfer.pack(STATE)[:-1], "damaged"),
        (packed(lz4.frame.compress(broken)), "damaged"),
        (packed(lz4.frame.compress(out.getvalue(), store_size=False)), "no size"),
        (state_transfer.pack({"streams/readings/counts/rows": np.arange(2)}), "not of an operator"),
    ):
        with pytest.raises(ValueError, match=problem):
            state_transfer.unpack(data)
    assert state_transfer.unpack(state_transfer.pack({})) == {}
