"""The metrics for Prometheus: their tables, and how samples become an exposition.

    device.py       a daemon: served by its API from the status document (api/metrics.py)
    central.py      a collector, the fleet by its reports, and the aggregation
    exposition.py   samples under a table's names and labels, bounded in number
    page.py         docs/metrics.md from the tables

A table is the only definition of a metric's name, type, labels and help.

Rules (https://prometheus.io/docs/practices/naming/): the prefix is `edged_`; units are base units
and stand last (`_seconds`, `_bytes`, `_joules`, `_watts`, `_hertz`); counters end in `_total`; a
label separates series that may be summed or compared.  An unknown value is left out, never zero.
A figure of energy has the label `source`: measured, modelled or simulated.
"""

from edged.metrics.exposition import Exposition, Histogram
from edged.metrics.table import Kind, Metric

__all__ = ["Exposition", "Histogram", "Kind", "Metric"]
