"""Times as texts, said plainly."""

from __future__ import annotations

from datetime import datetime, timedelta


def format_time(us, form):
    """strftime by Python, whose `%f` and fixed widths are DuckDB's for years from 1000 to 9999."""
    return (datetime(1970, 1, 1) + timedelta(microseconds=us)).strftime(form)
