"""Queries that start together: each has a registration of its own (see `register_source`).

When a streaming query starts, Spark 4.3 puts settings into the environment map of the registered
source, a plain HashMap.  Two queries that do so in one instant to one map leave it with a wrong
size, and every task that it is sent to ends with java.io.OptionalDataException.  That instant is
short (20 starts of 3 queries on new, shared maps did not hit it), so the maps are looked at.
"""

import threading

from edged.central.aggregate import AggregateOptions, Aggregation, _watch
from edged.central.session import register_source
from edged.central.spec import parse_spec
from edged.central.tables import read
from tests.spark.landings import readings

STARTS = 2
COUNTED = {
    "from": "curve",
    "sql": "SELECT key, count(*) AS n FROM curve GROUP BY key",
    "keys": ["key"],
    "merge": {"n": "sum"},
}


def environment(spark, source):
    """The environment map that Spark keeps for the registered `source`: the Java object."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    return manager.lookupDataSource(source).dataSourceCls().envVars()


def test_queries_that_start_together_end_well_and_share_no_environment(spark, landing, tmp_path):
    landing.land([readings(1, n=20)])
    unused = set(environment(spark, register_source(spark, "edged-unused")))
    for start in range(STARTS):
        tables = dict.fromkeys((f"{name}_{start}" for name in ("one", "two", "three")), COUNTED)
        spec = parse_spec({"streams": {"curve": "curve@1"}, "tables": tables})
        places = {n: str(tmp_path / str(start) / n) for n in ("output", "checkpoint")}
        aggregation = Aggregation(
            spark, spec, AggregateOptions(landing=str(landing.path), **places)
        )
        try:
            _watch(aggregation, lambda event: None, threading.Event())
        finally:
            aggregation.stop()
        counts = [sum(read(f"{places['output']}/{t}")["n"].to_pylist()) for t in tables]
        assert counts == [20, 20, 20]
        maps = [environment(spark, f"edged-{t}") for t in tables]
        # Spark writes into the map, which is why each query needs its own.
        assert all(set(m) > unused for m in maps)
        identity = spark._jvm.System.identityHashCode
        assert len({identity(m) for m in maps}) == 3
