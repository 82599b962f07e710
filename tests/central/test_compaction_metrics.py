"""What a collector's metrics say of its landing's compaction."""

import pytest

from edged.central import compacted, segments
from edged.central.compaction_metrics import CompactionMetrics
from edged.central.compactor import compact
from edged.metrics import Exposition
from edged.metrics.central import COMPACTION
from tests.central.support import collecting
from tests.central.test_compaction import fill, landing, name, seal  # noqa: F401
from tests.central.test_fleet import samples


def values(metrics):
    """Values by names, without the common prefix."""
    exposition = Exposition(COMPACTION)
    metrics.add_to(exposition)
    return {
        sample.name.removeprefix("edged_compaction_"): sample.value
        for family in exposition.collect()
        for sample in family.samples
    }


def test_segments_wait_until_they_are_compacted_and_damaged_ones_are_counted(landing):  # noqa: F811
    fill(landing, sealed=3)
    metrics = CompactionMetrics(landing.path)
    before = values(metrics)
    assert (before["waiting_segments"], before["segments"], before["damaged_segments"]) == (3, 0, 0)
    assert "last_commit_timestamp_seconds" not in before
    with segments.pages_path(landing.path, name(2)).open("r+b") as file:
        file.seek(300)
        file.write(b"\xff" * 8)
    compact(landing.path)
    after, found = values(metrics), compacted.read(landing.path)
    assert (after["waiting_segments"], after["segments"], after["damaged_segments"]) == (0, 2, 1)
    assert after["rows"] == 400 and after["bytes"] == sum(
        path.stat().st_size for path in compacted.directory(landing.path).rglob("*.parquet")
    )
    assert after["last_commit_timestamp_seconds"] == found.groups[-1].committed_us / 1e6
    seal(landing, 4)
    assert values(metrics)["waiting_segments"] == 1


def test_a_collector_exposes_them_also_with_a_damaged_manifest(landing):  # noqa: F811
    fill(landing, sealed=2)
    compact(landing.path)
    with collecting(landing.path, "--metrics", "127.0.0.1:0") as collector:
        found = {key[0]: value for key, value in samples(collector.metrics).items()}
        assert found["edged_compaction_segments"] == 2
        assert found["edged_compaction_rows"] == 400
        assert found["edged_compaction_manifest_unreadable"] == 0
    compacted.manifest_path(landing.path).write_bytes(b"nonsense")
    assert values(CompactionMetrics(landing.path)) == {"manifest_unreadable": 1}


@pytest.mark.parametrize("made", [False, True])
def test_a_landing_without_compaction_has_zeros(tmp_path, made):
    segments.segments_dir(tmp_path).mkdir()
    if made:
        compacted.directory(tmp_path).mkdir()
    assert set(values(CompactionMetrics(tmp_path)).values()) == {0}
