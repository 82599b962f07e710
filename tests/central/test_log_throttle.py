"""The collector's log stays short when devices repeat the same problem."""

import logging

from edged.central.admission import CONFLICT, QUOTA, PageProblem
from edged.central.log_throttle import EVERY_S, KNOWN_MAX, ProblemLog


def test_each_kind_of_each_device_is_told_once_a_minute_with_how_many_there_were(caplog):
    now, waits = [0.0], PageProblem(QUOTA, "has too much")
    told = ProblemLog(lambda: now[0])
    for _ in range(100):
        told.write("a", waits)
        told.write("b", waits)
        now[0] += EVERY_S / 100 - 1e-9
    told.write("a", PageProblem(CONFLICT, "has other bytes", stream="power"))
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("WARNING", "a: quota: has too much"),
        ("WARNING", "b: quota: has too much"),
        ("ERROR", "a: conflict: has other bytes"),
    ]
    assert caplog.records[-1].fields == {
        "event": "page.conflict", "device": "a", "stream": "power"
    }  # fmt: skip
    now[0] += EVERY_S
    told.write("a", waits)
    assert caplog.records[-1].message == "a: quota: has too much (99 more since the last line)"


def test_a_fleet_of_any_size_is_remembered_within_bounds(caplog):
    caplog.set_level(logging.CRITICAL)
    told = ProblemLog()
    for n in range(2 * KNOWN_MAX + 5):
        told.write(f"d{n}", PageProblem(QUOTA, ""))
        assert len(told._written) <= KNOWN_MAX
