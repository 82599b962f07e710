"""The origin of `examples/readings.parquet`: two weeks of tests/data, by time and turbine.

python -m tests.readme.sample        writes it again
"""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edged.demo.sensors import COLUMNS

ROOT = Path(__file__).parents[2]
READINGS = ROOT / "examples" / "readings.parquet"
FIRST = datetime.datetime(2015, 3, 2, tzinfo=datetime.timezone.utc)
DAYS = 14


def scada():
    """The two weeks with the source's columns."""
    table = pq.read_table(ROOT / "tests" / "data" / "scada_source_order.parquet")
    time, end = table.column("time"), FIRST + datetime.timedelta(days=DAYS)
    return table.filter(pc.and_(pc.greater_equal(time, FIRST), pc.less(time, end)))


def readings():
    """The two weeks with the columns of examples/power_curve.toml, both streams in one table."""
    source = scada()
    names = {**COLUMNS["power"], **COLUMNS["wind"]}
    table = pa.table({name: source.column(of) for name, of in names.items()})
    at = table.column_names.index("turbine")
    table = table.set_column(at, "turbine", table.column("turbine").cast(pa.string()))
    return table.sort_by([("time", "ascending"), ("turbine", "ascending")])


if __name__ == "__main__":
    pq.write_table(readings(), READINGS, compression="zstd", compression_level=19)
