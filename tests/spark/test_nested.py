"""Structs and lists in a real Spark, in Parquet and in exports."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from edged.central.compactor import compact
from edged.central.landing_frame import landing_frame
from edged.central.landing_reader import read_landing
from edged.data.schema import Schema
from tests.central.test_compaction import name, seal
from tests.spark.landings import slotted_page

SCHEMA = Schema.from_json(
    '[{"name":"time","type":"timestamp"},{"name":"pos.lat","type":"float64"},'
    '{"name":"spec","type":"float32[3]","nullable":true},{"name":"b","type":"uint16[2]"}]'
)
ROWS = [
    (1, 50.5, [1.5, 2.0, -1.0], [1, 65535]),
    (2, -1.0, None, [7, 8]),
    (3, 0.0, [0.0] * 3, [0, 0]),
]


def page(seq=1):
    rows = [
        [
            time, lat, None if spec is None else np.array(spec, "<f4").tobytes(),
            np.array(b, "<u2").tobytes(),
        ]
        for time, lat, spec, b in ROWS
    ]  # fmt: skip
    return slotted_page(SCHEMA, rows, stream="tracks", seq=seq)


def test_structs_and_lists_are_columns_of_spark(spark, landing):
    landing.register("tracks", SCHEMA)
    landing.land([page()], name(1))
    reader = spark.read.format("edged").option("landing", str(landing.path))
    frame = reader.option("stream", "tracks@1").load()
    assert [f.dataType.simpleString() for f in frame.schema] == [
        "timestamp", "double", "array<float>", "array<int>",
    ]  # fmt: skip
    sql = "SELECT `pos.lat`, spec, b, aggregate(b, 0, (x, y) -> x + y) AS s FROM {t} ORDER BY time"
    wanted = [(lat, spec, b, sum(b)) for _, lat, spec, b in ROWS]
    assert [tuple(r) for r in spark.sql(sql, t=frame).collect()] == wanted
    found = read_landing(str(landing.path), "tracks@1").read_all()
    assert found.schema.field("spec").type == pa.list_(pa.float32(), 3)
    assert found.column("b").to_pylist() == [b for *_, b in ROWS]
    landing.land([page(2)], name(2))
    seal(landing, 1)
    assert compact(landing.path).segments == 1
    frame = landing_frame(spark, str(landing.path), "tracks@1")
    twice = [row for row in wanted for _ in range(2)]
    assert [tuple(r) for r in spark.sql(sql, t=frame).collect()] == twice
    again = read_landing(str(landing.path), "tracks@1").read_all()
    assert again.schema == found.schema
    assert again.column("spec").to_pylist() == [spec for _, _, spec, _ in ROWS] * 2
