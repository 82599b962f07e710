"""`edged bench soak`: what passes as flat."""

from __future__ import annotations

import pytest

from edged.bench.soak import growth


def run_of(**changes):
    """Samples of a run whose figures rise by `changes` in the last third."""
    flat = {"rss_mb": 300.0, "descriptors": 40, "threads": 9, "files": 20}
    later = {key: value + changes.get(key, 0) for key, value in flat.items()}
    warm = {key: 3 * value for key, value in flat.items()}
    return [{"daemon": warm}] * 10 + [{"daemon": flat}] * 10 + [{"daemon": later}] * 10


@pytest.mark.parametrize(
    ("key", "tolerated"), [("rss_mb", 15), ("descriptors", 2), ("threads", 1), ("files", 5)]
)
def test_a_figure_that_grows_beyond_its_tolerance_is_not_flat_and_alone(key, tolerated):
    assert all(r["flat"] for r in growth(run_of(**{key: tolerated}), "daemon").values())
    grown = growth(run_of(**{key: tolerated + 1}), "daemon")
    assert [name for name, r in grown.items() if not r["flat"]] == [key]
    assert grown[key]["after"] == grown[key]["before"] + tolerated + 1
