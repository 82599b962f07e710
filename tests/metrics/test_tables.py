"""The tables of metrics: names, bounds, and the page that is made from them."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from edged.metrics import Exposition, Histogram, Kind, Metric
from edged.metrics.central import CENTRAL
from edged.metrics.device import DEVICE, EVENT_KINDS
from edged.metrics.page import page
from edged.metrics.table import LABEL_CHARS_MAX, LABELS, gauge, histogram, table

DOCS = Path(__file__).parents[2] / "docs"
SMALL = table(
    gauge("edged_a_bytes", "A.", "job_name", series_max=3), histogram("edged_b_seconds", "B.")
)


def test_docs_metrics_md_is_what_the_tables_say():
    assert (DOCS / "metrics.md").read_text() == page(), "python -m edged.metrics.page"


def test_a_device_and_the_centre_share_no_name():
    assert not DEVICE.keys() & CENTRAL.keys()


def test_events_are_counted_by_the_kinds_of_docs_control_md():
    section = (DOCS / "control.md").read_text().partition("## Events")[2]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.M)
    told = [kind for row in rows for kind in re.findall(r"`([a-z_]+\.[a-z_]+)`", row)]
    assert sorted(told) == sorted(EVENT_KINDS)


def test_every_label_is_used_and_told():
    used = {
        label
        for row in (DEVICE | CENTRAL).values()
        if row.kind is not Kind.INFO
        for label in row.labels
    }
    assert used == LABELS.keys() - {"kernel", "policy"}, "those two are of info metrics"


@pytest.mark.parametrize(
    "name, kind, help",
    [
        ("edged_rows", Kind.COUNTER, "Rows."),
        ("edged_rows_total", Kind.GAUGE, "Rows."),
        ("edged_rows_count", Kind.HISTOGRAM, "Rows."),
        ("rows_total", Kind.COUNTER, "Rows."),
        ("edged_Rows_total", Kind.COUNTER, "Rows."),
        ("edged_rows_total", Kind.COUNTER, "Rows"),
    ],
)
def test_a_row_that_breaks_the_rules_is_refused(name, kind, help):
    with pytest.raises(ValueError, match=f"^{name}: "):
        Metric(name, kind, help)


def test_labels_are_those_of_the_row():
    with pytest.raises(ValueError, match="edged_a_bytes has the labels"):
        Exposition(SMALL).add("edged_a_bytes", 1)
    with pytest.raises(KeyError):
        Exposition(SMALL).add("edged_c", 1)


def test_what_nobody_told_is_left_out():
    exposition = Exposition(SMALL)
    exposition.add("edged_a_bytes", None, job_name="x")
    assert exposition.encode()[0] == b""


@given(st.lists(st.text(max_size=2 * LABEL_CHARS_MAX), max_size=8))
def test_any_text_is_a_label_and_the_bound_holds(names):
    exposition = Exposition(SMALL)
    for name in names:
        exposition.add("edged_a_bytes", 1, job_name=name)
    text = exposition.encode()[0].decode()
    found = [s for f in text_string_to_metric_families(text) for s in f.samples]
    told = {s.labels["job_name"] for s in found}
    assert len(found) == len(told) <= 3, "no label set twice"
    assert len(found) + exposition.left_out == len(names)
    assert told <= {n[:LABEL_CHARS_MAX].encode(errors="replace").decode() for n in names}


@given(st.lists(st.integers(0, 10**9), min_size=3, max_size=3), st.integers(0, 10**12))
def test_a_histogram_of_microseconds_is_cumulative_seconds(counts, total):
    told = {"bounds_us": [50, 1_000_000], "counts": counts, "sum_us": total}
    exposition = Exposition(SMALL)
    exposition.add_histogram("edged_b_seconds", Histogram.of(told))
    (family,) = text_string_to_metric_families(exposition.encode()[0].decode())
    found = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert found == {
        ("edged_b_seconds_bucket", "5e-05"): counts[0],
        ("edged_b_seconds_bucket", "1.0"): counts[0] + counts[1],
        ("edged_b_seconds_bucket", "+Inf"): sum(counts),
        ("edged_b_seconds_count", None): sum(counts),
        ("edged_b_seconds_sum", None): pytest.approx(total / 1e6),
    }
