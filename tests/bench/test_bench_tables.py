"""`edged bench tables`: its contract, and results that are equal."""

import json

from click.testing import CliRunner

from edged.bench import tables
from edged.bench.tables_population import ARMS


def test_a_quick_run_keeps_the_contract_and_every_result_is_equal(tmp_path):
    path, plot = tmp_path / "tables.json", tmp_path / "tables.png"
    done = CliRunner().invoke(tables.command, ["--quick", "--json", str(path), "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    result = json.loads(path.read_text())
    members = ["runs", "rocksdb"]
    assert [r["member"] for r in result["incremental"]] == [*members, "duckdb", "floor"]
    for row in result["incremental"]:
        assert row["equal"] is (None if row["member"] == "floor" else True)
        assert row["changes_per_cpu_s"] > 0
    found = [(r["member"], r["ratio"], r["arm"]) for r in result["population"]]
    assert found == [("runs", ratio, arm) for ratio in (36, 72, 144) for arm in ARMS]
    for row in result["population"]:
        assert row["equal"] is True
        assert min(row["cpu_s"], row["wall_s"], row["later_cpu_s"]) > 0
    assert [r["member"] for r in result["bulk"]] == members
    assert set(result["cold"]) >= {"ratio_to_disk", "resident_within_promise"}
    assert len(result["memtables"]) == 8
    assert all(row["equal"] for row in result["memtables"])
    assert [text.split(":")[0] for text in result["left_out"]] == ["query4", "enrich"]
    assert result["merging"]["p99_ratio"] > 0
    assert plot.stat().st_size > 10_000
