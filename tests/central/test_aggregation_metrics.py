"""The lag of a table behind the landing, compared with a direct count of the landing's rows."""

import json

import pytest

from edged.central.aggregation_metrics import AggregationMetrics, lag
from edged.central.landing import DirectoryLanding
from edged.central.spec import parse_spec
from edged.central.tables import Manifest, TableDirectory
from tests.central.support import SCHEMA, make_page
from tests.central.test_landing import send

TABLE = {"from": "p", "sql": "SELECT k, v FROM p", "mode": "append"}


@pytest.fixture
def place(tmp_path):
    landing = DirectoryLanding(tmp_path / "landing", segment_bytes=1200)
    for stream in ("power", "other"):
        landing.register(stream, 1, SCHEMA)
    yield tmp_path, landing
    landing.close()


def published(tmp_path, position):
    directory = TableDirectory(tmp_path / "out" / "t")
    directory.batch(0).mkdir(parents=True)
    text = json.dumps(position)
    directory.publish(Manifest(0, "q", "append", "parquet", "batch", offset=text))


def test_lag_is_the_pages_of_the_tables_stream_behind_its_position(place):
    tmp_path, landing = place
    spec = parse_spec({"streams": {"p": "power"}, "tables": {"t": TABLE}})
    paths = str(landing.path), str(tmp_path / "out")
    assert lag(spec, "t", *paths) == (0, 0)
    pages = [make_page(seq) for seq in range(1, 11)]
    for seq, page in enumerate(pages, 1):
        send(landing, page)
        send(landing, make_page(seq, stream="other"))
    assert lag(spec, "t", *paths)[1] == sum(map(len, pages))
    first = sorted(p.stem for p in (landing.path / "segments").glob("*.idx"))[0]
    published(tmp_path, {first: 3})  # two of this stream, one of the other
    assert lag(spec, "t", *paths)[1] == sum(map(len, pages[2:]))
    batches = AggregationMetrics(spec, *paths, 60_000_000)
    batches.on_event({"event": "batch", "rows": 7, "seconds": 0.2})
    text = batches.exposition().encode()[0].decode()
    assert 'edged_aggregate_batches_total{result="ok"} 1.0' in text
    assert f"edged_aggregate_lag_bytes {sum(map(len, pages[2:]))}.0" in text
    assert "edged_aggregate_rows_total 7.0" in text
