"""`edged bench heat`: a limit is kept, a board without one throttles, and rows say simulated."""

import json

from click.testing import CliRunner

from edged.bench.heat import ARMS, command
from governors.heat_limit import MARGIN_C


def test_a_board_in_hot_air_throttles_unless_a_limit_holds_its_races(tmp_path):
    path, plot = tmp_path / "f.json", tmp_path / "f.png"
    done = CliRunner().invoke(
        command,
        ["--json", str(path), "--plot", str(plot), "--board", "jetson-nano", "--ambient", "84",
         "--load", "0.8", "--seconds", "280"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())["rows"]
    assert [(r["policy"], r["max_celsius"] is not None) for r in rows] == list(ARMS)
    for row in rows:
        assert row["source"] == "simulated" and 0 <= row["late_fraction"] <= 1
        limit = row["max_celsius"]
        if limit is None:
            assert row["throttled_fraction"] > 0 and row["celsius_max"] >= row["trip_celsius"]
        else:
            assert row["throttled_fraction"] == 0 and row["celsius_max"] <= limit - MARGIN_C + 0.1
            assert row["held_fraction"] > 0
    assert plot.stat().st_size > 10_000
