"""The expected tables, computed by DuckDB from the raw Parquet files, and the comparison.

The check is independent: of edged it uses the finished tables only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

RELATIVE_MAX = 1e-9
"""Largest relative difference that a different summation order of float64 may cause."""

_MATCHES = """
    WITH power AS (SELECT turbine, epoch_us(time) AS t, P_avg AS power_kw FROM '{scada}'),
         wind AS (
            SELECT turbine, epoch_us(time) AS t, Ws_avg AS wind_m_s,
                   unnest([t // 300000000 - 1, t // 300000000, t // 300000000 + 1]) AS near
            FROM '{scada}')
    SELECT p.turbine, power_kw, wind_m_s
    FROM power p JOIN wind w ON p.turbine = w.turbine AND p.t // 300000000 = near
    WHERE abs(w.t - p.t) <= 300000000"""
"""All pairs within five minutes, by a join on buckets of five minutes and their neighbours."""

_POWER_CURVE = """
    SELECT turbine, floor(wind_m_s * 2) / 2 AS bin_m_s, count(power_kw) AS n,
           avg(power_kw) AS mean_kw, stddev_samp(power_kw) AS stddev_kw,
           min(power_kw) AS min_kw, max(power_kw) AS max_kw
    FROM ({matches}) WHERE power_kw > 0 GROUP BY 1, 2"""

_ENERGY = """
    SELECT turbine, epoch_us(time) // 86400000000 AS day,
           count(P_avg) AS readings, coalesce(sum(P_avg), 0) / 6 AS energy_kwh
    FROM '{scada}' GROUP BY 1, 2"""

_MONTHS = """
    SELECT strftime(date_trunc('month', day), '%Y-%m') AS month, sum(energy_kwh) AS turbines_kwh,
           any_value(meter_kwh) AS meter_kwh
    FROM energy JOIN (
        SELECT date_trunc('month', time) AS m, sum(net_energy_kwh) AS meter_kwh
        FROM '{meter}' GROUP BY 1) ON m = date_trunc('month', day)
    GROUP BY 1 ORDER BY 1"""


@dataclass
class TableVerdict:
    """The result of comparing one table with DuckDB's."""

    table: str
    rows: int
    differences: list[str] = field(default_factory=list)
    worst: float = 0.0
    """Largest relative difference of a number."""

    @property
    def identical(self) -> bool:
        """Whether all counts are equal, and all floats within RELATIVE_MAX."""
        return not self.differences


class Truth:
    """The reference tables: DuckDB over the raw files."""

    def __init__(self, scada: Path, meter: Path) -> None:
        self._db = duckdb.connect()
        self._db.execute("SET TimeZone = 'UTC'")
        self._matches = _MATCHES.format(scada=scada)
        self._files = {"scada": str(scada), "meter": str(meter), "matches": self._matches}

    def matches(self) -> int:
        """The number of pairs of the reference join."""
        rows = self._db.execute(f"SELECT count(*) FROM ({self._matches})").fetchall()
        return int(rows[0][0])

    def compare(self, name: str, table: pa.Table) -> TableVerdict:
        """Compare a finished table with DuckDB's, row by row. `name` is that of the table."""
        sql, keys = {"power_curve": (_POWER_CURVE, 2), "energy": (_ENERGY, 2)}[name]
        cursor = self._db.execute(sql.format(**self._files))
        columns = [c[0] for c in cursor.description]
        expected = {row[:keys]: row[keys:] for row in cursor.fetchall()}
        self._db.register("given", table)
        wanted = ["epoch_us(day) // 86400000000" if c == "day" else c for c in columns]
        given_sql = f"SELECT {', '.join(wanted)} FROM given"
        given = {row[:keys]: row[keys:] for row in self._db.execute(given_sql).fetchall()}
        verdict = TableVerdict(name, table.num_rows)
        if len(given) != table.num_rows:
            verdict.differences.append(f"{table.num_rows - len(given)} rows repeat a key")
        for key in expected.keys() | given.keys():
            self._compare_row(verdict, columns[keys:], key, expected.get(key), given.get(key))
        return verdict

    def months(self, energy: pa.Table) -> list[tuple[str, float, float]]:
        """(month as `YYYY-MM`, kWh of the turbines, kWh by the plant's meter), ascending."""
        self._db.register("energy", energy)
        rows = self._db.execute(_MONTHS.format(**self._files)).fetchall()
        return [(str(month), float(turbines), float(meter)) for month, turbines, meter in rows]

    def _compare_row(
        self, verdict: TableVerdict, names: list[str], key: Any, expected: Any, given: Any
    ) -> None:
        if expected is None or given is None:
            side = "is not in the table" if given is None else "is in the table only"
            verdict.differences.append(f"{key} {side}")
            return
        for name, want, got in zip(names, expected, given, strict=True):
            error = _difference(want, got)
            verdict.worst = max(verdict.worst, error)
            if error > RELATIVE_MAX:
                verdict.differences.append(f"{key} {name}: {got!r}, DuckDB has {want!r}")


def _difference(want: Any, got: Any) -> float:
    """Relative difference of two values; infinite for different counts, or a null on one side."""
    if want == got or (want != want and got != got):
        return 0.0
    if want is None or got is None or isinstance(want, int):
        return float("inf")
    return float(abs(want - got) / max(abs(want), abs(got)))
