"""An exposition: samples of a metrics table in Prometheus' formats.

An exposition serves one scrape; nothing is kept between two scrapes.  Its size is bounded: each
metric has at most `bound` label sets, values of labels are cut to LABEL_CHARS_MAX, and a repeated
label set is dropped, because Prometheus would refuse the whole scrape.  `left_out` counts what was
dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from edged.metrics.table import LABEL_CHARS_MAX, Kind, Metric

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: dict[Kind, type[Family]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
    Kind.INFO: GaugeMetricFamily,
}


class Histogram:
    """Counts of observations between bounds, one beyond the last bound, and their sum."""

    def __init__(self, bounds: Sequence[float], counts: Sequence[int], total: float) -> None:
        self.bounds, self.counts, self.sum = bounds, counts, total

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Histogram:
        """From a HISTOGRAM of the status document; µs become s.  Raises KeyError."""
        if "bounds_us" in document:
            bounds = [us / 1e6 for us in document["bounds_us"]]
            return cls(bounds, document["counts"], document["sum_us"] / 1e6)
        return cls(document["bounds"], document["counts"], document["sum"])

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        names = [*map(floatToGoString, self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Exposition(Collector):
    """Samples of the metrics of a table."""

    def __init__(self, table: Mapping[str, Metric]) -> None:
        self._table = table
        self._families: dict[str, Family] = {}
        self._seen: dict[str, set[tuple[str, ...]]] = {}
        self.left_out = 0

    def add(self, name: str, value: float | None, /, **labels: object) -> None:
        """Add a sample; None is a gap and adds none.

        Raises KeyError for a name that is not in the table, ValueError for other labels than its.
        """
        row = self._table[name]
        found = None if value is None else self._place(row, labels)
        if value is not None and found is not None:
            self._family(row).add_metric(found, float(value))  # type: ignore[call-arg, arg-type]

    def add_info(self, name: str, /, **labels: object) -> None:
        """Add a sample of an info metric."""
        self.add(name, 1, **labels)

    def add_histogram(self, name: str, value: Histogram, /, **labels: object) -> None:
        """Add a histogram.  Raises as `add` does."""
        row = self._table[name]
        found, family = self._place(row, labels), self._family(row)
        if found is not None and isinstance(family, HistogramMetricFamily):
            family.add_metric(found, value.buckets(), value.sum)

    def collect(self) -> Iterator[Family]:
        """The families, in the table's order."""
        return (self._families[name] for name in self._table if name in self._families)

    def encode(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its media type, in the format that the Accept header prefers."""
        encoder, media_type = choose_encoder(accept)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return encoder(registry), media_type

    def _family(self, row: Metric) -> Family:
        family = self._families.get(row.name)
        if family is None:
            family = _FAMILIES[row.kind](row.name, row.help, labels=row.labels)
            self._families[row.name] = family
        return family

    def _place(self, row: Metric, labels: Mapping[str, object]) -> list[str] | None:
        """Values of the labels in the row's order; None beyond the bound or for a repeat."""
        if labels.keys() != set(row.labels):
            raise ValueError(f"{row.name} has the labels {row.labels}, not {tuple(labels)}")
        values = tuple(_text(labels[name]) for name in row.labels)
        seen = self._seen.setdefault(row.name, set())
        if values in seen or len(seen) >= row.bound:
            self.left_out += 1
            return None
        seen.add(values)
        return list(values)


def _text(value: object) -> str:
    """A value of a label: cut, and encodable as UTF-8."""
    return str(value)[:LABEL_CHARS_MAX].encode(errors="replace").decode()
