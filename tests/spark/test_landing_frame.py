"""Compacted rows in a real Spark: a native scan with pushed filters, each row once."""

import itertools

import pytest

from edged.central import compacted, seals, segments
from edged.central.compactor import compact
from edged.central.expire import retire_compacted
from edged.central.landing_frame import landing_frame
from edged.data.schema import TYPES, Field, Schema
from edged.errors import ConfigError
from tests.spark.landings import readings, readings_table, slotted_page
from tests.spark.test_source import rows_of, source, stream_into, tuples

LATER = 1 << 61


def name(number):
    return f"seg-a-{number:08d}"


def land_sealed(landing, number, *pages):
    landing.land(list(pages), name(number))
    rows = segments.read_rows(landing.path, name(number))
    seals.write(landing.path, name(number), seals.greatest(rows))


def plan_of(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


def test_compacted_rows_are_a_native_scan_with_pushed_columns_and_filters(spark, landing):
    for number in (1, 2):
        land_sealed(landing, number, readings(number, device=f"mill-{number}"))
    compact(landing.path, group_bytes=1)
    frame = landing_frame(
        spark, landing.path, "curve@1", columns=["power"], devices=["mill-2"],
        since="1970-01-01T00:00:00.100Z", until="1970-01-01T00:00:00.300Z",
    )  # fmt: skip
    spark.conf.set("spark.sql.maxMetadataStringLength", 2000)
    plan = plan_of(frame.where("power > 100"))
    spark.conf.unset("spark.sql.maxMetadataStringLength")
    assert "FileScan parquet" in plan and "BatchScan" not in plan and "Python" not in plan
    (pushed,) = plan.split("PushedFilters: ")[1:]
    for wanted in ("EqualTo(_device,mill-2)", "GreaterThanOrEqual(time,1970-01-01",
                   "LessThan(time,1970-01-01", "GreaterThan(power,100.0)"):  # fmt: skip
        assert wanted in pushed, pushed
    assert "ReadSchema: struct<time:timestamp,power:double,_device:string>" in plan
    expected = tuples(readings_table([2]).slice(100, 200).select(["power"]))
    assert rows_of(frame) == expected
    assert frame.columns == ["power"]


def test_pages_and_compacted_rows_are_one_frame_and_filters_reach_both(spark, landing):
    for number in (1, 2):
        land_sealed(landing, number, readings(number, device=f"mill-{number}"))
    compact(landing.path)
    landing.land([readings(3, device="mill-1"), readings(4, device="mill-2")], name(3))
    frame = landing_frame(spark, landing.path, "curve")
    later = landing_frame(
        spark, landing.path, "curve", devices=["mill-1"], since="1970-01-01T00:00:00.900Z",
        metadata=True,
    )  # fmt: skip
    landing.land([readings(5)], name(3))
    seals.write(landing.path, name(3), seals.greatest(segments.read_rows(landing.path, name(3))))
    compact(landing.path)
    assert rows_of(frame) == tuples(readings_table([1, 2, 3, 4])), "as of when it was made"
    assert rows_of(source(spark, landing)) == tuples(readings_table([1, 2, 3, 4, 5]))
    assert rows_of(landing_frame(spark, landing.path, "curve")) == rows_of(source(spark, landing))
    assert sorted(row._seq for row in later.select("_seq").distinct().collect()) == [1, 3]
    assert later.count() == 200 and later.columns[-5:] == [
        "_device", "_epoch", "_partition", "_seq", "_landed_at",
    ]  # fmt: skip


def test_every_type_has_the_same_spark_type_and_value_either_way(spark, landing):
    schema = Schema.of([Field(n, t, nullable=True) for n, t in TYPES.items()])
    landing.register("types", schema)
    values = (
        1, -5, -300, -70_000, -(2**40), 200, 60_000, 4_000_000_000, 2**64 - 1,
        1.5, -2.25, 1_700_000_000_123_456, "Wind é", b"\x00\xff",
    )  # fmt: skip
    land_sealed(landing, 1, slotted_page(schema, [values, (None,) * 14], stream="types", seq=1))
    pages = landing_frame(spark, landing.path, "types", metadata=True)
    expected, kinds = rows_of(pages), pages.dtypes
    compact(landing.path)
    native = landing_frame(spark, landing.path, "types", metadata=True)
    assert "FileScan parquet" in plan_of(native)
    assert rows_of(native) == expected and native.dtypes == kinds
    both = source(spark, landing, "types", metadata="true")
    assert rows_of(both) == expected and both.dtypes == kinds


def test_a_flipped_bit_in_a_compacted_file_ends_the_query(spark, landing):
    land_sealed(landing, 1, readings(1))
    compact(landing.path)
    ((path, _),) = compacted.snapshot(landing.path).files(landing.path, "curve@1")
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"(?i)crc|checksum"):
        landing_frame(spark, landing.path, "curve").toArrow()


def test_a_stream_reads_each_row_once_while_segments_are_compacted_and_deleted(
    spark, landing, tmp_path
):
    stream = spark.readStream.format("edged").option("landing", str(landing.path))
    options = {"stream": "curve@1", "consumer": "test"}
    batches = {}
    for number in (1, 2, 3):
        land_sealed(landing, number, readings(2 * number - 1), readings(2 * number))
        compact(landing.path)
        stream_into(stream.options(**options).load(), tmp_path / "check", batches)
        retire_compacted(landing.path, LATER)
    assert segments.list_segments(landing.path) == [name(3)]  # committed a batch later
    read = sorted(itertools.chain.from_iterable(batches.values()), key=repr)
    assert read == tuples(readings_table(range(1, 7))) == rows_of(source(spark, landing))
    with pytest.raises(ConfigError, match="a stream starts at its checkpoint"):
        from edged.central.datasource import EdgedDataSource

        made = EdgedDataSource({"landing": str(landing.path), **options, "position": "{}"})
        made.streamReader(made.schema())


def test_a_landing_with_odd_characters_in_its_path_is_read(spark, tmp_path, landing):
    land_sealed(landing, 1, readings(1))
    compact(landing.path)
    odd = tmp_path / "a b[1]*{x}%20"
    landing.path.rename(odd)
    assert rows_of(landing_frame(spark, odd, "curve")) == tuples(readings_table([1]))
    odd.rename(landing.path)
