"""What edged tells Prometheus: the metrics' tables, and how samples become an exposition.

    device.py       of a daemon: served by its API from the door's snapshot (api/metrics.py)
    central.py      of a collector, of the fleet as it reports itself, and of the aggregation
    exposition.py   samples under a table's names and labels, bounded in number
    page.py         docs/metrics.md from the tables

A table is the only place where a metric's name, type, labels and help stand.

Rules (https://prometheus.io/docs/practices/naming/): the prefix is `edged_`; units are base units
and stand last (`_seconds`, `_bytes`, `_joules`, `_watts`, `_hertz`), counters end in `_total`; a
label tells apart what may be summed or compared.  What nobody told is left out, never zero.  An
energy figure has the label `source`: measured, modelled or simulated.
"""

from edged.metrics.exposition import Exposition, Histogram
from edged.metrics.table import Kind, Metric

__all__ = ["Exposition", "Histogram", "Kind", "Metric"]
