"""The layout of `edged top` at several sizes of terminal."""

import pytest
from rich.console import Console

from edged.cli._top import LiveView
from edged.rest import LiveMessage

SINK = {"rows": 7}
SNAPSHOT = {
    "device": "turbine-7", "state": "running", "session": 1, "wall_us": 0, "uptime_s": 60.0,
    "rows": 0, "pages": 0, "sources": [], "latency_ms_p50": None, "latency_ms_p99": None,
    "beats": 0, "promise_missed": False, "saturated": False,
    "legs": {"arrival_to_durable": {"sum_us": 0, "count": 0}},
    "store": {"backlog_pages": 0, "backlog_bytes": 0}, "uplink": None, "process": {"cpu_s": 1.0},
    "energy": {
        "board": {"name": "orin-nano", "simulated": True},
        "watts": {"input": 3.36, "provenance": "simulated"},
        "joules_per_mtuple": {"above_idle": 1.25, "input": 20.5, "provenance": "simulated"},
        "policy": {"policy": "hands_off"},
    },
    "jobs": {"curve": {"state": "running", "version": 1, "streams": {}, "operators": {},
                       "sinks": {"all": SINK, "late": SINK}}},
}  # fmt: skip
EVENT = {"at_us": 0, "kind": "job.created", "level": "info", "job": "curve",
         "text": "job curve created " + "and so on " * 30}  # fmt: skip


def shown(width, height):
    """The lines of the picture."""
    view = LiveView()
    for number in range(2):
        view.on_message(LiveMessage("snapshot", {**SNAPSHOT, "wall_us": 1_000_000 * number}))
    for number in range(9):
        view.on_message(LiveMessage("event", {**EVENT, "kind": f"event.{number}"}))
    console = Console(width=width, height=height or 25, color_system=None)
    with console.capture() as captured:
        console.print(view.render(width, height))
    return captured.get().splitlines()


def test_a_snapshot_that_is_told_twice_makes_no_rates():
    view = LiveView()
    for wall_us, known in ((0, False), (0, False), (1_000_000, True)):
        view.on_message(LiveMessage("snapshot", {**SNAPSHOT, "wall_us": wall_us}))
        assert view.has_rates() == known
        assert (view.figures()["rows_in_per_s"] is not None) == known


@pytest.mark.parametrize("width", [20, 41, 60, 80, 132, 250])
def test_figures_stay_whole_however_narrow_it_is(width):
    lines = shown(width, 60)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "3.36 W" in text
    if width > 40:  # as wide as the longest of them
        for figure in ("power (simulated)", "in all (simulated)", "1.25, 20.5", "? / ?"):
            assert figure in text
        assert "latency (this host) p50 / p99" in text and "orin-nano (simulated)" in text


def test_heat_throttling_and_load_are_shown_where_they_are_known(monkeypatch):
    health = {
        "temperatures": [{"zone": "gpu", "celsius": None}, {"zone": "tj", "celsius": 71.6}],
        "throttling": [{"cause": "throttled", "now": True}, {"cause": "oc1", "now": None}],
        "gpu_load": [{"gpu": "ga10b", "share": 0.37}, {"gpu": "asleep", "share": None}],
    }
    monkeypatch.setitem(SNAPSHOT, "energy", {**SNAPSHOT["energy"], **health})
    text = "\n".join(shown(132, 60))
    for words in ("hottest: tj", "72 °C", "throttled", "load: ga10b", "37%"):
        assert words in text
    assert "oc1" not in text and "asleep" not in text and "hottest: gpu" not in text


def test_power_that_is_not_known_is_a_word_and_no_figure(monkeypatch):
    real = {"board": {"name": "x86", "simulated": False}, "watts": None, "joules_per_mtuple": None}
    monkeypatch.setitem(SNAPSHOT, "energy", {**SNAPSHOT["energy"], **real})
    text = "\n".join(shown(132, 60))
    assert "not known" in text and "this host" not in text and " W" not in text


@pytest.mark.parametrize("height", [24, 30, 60])
def test_the_newest_events_stand_on_the_last_lines_of_a_terminal(height):
    lines = shown(80, height)
    assert len(lines) <= height and lines[-1].split()[1] == "event.8"
    assert lines[-1].endswith("…")


def test_without_a_terminal_events_are_told_whole():
    text = " ".join(" ".join(shown(80, None)).split())
    assert text.count("and so on") == 8 * 30


def test_a_job_is_named_once_in_its_events():
    text = "\n".join(shown(80, 60))
    assert "job curve created" in text and "curve: job curve" not in text


def told(seconds, beats, latency_us=0):
    """A snapshot after some seconds and beats, whose latencies add up to so many µs."""
    legs = {"arrival_to_durable": {"sum_us": latency_us, "count": beats}}
    return LiveMessage(
        "snapshot", {**SNAPSHOT, "wall_us": int(1e6 * seconds), "beats": beats, "legs": legs}
    )


def test_three_beats_make_a_picture_or_three_seconds_without_so_many():
    busy, idle = LiveView(), LiveView()
    for seconds, beats, enough in ((0, 40, False), (1, 42, False), (2, 43, True)):
        busy.on_message(told(seconds, beats, 5_000 * beats))
        assert busy.knows_beats() == enough
    for seconds in range(4):
        idle.on_message(told(seconds, 7, 70))
        assert idle.knows_beats() == (seconds == 3)
    figures = busy.figures()
    assert (figures["beats"], figures["span_s"], figures["latency_ms_mean"]) == (3, 2.0, 5.0)
    assert idle.figures()["latency_ms_mean"] is None


def test_late_results_and_saturated_input_stand_in_the_first_line():
    view = LiveView()
    message = told(0, 0)
    message.data |= {"promise_missed": True, "saturated": True}
    view.on_message(message)
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(view.render(120))
    first = captured.get().splitlines()[0]
    assert "LATE: a latency promise is missed" in first and "SATURATED" in first
