"""The data source in a real Spark: batch and streaming reads against the original rows."""

import datetime
import itertools
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.pandas.types import to_arrow_schema

from edged.central import seals, segments
from edged.central.datasource import EdgedDataSource, corrupt_pages, spark_schema
from edged.central.expire import expire
from edged.data.schema import TYPES, Field, Schema
from edged.errors import CentralError, ConfigError
from tests.spark.landings import READINGS, dense_page, readings, readings_table, slotted_page


def source(spark, landing, stream="curve@1", **options):
    reader = spark.read.format("edged").option("landing", str(landing.path))
    return reader.option("stream", stream).options(**options).load()


def rows_of(frame):
    """A frame's rows, times in UTC whatever the machine's time zone."""
    return tuples(frame.toArrow())


def tuples(table):
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def utc(*parts):
    return datetime.datetime(*parts, tzinfo=datetime.timezone.utc)


def stream_into(frame, checkpoint, batches):
    """Run a streaming read to its end; collects the rows of batches by number (None: fails)."""

    def take(rows, number):
        if batches is None:
            raise RuntimeError("injected")
        batches[number] = rows_of(rows)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_a_batch_read_gives_every_row_of_the_stream_and_no_other(spark, landing):
    landing.land([readings(1), readings(2, stream="daily"), readings(3)])
    landing.land([readings(4, partition=1), readings(5, version=2)], "seg-b-00000001")
    frame = source(spark, landing)
    assert rows_of(frame) == tuples(readings_table([1, 3, 4]))
    assert frame.where("time >= timestamp'1970-01-01 00:00:00.5'").count() == 1500


def test_every_type_with_and_without_nulls_arrives_as_documented(spark, landing):
    fields = [Field(n, t, nullable=True) for n, t in TYPES.items()]
    schema = Schema.of(fields)
    landing.register("types", schema)
    moment = 1_700_000_000_123_456
    values = (
        1, -5, -300, -70_000, -(2**40), 200, 60_000, 4_000_000_000, 2**64 - 1,
        1.5, -2.25, moment, "Wind é", b"\x00\xff",
    )  # fmt: skip
    landing.land([slotted_page(schema, [values, (None,) * 14, values], stream="types", seq=1)])
    shown = (
        True, -5, -300, -70_000, -(2**40), 200, 60_000, 4_000_000_000, Decimal(2**64 - 1),
        1.5, -2.25, utc(2023, 11, 14, 22, 13, 20, 123456), "Wind é",
        b"\x00\xff",
    )  # fmt: skip
    frame = source(spark, landing, "types@1")
    kinds = [f.dataType.simpleString() for f in frame.schema.fields]
    assert kinds == [t.spark for t in TYPES.values()]
    assert rows_of(frame) == sorted([shown, (None,) * 14, shown], key=repr)


def test_the_schema_is_exactly_what_sparks_arrow_reader_expects(landing):
    schema = Schema.of([Field(n, t, i % 2 == 0) for i, (n, t) in enumerate(TYPES.items())])
    landing.register("types", schema)
    options = {"landing": str(landing.path), "stream": "types", "metadata": "true"}
    request = EdgedDataSource(options).request()
    assert request.arrow_schema().equals(to_arrow_schema(spark_schema(request), timezone="UTC"))


def test_only_the_columns_asked_for_and_where_the_rows_came_from(spark, landing):
    landing.land([readings(1, device="mill-7", epoch=2**63 + 1)], landed_at_us=86_400_000_000)
    landing.land([readings(2, n=0)])
    frame = source(spark, landing, columns="power", metadata="true")
    assert frame.columns == ["power", "_device", "_epoch", "_partition", "_seq", "_landed_at"]
    place = ("mill-7", Decimal(2**63 + 1), 0, Decimal(1), utc(1970, 1, 2))
    assert rows_of(frame.drop("power").distinct()) == [place]
    assert source(spark, landing, columns="_seq").count() == 1000


def test_a_name_without_version_is_the_latest_version(spark, landing):
    landing.register("curve", Schema.of(READINGS.fields[:1]), version=12)
    page = dense_page(Schema.of(READINGS.fields[:1]), (range_of(3),), stream="curve",
                      version=12, seq=1)  # fmt: skip
    landing.land([readings(1), page])
    assert rows_of(source(spark, landing, "curve")) == [(0,), (1,), (2,)]


def range_of(n):
    return pa.array(range(n), pa.int32()).to_numpy()


def test_a_registered_stream_that_sent_nothing_is_empty_and_an_unknown_one_is_named(spark, landing):
    assert source(spark, landing).count() == 0
    with pytest.raises(AnalysisException, match=r"stream wind@1 is not registered here; there are"):
        source(spark, landing, "wind@1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "curve", "landing": ""}, "needs a landing"),
        ({"stream": "Curve!"}, "is not the name of a stream"),
        ({"stream": "curve", "column": "key"}, "'column' of format edged is not known"),
        ({"stream": "curve", "columns": "key,speed"}, "has no column 'speed'; it has key, time"),
        ({"stream": "curve", "columns": "key,key"}, "names a column twice"),
        ({"stream": "curve", "corrupt": "ignore"}, "neither skip nor fail"),
        ({"stream": "curve", "consumer": "../x"}, "is not a name"),
    ],
)
def test_a_wrong_option_is_refused(landing, options, message):
    with pytest.raises(ConfigError, match=message):
        EdgedDataSource({"landing": str(landing.path), **options}).schema()


def test_a_landing_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CentralError, match="nor is any other"):
        EdgedDataSource({"landing": str(tmp_path / "no"), "stream": "curve"}).schema()


def test_a_damaged_page_is_left_out_marked_once_and_counted(spark, landing):
    landing.land([readings(s) for s in range(1, 6)])
    landing.damage("seg-a-00000001", 2)
    frame = source(spark, landing)
    assert rows_of(frame) == tuples(readings_table([1, 2, 4, 5]))
    assert rows_of(frame) == tuples(readings_table([1, 2, 4, 5]))
    assert corrupt_pages(landing.path) == 1
    (marker,) = (landing.path / "corrupt").iterdir()
    said = json.loads(marker.read_text())
    assert (said["stream"], said["seq"], said["tuples"]) == ("curve@1", 3, 1000)
    assert "checksum" in said["problem"]
    with pytest.raises(Exception, match="is damaged: checksum"):
        source(spark, landing, corrupt="fail").count()


def test_a_stream_is_read_in_bounded_batches_and_goes_on_at_its_checkpoint(
    spark, landing, tmp_path
):
    landing.land([readings(s) for s in range(1, 6)], landed_at_us=1)
    landing.land([readings(s, partition=1) for s in range(6, 9)], "seg-b-00000001", landed_at_us=2)
    stream = spark.readStream.format("edged").option("landing", str(landing.path))
    options = {"stream": "curve@1", "pages_per_trigger": "3", "consumer": "test"}
    batches = {}
    stream_into(stream.options(**options).load(), tmp_path / "check", batches)
    assert {n: len(b) for n, b in batches.items()} == {0: 3000, 1: 3000, 2: 2000}
    read = sorted(itertools.chain.from_iterable(batches.values()), key=repr)
    assert read == tuples(readings_table(range(1, 9)))
    offsets = (tmp_path / "check" / "offsets" / "1").read_text().splitlines()
    assert offsets[-1] == '{"seg-a-00000001": 5, "seg-b-00000001": 1}'

    landing.land([readings(9, partition=1)], "seg-b-00000001")
    stream_into(stream.options(**options).load(), tmp_path / "check", batches)
    assert batches[3] == tuples(readings_table([9]))
    consumer = json.loads((landing.path / "consumers" / "test.json").read_text())
    assert consumer["stream"] == "curve@1"
    assert consumer["position"] == {"seg-a-00000001": 5, "seg-b-00000001": 3}


def test_what_a_query_has_committed_may_expire_while_it_goes_on(spark, landing, tmp_path):
    """Each row once, over deleted segments; a new checkpoint finds the rest, and retains it."""
    stream = spark.readStream.format("edged").option("landing", str(landing.path))
    options = {"stream": "curve@1", "consumer": "test"}
    batches, later = {}, 1 << 62
    for segment in (1, 2, 3):
        name = f"seg-a-{segment:08d}"
        landing.land([readings(2 * segment - 1), readings(2 * segment)], name)
        seals.write(landing.path, name, seals.greatest(segments.read_rows(landing.path, name)))
        stream_into(stream.options(**options).load(), tmp_path / "check", batches)
        expire(landing.path, later)
    assert segments.list_segments(landing.path) == ["seg-a-00000003"]  # committed a batch later
    read = sorted(itertools.chain.from_iterable(batches.values()), key=repr)
    assert read == tuples(readings_table(range(1, 7)))
    anew = stream.options(**options).load()
    with pytest.raises(StreamingQueryException, match="injected"):
        stream_into(anew, tmp_path / "other", None)
    assert expire(landing.path, later).kept == {"test has not read it": 1}


def test_a_batch_that_failed_is_read_again_with_the_same_rows_although_more_has_landed(
    spark, landing, tmp_path
):
    landing.land([readings(1)])
    stream = spark.readStream.format("edged").option("landing", str(landing.path))
    frame = stream.option("stream", "curve@1").load()

    def fail(rows, number):
        raise RuntimeError("injected")

    writer = frame.writeStream.foreachBatch(fail)
    query = writer.option("checkpointLocation", str(tmp_path / "check")).start()
    with pytest.raises(StreamingQueryException, match="injected"):
        query.awaitTermination(60)
    landing.land([readings(2)])
    batches = {}
    stream_into(frame, tmp_path / "check", batches)
    assert batches == {0: tuples(readings_table([1])), 1: tuples(readings_table([2]))}
